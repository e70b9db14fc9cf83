import io
import itertools
import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import extractor.extractor as module
from cache import Failure, InputNotFound, Regions, UsageError
from extractor.devices import exact_numerics, resolve_device, resolve_precision
from extractor.extractor import Extractor, load_extractor
from extractor.images import DecodePolicy, ImageError


def same(a: Regions, b: Regions, digest: bool = True) -> bool:
    mine, theirs = a.arrays(), b.arrays()
    equal = mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)
    return equal and (a.width, a.height) == (b.width, b.height) and (not digest or a.source_digest == b.source_digest)


def png(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_record_does_not_depend_on_its_company(small_extractor, pictures):
    alone = [small_extractor([picture])[0] for picture in pictures]
    assert all(len(regions) for regions in alone)
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 17):
        together = small_extractor([pictures[i] for i in order])
        assert all(same(together[place], alone[i]) for place, i in enumerate(order))
    decoded = [small_extractor.decode(picture, "k") for picture in pictures]
    assert all(same(a, b) for a, b in zip(small_extractor.extract(decoded, list("abcde")), alone, strict=True))


def test_path_bytes_pil_and_array_give_the_same_record(small_extractor, pictures, tmp_path):
    data = png(pictures[0])
    (tmp_path / "a.png").write_bytes(data)
    routes = [tmp_path / "a.png", str(tmp_path / "a.png"), data, Image.open(io.BytesIO(data)), pictures[0]]
    results = small_extractor(routes)
    assert all(same(results[0], other, digest=False) for other in results[1:])
    assert results[0].source_digest == results[1].source_digest == results[2].source_digest
    assert results[4].source_digest is None
    assert [r.key for r in results] == [str(tmp_path / "a.png"), str(tmp_path / "a.png"), "2", "3", "4"]


def test_records_are_complete_and_inside_the_image(small_extractor, pictures):
    for picture, regions in zip(pictures, small_extractor(pictures, keys=list("abcde")), strict=True):
        assert (regions.height, regions.width) == picture.shape[:2]
        assert regions.features.shape == (len(regions), small_extractor.dim) and regions.features.dtype == np.float32
        assert (regions.boxes >= 0).all() and (regions.boxes[:, 2::2] <= regions.width).all()
        assert (regions.boxes[:, 3] <= regions.height).all()
        assert (np.diff(regions.scores) <= 0).all()
        assert (regions.class_ids < len(small_extractor.classes)).all() and (regions.attr_ids >= 0).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (2, 5), (600, 20000)])
def test_extreme_shapes_are_described(small_extractor, size):
    regions = small_extractor([np.full((*size, 3), 128, np.uint8)])[0]
    assert isinstance(regions, Regions) and (regions.height, regions.width) == size


def test_a_bad_image_raises_or_takes_its_place(small_extractor, pictures):
    images = [pictures[0], b"<html>not found</html>", pictures[1]]
    with pytest.raises(ImageError) as caught:
        small_extractor(images, keys=["a", "b", "c"])
    assert caught.value.key == "b" and caught.value.kind == "not_an_image"
    first, failure, last = small_extractor(images, keys=["a", "b", "c"], on_error="return")
    assert isinstance(failure, Failure) and failure.key == "b"
    assert same(first, small_extractor([pictures[0]])[0]) and same(last, small_extractor([pictures[1]])[0])


def test_given_boxes_are_described_as_they_are(small_extractor, pictures):
    boxes = np.array([[10, 10, 60, 50], [0, 0, 160, 120]], np.float32)
    given, detected = small_extractor([pictures[0], pictures[1]], boxes=[boxes, None])
    assert np.array_equal(given.boxes, boxes) and given.features.shape == (2, small_extractor.dim)
    assert same(detected, small_extractor([pictures[1]])[0])
    alone = small_extractor([pictures[0]], boxes=[boxes[1:]])[0]
    assert np.array_equal(alone.features[0], given.features[1])


@pytest.mark.parametrize(
    "boxes", [[[10, 10, 10, 30]], [[5, 5, 9, 9], [8, 8, 2, 9]], [[0, 0, np.nan, 3]], [], [[1, 2, 3]]]
)
def test_degenerate_boxes_are_refused_by_key(small_extractor, pictures, boxes):
    with pytest.raises(ImageError) as caught:
        small_extractor([pictures[0]], boxes=[np.array(boxes, np.float32)], keys=["x"])
    assert caught.value.kind == "bad_boxes" and caught.value.key == "x"


def test_boxes_too_large_for_any_image_are_refused(small_extractor, pictures):
    """Scaled to the network's input they would be no numbers, which torchvision's pooling does not survive."""
    wide = np.array([[0, 0, 9, 9], [-4e9, -4e9, 4e9, 4e9]], np.float32)
    assert len(small_extractor([pictures[0]], boxes=[wide])[0]) == 2
    for box in ([1e30, 1e30, 3e38, 3e38], [-1e10, 0, 9, 9]):
        boxes = np.array([[0, 0, 9, 9], box], np.float32)
        with pytest.raises(ImageError, match="box 1 is .*: no image is that large") as caught:
            small_extractor([pictures[0]], boxes=[boxes], keys=["x"])
        assert caught.value.kind == "bad_boxes" and caught.value.key == "x"


def test_wrong_arguments_are_refused(small_extractor, pictures):
    for arguments in [{"keys": ["a"]}, {"boxes": [None]}, {"on_error": "ignore"}]:
        with pytest.raises(UsageError):
            small_extractor(pictures[:2], **arguments)
    with pytest.raises(UsageError, match=r"\[ \]"):
        small_extractor("photo.jpg")
    assert small_extractor([]) == []


