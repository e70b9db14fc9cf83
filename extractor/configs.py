"""What a preset is made of: architectures, preprocessing and selection rules, as plain values.

Light on purpose (no torch). An architecture names its network as "module:Class"; the module is imported when a model is
loaded. Sizes are in pixels of the resized image unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Architecture:
    """A network without settings, and the least that every architecture says about itself.

    Attributes:
        network: "module:Class" of the network; see `networks.Network` for what the class does.
        dim: length of a feature vector.
        num_classes, num_attributes: lengths of the vocabularies.
        roi_chunk: RoIs per pass of the region head.

    One that needs a package which does not come with roivault names it as `package`.
    """

    network: str
    dim: int
    num_classes: int
    num_attributes: int = 0
    roi_chunk: int = 50


@dataclass(frozen=True)
class C4Config:
    """Faster R-CNN on one stride-16 map (res4) with a dilated res5 as the region head and an attribute head.

    Defaults are the ResNet-101 of the Visual Genome bottom-up-attention detector (Anderson et al. 2018, in the
    detectron2 port by Tan); module names, hence tensor names, are detectron2's.
    """

    network: ClassVar[str] = "extractor.detector:Detector"

    stem_channels: int = 64
    widths: tuple[int, int, int, int] = (64, 128, 256, 512)  # of the 3x3 convolutions in res2..res5
    channels: tuple[int, int, int, int] = (256, 512, 1024, 2048)  # put out by res2..res5
    blocks: tuple[int, int, int, int] = (3, 4, 23, 3)
    rpn_channels: int = 512
    anchor_sizes: tuple[int, ...] = (64, 128, 256, 512)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)  # height / width
    pre_nms: int = 6000
    proposal_nms: float = 0.7
    proposals: int = 300
    pooled_size: int = 14
    num_classes: int = 1600
    num_attributes: int = 400
    class_embedding: int = 256
    attribute_hidden: int = 512
    roi_chunk: int = 25  # RoIs per pass of the region head; fixed, so that results do not depend on their number

    @property
    def dim(self) -> int:
        return self.channels[3]


@dataclass(frozen=True)
class FPNConfig:
    """Faster R-CNN on a feature pyramid, as maskrcnn-benchmark has it: ResNeXt, inclusive boxes, two linear layers.

    Defaults are the ResNeXt-101 64x4d of the Visual Genome detector that Pythia, ViLBERT and M3P took features from.
    """

    network: ClassVar[str] = "extractor.fpn_detector:FPNDetector"

    stem_channels: int = 64
    widths: tuple[int, int, int, int] = (256, 512, 1024, 2048)  # of the 3x3 convolutions in res2..res5
    channels: tuple[int, int, int, int] = (256, 512, 1024, 2048)  # put out by res2..res5
    blocks: tuple[int, int, int, int] = (3, 4, 23, 3)
    groups: int = 64
    pyramid_channels: int = 512
    anchor_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)  # of P2..P6
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)  # height / width
    proposals_per_level: int = 1000
    proposal_nms: float = 0.7
    proposals: int = 1000
    clip_to: str = "image"  # or "padded": proposals may reach into the padding, up to the next multiple of 32
    pooled_size: int = 7
    hidden: int = 2048  # of fc6 and fc7; the feature is fc6 after its ReLU
    num_classes: int = 1600
    num_attributes: int = 0
    roi_chunk: int = 250  # RoIs per pass of the linear layers; fixed, so that results do not depend on their number

    @property
    def dim(self) -> int:
        return self.hidden


@dataclass(frozen=True)
class C5GridConfig:
    """The last map of a detector's backbone as a grid of cells (Jiang et al. 2020, "In Defense of Grid Features").

    Theirs came from detectors trained to pool a single cell; here it is the detectors as they were published.

    Attributes:
        detector: a ResNet C4, whose res5 runs over the whole map, or a ResNeXt pyramid, of which only res5 runs.
        pool: cells of the map, in each direction, whose mean is a cell of the grid.
    """

    detector: C4Config | FPNConfig
    pool: int = 1
    num_classes: int = 0
    num_attributes: int = 0
    roi_chunk: int = 50

    @property
    def network(self) -> str:
        return "extractor.grid_detector:" + ("C4Grid" if isinstance(self.detector, C4Config) else "FPNGrid")

    @property
    def dim(self) -> int:
        return self.detector.channels[3]


@dataclass(frozen=True)
class Preprocess:
    """From an RGB image to the network's input: resize to a short side with a capped long side, subtract, divide.

    Attributes:
        short_side, long_side: the short side becomes `short_side`, unless the long side would exceed `long_side`.
        mean: subtracted from the channels, in the order in which the network gets them; brightness 0..255.
        std: divides the channels after that, in the same order.
        resize: "pillow" filters the uint8 image (detectron2); "opencv" interpolates the float image after the
            subtraction, one scale for both axes (Caffe, maskrcnn-benchmark); "torch" interpolates the float image
            before it (the Hugging Face port of detectron2). A kind with another rule says how, see preprocess.py.
        channels: order in which the network gets them, "bgr" or "rgb".
    """

    short_side: int = 800
    long_side: int = 1333
    mean: tuple[float, float, float] = (102.9801, 115.9465, 122.7717)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    resize: str = "pillow"
    channels: str = "bgr"

    @property
    def pixels(self) -> int:
        """The most that the input can have."""
        return self.short_side * self.long_side


@dataclass(frozen=True)
class CentreCrop:
    """From an RGB image to a square, as the image processors of transformers have it (those on Pillow).

    The uint8 image is resized by Pillow; brightness becomes 0..1; the mean is subtracted and the deviation divides.

    Attributes:
        short_side: what the short side becomes, the aspect ratio kept; a square is then cut from the centre. 0 resizes
            the whole image to the square, whatever its aspect ratio.
        side: of the square.
        filter: Pillow's "bicubic", "bilinear" or "lanczos".
        mean, std: of red, green and blue, for brightness 0..1.
    """

    short_side: int = 0
    side: int = 224
    filter: str = "bicubic"
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @property
    def pixels(self) -> int:
        """Those of the input."""
        return self.side**2


@dataclass(frozen=True)
class MaxClassNMS:
    """Non-maximum suppression over every region's most probable class box, whatever the class.

    The IoU threshold is raised step by step until `max_regions` remain; what is left after the last step is kept, be
    it less. Regions under `min_score` are then dropped, but never below `min_regions`.
    """

    max_regions: int = 36
    thresholds: tuple[float, ...] = (0.5, 0.6, 0.7, 0.7999999999999999, 0.8999999999999999)
    min_score: float = 0.0
    min_regions: int = 0


@dataclass(frozen=True)
class PerClassNMS:
    """Non-maximum suppression among the proposals in every class by itself; a region ranks by its best surviving class.

    The regions with a rank of `min_score` or more are kept, at least `min_regions` and at most `max_regions`, best
    first. A record's boxes are the proposals.

    Attributes:
        threshold: IoU above which the weaker region is suppressed in that class.
        class_boxes: suppress by the boxes that were regressed for each class, not by the proposals.
        pixel_inclusive: a box from x1 to x2 is x2 - x1 + 1 wide, in pixels of the original image.
        clip: cut the boxes to the image.
    """

    threshold: float = 0.5
    min_score: float = 0.2
    min_regions: int = 10
    max_regions: int = 100
    class_boxes: bool = False
    pixel_inclusive: bool = False
    clip: bool = True


@dataclass(frozen=True)
class DetectionNMS:
    """The detections proper: (region, class) pairs with a `min_score`, suppressed within each class, best first.

    A record's boxes are those regressed for the class; a proposal may come out more than once, under other classes.
    """

    threshold: float = 0.5
    min_score: float = 0.05
    min_regions: int = 0
    max_regions: int = 100


@dataclass(frozen=True)
class GridCells:
    """Every cell of a grid, row by row, with the part of it that lies in the image. They have no ranks."""

    min_regions: int
    max_regions: int


@dataclass(frozen=True)
class DetectronConfig:
    """A GeneralizedRCNN of an installed detectron2.

    Attributes:
        config: path of a yaml file, or a name in detectron2's model zoo.
        dim: length of a feature vector.
        layer: what the feature is: "pooled", the mean of a RoI's map; or "fc1", "fc2", ..., a layer of the box head.
        activation: "post" takes a layer after its ReLU, "pre" before.
        shifted_scores: rank regions by the scores of the class after theirs, the background's for the last.
    """

    network: ClassVar[str] = "extractor.detectron:DetectronNetwork"
    package: ClassVar[str] = "detectron2"  # that must be installed

    config: str
    dim: int
    num_classes: int
    layer: str = "pooled"
    activation: str = "post"
    shifted_scores: bool = False
    config_sha256: str = ""  # of the configuration's text, where the name does not settle it
    num_attributes: int = 0
    roi_chunk: int = 50
