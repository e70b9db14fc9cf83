"""Decoding: the same pixels by every route, and an exact failure kind for everything else."""

import errno
import io
import os
import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
import xxhash
from PIL import Image

from cache import FAILURE_KINDS, Failure, RoivaultError, UsageError
from extractor import images
from extractor.images import DecodePolicy, ImageError, decode, pixel_count, read

RNG = np.random.default_rng(2)
PHOTO = cv2.resize(RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8), (180, 120), interpolation=cv2.INTER_CUBIC)


def encode(image, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, format, **options)
    return file.getvalue()


def failure(source) -> Failure:
    with pytest.raises(ImageError) as error:
        decode(source, "the key")
    found = error.value.failure()
    assert found.key == "the key" and found.kind in FAILURE_KINDS and found.message
    assert "the key" in str(error.value) and found.message in str(error.value)
    return found


# ---- routes


def test_every_route_gives_the_same_pixels(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    data = encode(PHOTO, "JPEG")
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    with fsspec.open("memory://photos/photo.jpg", "wb") as file:
        file.write(data)
    routes = [path, str(path), data, bytearray(data), memoryview(data), path.as_uri(), "memory://photos/photo.jpg"]
    decoded = [decode(route, "k") for route in routes]
    assert {d.source_digest for d in decoded} == {xxhash.xxh3_128(data).digest()}
    decoded += [decode(Image.open(path), "k"), decode(decoded[0].rgb, "k")]
    assert [d.source_digest for d in decoded[-2:]] == [None, None]
    for image in decoded:
        assert np.array_equal(image.rgb, decoded[0].rgb)
        assert (image.height, image.width) == (120, 180)
        assert image.rgb.flags.c_contiguous and not image.rgb.flags.writeable


def test_http(tmp_path):
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    import functools
    import http.server
    import threading

    (tmp_path / "photo.jpg").write_bytes(encode(PHOTO, "JPEG"))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}/"
        assert np.array_equal(decode(root + "photo.jpg", "k").rgb, decode(tmp_path / "photo.jpg", "k").rgb)
        assert failure(root + "other.jpg").kind == "missing"
        server.shutdown()


@pytest.mark.parametrize("format", ["PNG", "BMP", "GIF", "TIFF", "PPM"])
def test_red_is_red(format, tmp_path):
    path = tmp_path / "red"
    path.write_bytes(encode(Image.new("RGB", (64, 64), (255, 0, 0)), format))
    for source in (path, path.read_bytes(), Image.open(path)):
        assert (decode(source, "k").rgb == (255, 0, 0)).all()


def test_the_content_decides_not_the_name(tmp_path):
    path = tmp_path / "really_a_png.jpg"
    path.write_bytes(encode(PHOTO))
    assert np.array_equal(decode(path, "k").rgb, PHOTO)
    path.write_text("<html><body>404 Not Found</body></html>")
    found = failure(path)
    assert (found.kind, found.source) == ("not_an_image", str(path))
    assert "HTML" in found.message


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 9}, {"subsampling": 0}, {"subsampling": 1}])
def test_jpeg_pixels_equal_those_of_opencv(options):
    for image in (PHOTO, PHOTO[:-3, :-5], PHOTO[..., 0]):
        data = encode(np.ascontiguousarray(image), "JPEG", **options)
        assert np.array_equal(decode(data, "k").rgb, cv2.imdecode(np.frombuffer(data, np.uint8), 1)[..., ::-1])


@pytest.mark.parametrize("shape", [(1, 1), (600, 20000), (9000, 3)])
def test_odd_sizes(shape):
    image = np.resize(PHOTO, (*shape, 3))
    assert np.array_equal(decode(encode(image, "BMP"), "k").rgb, image)
    assert np.array_equal(decode(image, "k").rgb, image)


def test_arrays():
    view = PHOTO[::-2, ::3]
    decoded = decode(view, "k")
    assert np.array_equal(decoded.rgb, view) and decoded.rgb.flags.c_contiguous
    assert PHOTO.flags.writeable


