"""What an encoder is made of, as data: sizes, embeddings, and the order of its sublayers.

An encoder is one `EncoderConfig`; `configs/` holds a file per published encoder. The vocabulary is Volta's (Bugliarello
et al., TACL 2021): a sublayer is an attention or a feed-forward step over two streams, text and image, and every
published single- and dual-stream encoder is some sequence of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cache import UsageError

TEXT, IMAGE = "text", "image"
BOTH = (TEXT, IMAGE)


@dataclass(frozen=True)
class StreamConfig:
    """Sizes of one stream: hidden width, attention heads, feed-forward width and dropout rates."""

    hidden: int = 768
    heads: int = 12
    ffn: int = 3072
    dropout: float = 0.1
    attention_dropout: float = 0.1


@dataclass(frozen=True)
class Attention:
    """An attention sublayer. `text` lists the streams that text queries attend to, `image` likewise; with an empty
    list the stream passes through unchanged. `shared` gives both streams the same weights. Width and number of heads
    are the streams' own unless given."""

    text: tuple[str, ...] = ()
    image: tuple[str, ...] = ()
    shared: bool = False
    text_width: int | None = None
    image_width: int | None = None
    text_heads: int | None = None
    image_heads: int | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(name for name, keys in ((TEXT, self.text), (IMAGE, self.image)) if keys)

    @property
    def crosses(self) -> bool:
        return IMAGE in self.text or TEXT in self.image

    @property
    def joint(self) -> bool:
        """Whether it is one attention over the concatenation of both streams."""
        return self.shared and set(self.text) == set(self.image) == set(BOTH)


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward sublayer over `streams`; a stream left out passes through unchanged."""

    streams: tuple[str, ...] = BOTH
    shared: bool = False
    text_width: int | None = None
    image_width: int | None = None

    crosses = False

    @property
    def joint(self) -> bool:
        return self.shared and set(self.streams) == set(BOTH)


Sublayer = Attention | FeedForward


def single_stream(layers: int) -> tuple[Sublayer, ...]:
    """`layers` transformer layers over the concatenation of text and image."""
    return (Attention(text=BOTH, image=BOTH, shared=True), FeedForward(shared=True)) * layers


def lxmert_layout(text_layers: int, image_layers: int, cross_layers: int) -> tuple[Sublayer, ...]:
    """Tan and Bansal 2019: layers within each stream, then blocks of shared cross-attention, self-attention, FFN."""
    within = Attention(text=(TEXT,), image=(IMAGE,))
    text_only = (Attention(text=(TEXT,)), FeedForward(streams=(TEXT,)))
    cross = Attention(text=(IMAGE,), image=(TEXT,), shared=True)
    alone = text_only * (text_layers - image_layers)
    return (within, FeedForward()) * image_layers + alone + (cross, within, FeedForward()) * cross_layers


def vilbert_layout(
    text_layers: int, cross_layers: int, width: int | None = None, heads: int | None = None
) -> tuple[Sublayer, ...]:
    """Lu et al. 2019: text layers, then blocks of co-attention, FFN, self-attention, FFN; `width` and `heads` of the
    co-attention's text side."""
    text_only = (Attention(text=(TEXT,)), FeedForward(streams=(TEXT,)))
    cross = Attention(text=(IMAGE,), image=(TEXT,), text_width=width, text_heads=heads)
    within = Attention(text=(TEXT,), image=(IMAGE,))
    return text_only * text_layers + (cross, FeedForward(), within, FeedForward()) * cross_layers


