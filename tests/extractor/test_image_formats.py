"""What a file is, from its content."""

import io
import struct

import cv2
import numpy as np
import pytest
from PIL import Image

from cache import FAILURE_KINDS
from extractor.image_formats import HEAD, explain, sniff

PILLOW_NAMES = {"JPEG": "JPEG", "PNG": "PNG", "GIF": "GIF", "WEBP": "WebP", "TIFF": "TIFF", "BMP": "BMP", "PPM": "PNM"}


def saved(format: str, mode: str = "RGB", **options) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (9, 7), 90 if mode == "L" else None).save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize(("pillow_name", "name"), [*PILLOW_NAMES.items(), ("JPEG2000", "JPEG 2000"), ("DIB", None)])
def test_formats_that_are_decoded(pillow_name, name):
    assert sniff(saved(pillow_name)[:HEAD]).format == name


def test_jpeg_2000_codestream():
    assert sniff(saved("JPEG2000", no_jp2=True)).format == "JPEG 2000"


@pytest.mark.parametrize("extension", [".tiff", ".bmp", ".png", ".webp", ".pgm", ".pbm"])
def test_files_that_opencv_writes(extension):
    data = cv2.imencode(extension, np.zeros((3, 4), np.uint8))[1].tobytes()
    assert sniff(data + bytes(12)).format is not None


ISO = b"\0\0\0\x18ftyp"


@pytest.mark.parametrize(
    ("head", "kind", "words"),
    [
        (b"<!DOCTYPE html><html><body>404 <svg></svg></body></html>", "not_an_image", "HTML"),
        (b"\xef\xbb\xbf\n  <HTML lang='en'>not found</HTML>", "not_an_image", "HTML"),
        (b"Sorry, this picture is gone.\n", "not_an_image", "text"),
        ("Dieses Bild fehlt – schade\n".encode(), "not_an_image", "text"),
        (b'{"error": "rate limited"}', "not_an_image", "text"),
        (b'<?xml version="1.0"?>\n<!-- x -->\n<svg xmlns="http://www.w3.org/2000/svg"/>', "unsupported", "vector"),
        (b"<svg width='10' height='10'></svg>", "unsupported", "vector"),
        (b"%PDF-1.7\n%....", "not_an_image", "PDF"),
        (b"PK\x03\x04" + bytes(20), "not_an_image", "zip"),
        (b"\x1f\x8b\x08" + bytes(20), "not_an_image", "gzip"),
        (b"\x1a\x45\xdf\xa3" + bytes(20), "not_an_image", "video"),
        (ISO + b"isom\0\0\2\0isomiso2", "not_an_image", "video"),
        (ISO + b"qt  \0\0\2\0qt  ....", "not_an_image", "video"),
        (ISO + b"heic\0\0\0\0mif1heic", "unsupported", "HEIC"),
        (ISO + b"mif1\0\0\0\0mif1heic", "unsupported", "HEIC"),
        (b"RIFF\x10\0\0\0AVI LIST" + bytes(8), "not_an_image", "AVI"),
        (b"\xff\x0a" + bytes(20), "unsupported", "JPEG XL"),
        (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(20), "unsupported", "JPEG XL"),
        (b"8BPS\0\1" + bytes(20), "unsupported", "Photoshop"),
        (b"II*\0\x10\0\0\0CR\2\0" + bytes(20), "unsupported", "raw camera"),
        (b"v/1\x01" + bytes(20), "unsupported", "OpenEXR"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "not_an_image", "git lfs pull"),
        (bytes(500), "not_an_image", "zero bytes"),
        (bytes(range(7, 200)), "not_an_image", "no picture format"),
        (b"\xff\xd8\xff", "not_an_image", "only 3 bytes"),
        (b"BM, the brand, is two letters.", "not_an_image", "text"),
    ],
)
def test_files_that_are_not_decoded(head, kind, words):
    found = sniff(head)
    assert (found.format, found.kind) == (None, kind)
    assert words in found.reason


def test_avif_by_its_compatible_brands():
    from PIL import features

    found = sniff(struct.pack(">I", 28) + b"ftypmif1\0\0\0\0mif1avifmiaf")
    assert found.format == "AVIF" if features.check("avif") else "AVIF" in found.reason


def test_every_head_gets_an_answer():
    rng = np.random.default_rng(5)
    heads = [saved(name) for name in PILLOW_NAMES]
    for i in range(3000):
        head = bytearray(heads[i % len(heads)][: rng.integers(0, 60)])
        for at in rng.integers(0, len(head), 3) if head else ():
            head[at] = rng.integers(0, 256)
        found = sniff(bytes(head))
        assert found.format is not None or (found.kind in FAILURE_KINDS and found.reason)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "out_of_memory"),
        (Image.DecompressionBombError("big"), "too_large"),
        (ValueError("Decompressed data too large for PngImagePlugin.MAX_TEXT_CHUNK"), "too_large"),
        (OSError("image file is truncated (3 bytes not processed)"), "truncated"),
        (SyntaxError("Unsupported BMP pixel depth (7)"), "unsupported"),
        (RuntimeError("boom"), "decode_error"),
    ],
)
def test_what_decoders_raise_becomes_a_kind(error, kind):
    found, message = explain(error, "PNG")
    assert found == kind
    assert kind != "decode_error" or "RuntimeError: boom" in message