@pytest.mark.parametrize(
    ("array", "remedy"),
    [
        (PHOTO[..., 0], "np.repeat"),
        (PHOTO.astype(np.float32), "float32"),
        (PHOTO.transpose(2, 0, 1), "transpose"),
        (np.dstack([PHOTO, PHOTO[..., 0]]), "alpha"),
        (PHOTO[:0], r"\(0, 180, 3\)"),
        (np.frombuffer(encode(PHOTO), np.uint8), r"uint8 \[H,W,3\]"),
    ],
)
def test_other_arrays_are_wrong_usage(array, remedy):
    with pytest.raises(UsageError, match=remedy):
        decode(array, "k")


@pytest.mark.parametrize("source", [None, 3, ["a.jpg"]])
def test_other_sources_are_wrong_usage(source):
    with pytest.raises(UsageError, match="not an image source"):
        decode(source, "k")


# ---- files that cannot be read


def test_missing_files(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "none.jpg", tmp_path / "file" / "below.jpg", ""):
        assert failure(path).kind == "missing"
    pytest.importorskip("fsspec")
    assert failure("memory://photos/none.jpg").kind == "missing"


def test_unreadable_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    for path in (tmp_path, tmp_path / "pipe.jpg", tmp_path / "loop.jpg", "/dev/null", "a\0b.jpg", "x" * 5000):
        assert failure(path).kind == "unreadable"
    assert "ymbolic links" in failure(tmp_path / "loop.jpg").message


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_errors_of_the_filesystem_are_named(code, monkeypatch, tmp_path):
    def refuse(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(images.os, "open", refuse)
    found = failure(tmp_path / "photo.jpg")
    assert found.kind == "unreadable" and os.strerror(code) in found.message


def test_names_that_are_not_text(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.jpg"
    Path(os.fsdecode(path)).write_bytes(b"no picture")
    assert failure(os.fsdecode(path)).source.endswith("caf%E9.jpg")


@pytest.mark.parametrize("source", [b"", Path("empty.jpg")])
def test_empty_files(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.jpg").touch()
    assert failure(source).kind == "empty"


def test_unknown_protocol():
    pytest.importorskip("fsspec")
    assert failure("gopher9://host/photo.jpg").kind == "unreadable"


# ---- the rest


@pytest.mark.parametrize(("error", "kind"), [(RuntimeError("boom"), "decode_error"), (MemoryError(), "out_of_memory")])
def test_whatever_a_decoder_raises_is_a_failure(error, kind, monkeypatch):
    def fail(*args):
        raise error

    monkeypatch.setattr(images, "open_header", fail)
    found = failure(encode(PHOTO))
    assert found.kind == kind
    assert kind != "decode_error" or type(error).__name__ in found.message


def test_image_error_is_a_value_that_travels():
    error = ImageError("k", "truncated", "the file ends early", "/data/k.jpg")
    again = pickle.loads(pickle.dumps(error))
    assert again.failure() == error.failure() == Failure("k", "truncated", "the file ends early", "/data/k.jpg")
    assert str(again) == str(error) and "/data/k.jpg" in str(error) and isinstance(error, RoivaultError)


@pytest.mark.parametrize("options", [{"orientation": "rotate"}, {"truncated": "skip"}, {"max_pixels": 0}])
def test_policy_is_validated(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        DecodePolicy(**options)


def test_read_gives_the_bytes_that_decode_reads(tmp_path):
    path = tmp_path / "photo"
    path.write_bytes(b"\xff\xd8\xff and so on" * 500)
    assert read(str(path), "k") == path.read_bytes()
    with pytest.raises(ImageError) as error:
        read(str(tmp_path), "k")
    assert error.value.kind == "unreadable"


def test_pixel_count():
    for format in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"):
        assert pixel_count(encode(PHOTO, format)) == 180 * 120
    assert {pixel_count(data) for data in (b"", b"text, no picture at all", encode(PHOTO)[:20])} == {0}