@dataclass(frozen=True)
class EncoderConfig:
    """One encoder. `image_embedding` is a family of `image_embeddings.IMAGE_EMBEDDINGS`, or of
    `registry.CLASSES`."""

    name: str
    image_embedding: str
    tokenizer: str  # hub id of the tokenizer of its text model
    vocab_size: int
    layout: tuple[Sublayer, ...] = single_stream(12)

    text_model: str = "bert"  # or "xlm-roberta", whose positions count from pad_id + 1
    max_positions: int = 512
    text_types: int = 2  # rows of the segment table; the segment of a text is 0
    separator_id: int | None = None  # what stands behind it is of segment 1
    tagged: tuple[str, ...] = ()  # heads whose texts are followed by the names of the objects in the picture
    pad_id: int = 0
    text: StreamConfig = field(default_factory=StreamConfig)

    feature_dim: int = 2048
    location_dim: int = 5
    image_types: int = 0  # rows of a segment table of the image's own; 0: row 1 of the text's
    coordinate_dim: int = 256  # vl-bert: sines per coordinate
    image_norm: bool = True  # oscar: whether the image's vectors are normalised
    image: StreamConfig = field(default_factory=StreamConfig)

    # What the region reader has to hand over, see `collation`.
    regions: int = 36
    global_region: str = "first"  # where the mean region is: "first", "last" or "none"
    normalize: bool = False  # features and locations of length 1

    pool_size: int = 1024
    pool_activation: str = "relu"
    fusion: str = "mul"  # of the two pooled vectors: "mul", "sum" or "text" (the text's alone)
    classifier_size: int = 1536
    deep_heads: tuple[str, ...] = ()  # oscar: heads with a hidden layer of `classifier_size`
    retrieval_loss: str = "cross_entropy"  # or "triplet", or "binary" for each pair by itself
    adapters: tuple[int, int] | None = None  # oscar: widths of those of languages and of the task
    frozen: tuple[str, ...] = ()  # how names of parameters begin that are not trained, once a checkpoint is loaded
    any_vocabulary: bool = False  # the word table is as long as the checkpoint's
    norm_eps: float = 1e-12
    init_std: float = 0.02

    def __post_init__(self):
        choices = {
            "text_model": ("bert", "xlm-roberta"),
            "global_region": ("first", "last", "none"),
            "fusion": ("mul", "sum", "text"),
            "pool_activation": ("relu", "tanh"),
            "retrieval_loss": ("cross_entropy", "triplet", "binary"),
        }
        for key, allowed in choices.items():
            if getattr(self, key) not in allowed:
                listing = ", ".join(map(str, allowed))
                raise UsageError(f"encoder {self.name}: {key} is {getattr(self, key)!r}; choose one of {listing}")
        for n, step in enumerate(self.layout):
            if step.crosses and len(step.streams) < 2:
                raise UsageError(f"encoder {self.name}: sublayer {n} attends to a stream without a part in it: {step}")
            if step.shared and len(step.streams) == 2 and self.text.hidden != self.image.hidden:
                raise UsageError(
                    f"encoder {self.name}: sublayer {n} is shared, but text is {self.text.hidden} wide and "
                    f"image {self.image.hidden}"
                )
            if isinstance(step, Attention):
                self._check_heads(n, step)

    def _check_heads(self, n: int, step: Attention) -> None:
        sizes = {name: self.attention_size(step, name) for name in step.streams}
        for name, (width, heads) in sizes.items():
            if width % heads:
                raise UsageError(f"encoder {self.name}: sublayer {n}: {heads} heads do not divide {name}'s {width}")
        if step.crosses and len({(width // heads, heads) for width, heads in sizes.values()}) > 1:
            raise UsageError(f"encoder {self.name}: sublayer {n} crosses streams of different heads: {sizes}")

    def attention_size(self, step: Attention, stream: str) -> tuple[int, int]:
        """(width, heads) of one side of an attention sublayer."""
        own: StreamConfig = getattr(self, stream)
        width, heads = getattr(step, f"{stream}_width"), getattr(step, f"{stream}_heads")
        return width or own.hidden, heads or own.heads

    @property
    def collation(self) -> dict[str, int | str | bool]:
        """Options with which `RegionLoader` and `collate_regions` make batches for this encoder."""
        return {
            "max_regions": self.regions + (self.global_region != "none"),
            "num_locations": self.location_dim,
            "global_region": self.global_region,
            "normalize": self.normalize,
        }

    @property
    def joint(self) -> bool:
        """A single-stream encoder: every sublayer works on the concatenation of both streams."""
        return all(step.joint for step in self.layout)

    @property
    def first_crossing(self) -> int:
        """Sublayers before this one see one stream only, so their results can be kept per text and per image."""
        return next((n for n, step in enumerate(self.layout) if step.crosses), len(self.layout))

    @property
    def last_attention(self) -> int:
        """From here on a position depends on no other: only what the poolers read has to be computed."""
        return max(n for n, step in enumerate(self.layout) if isinstance(step, Attention))

    @property
    def max_text(self) -> int:
        """Longest text, in tokens, that the position table allows; the image may leave less (vl-bert, m3p)."""
        return self.max_positions - (self.pad_id + 1 if self.text_model == "xlm-roberta" else 0)