def test_when_memory_runs_out_the_image_becomes_a_failure(small_extractor, pictures, monkeypatch):
    def detect(images, *_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(small_extractor._network, "detect", detect)
    failures = small_extractor(pictures[:2], keys=["a", "b"], on_error="return")
    assert [(f.key, f.kind) for f in failures] == [("a", "out_of_memory"), ("b", "out_of_memory")]


def test_a_bug_is_not_mistaken_for_a_bad_image(small_extractor, pictures, monkeypatch):
    def detect(images, *_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(small_extractor._network, "detect", detect)
    with pytest.raises(RuntimeError, match="mat1"):
        small_extractor(pictures[:1], on_error="return")


def test_a_gpu_out_of_memory_is_retried_in_smaller_passes(small_extractor, pictures, monkeypatch):
    seen, detect, batches = [], small_extractor._network.detect, []

    def limited(images, rois, chunk):
        assert not any(batch() is not None for batch in batches), "a failed attempt still holds its memory"
        batches.append(weakref.ref(images))
        seen.append((len(images), chunk))
        if len(images) * chunk > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return detect(images, rois, chunk)

    monkeypatch.setattr(small_extractor._network, "detect", limited)
    monkeypatch.setattr(small_extractor, "device", type("Device", (), {"type": "cuda"})())
    monkeypatch.setattr(module.torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *a, **k: self)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    images = [small_extractor.decode(pictures[0], "k")] * 8
    results = small_extractor.extract(images, list("abcdefgh"))
    assert all(isinstance(r, Regions) for r in results) and [r.key for r in results] == list("abcdefgh")
    assert seen[:5] == [(8, 16), (8, 8), (8, 4), (8, 2), (8, 1)] and (4, 1) in seen


def test_numeric_settings_are_restored(small_extractor, pictures):
    backends = torch.backends
    products = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)
    before = [p.fp32_precision for p in products]
    try:
        backends.mkldnn.matmul.fp32_precision = "bf16"
        with pytest.raises(ZeroDivisionError), exact_numerics():
            assert all(p.fp32_precision == "ieee" for p in products) and not backends.cudnn.benchmark
            1 / 0  # noqa: B018
        assert backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        for product, value in zip(products, before, strict=True):
            product.fp32_precision = value


def test_devices_and_precisions_are_checked():
    assert resolve_device("cpu").type == "cpu" and resolve_precision("auto") == "float32"
    for wrong in ("tpu", "cuda:99", "meta"):
        with pytest.raises(UsageError):
            resolve_device(wrong)
    with pytest.raises(UsageError, match="int4"):
        resolve_precision("int4")


def test_the_fingerprint_tells_everything_that_may_change_a_byte(small_extractor, small_preset, small_weights):
    prints = small_extractor.fingerprint()
    assert prints["weights_sha256"] == small_extractor.weights_sha256 and len(prints["weights_sha256"]) == 64
    assert {"preset", "preset_revision", "precision", "orientation", "truncated", "max_pixels"} <= prints.keys()


def test_loading_names_what_is_missing(tmp_path):
    with pytest.raises(UsageError, match="nonsense"):
        load_extractor("nonsense")
    with pytest.raises(InputNotFound, match=r"gone\.safetensors"):
        load_extractor("demo", weights=tmp_path / "gone.safetensors")


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_company_does_not_matter_in_any_precision(small_preset, small_weights, pictures, precision):
    extractor = Extractor(small_preset, small_weights, "cpu", precision, DecodePolicy())
    alone = [extractor([picture])[0] for picture in pictures[:3]]
    for order in itertools.permutations(range(3)):
        together = extractor([pictures[i] for i in order])
        assert all(same(together[place], alone[i]) for place, i in enumerate(order))


def test_lower_precisions_keep_boxes_and_ranks_exact_enough(small_preset, small_weights, pictures):
    def features(precision):
        extractor = Extractor(small_preset, small_weights, "cpu", precision, DecodePolicy())
        return extractor(pictures[:1], boxes=[np.array([[10, 10, 90, 80], [0, 0, 160, 120]])])[0].features

    reference = features("float32")
    for precision in ("bfloat16", "float16"):
        assert not np.array_equal(features(precision), reference)
        cosine = (features(precision) * reference).sum(1)
        cosine /= np.linalg.norm(reference, axis=1) * np.linalg.norm(features(precision), axis=1)
        assert (cosine > 0.999).all()


def test_an_image_that_overflows_a_lower_precision_runs_in_float32(small_preset, small_weights, pictures, tmp_path):
    state = load_file(small_weights)
    state["backbone.stem.conv1.weight"] *= 1e5  # beyond what float16 can hold, not float32
    save_file(state, str(tmp_path / "large.safetensors"))
    arguments = (small_preset, tmp_path / "large.safetensors", "cpu")
    boxes = [np.array([[10, 10, 90, 80]], np.float32)]
    expected = Extractor(*arguments, "float32", DecodePolicy())(pictures[:1], boxes=boxes)
    found = Extractor(*arguments, "float16", DecodePolicy())(pictures[:1], boxes=boxes)
    assert same(found[0], expected[0])


def test_maps_that_are_not_finite_in_float32_are_a_failure(small_preset, small_weights, pictures, tmp_path):
    state = load_file(small_weights)
    state["backbone.stem.conv1.weight"] *= 1e38
    save_file(state, str(tmp_path / "infinite.safetensors"))
    extractor = Extractor(small_preset, tmp_path / "infinite.safetensors", "cpu", "float32", DecodePolicy())
    failure = extractor(pictures[:1], keys=["a"], on_error="return")[0]
    assert isinstance(failure, Failure) and (failure.key, failure.kind) == ("a", "non_finite")
