"""What a file is, told from its first bytes and never from its name, and how each picture format is opened.

`sniff` separates pictures that can be decoded from everything else and says why the rest cannot. Opening goes through
Pillow's format classes rather than `PIL.Image.open`: that function applies the process-wide `Image.MAX_IMAGE_PIXELS`,
which is neither roivault's limit nor roivault's to change.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import NamedTuple

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
    features,
)

HEAD = 4096  # bytes that `sniff` wants to see

# JpegImageFile itself, not Pillow's factory: the first picture of a multi-picture file is wanted, the others are not.
_OPENERS: dict[str, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "PNM": PpmImagePlugin.PpmImageFile,
    "JPEG 2000": Jpeg2KImagePlugin.Jpeg2KImageFile,
}
if features.check("avif"):
    from PIL import AvifImagePlugin

    _OPENERS["AVIF"] = AvifImagePlugin.AvifImageFile


class Unsupported(ValueError):
    """A picture that decodes, but for whose samples there is no rule."""


class Sniffed(NamedTuple):
    """`format` is a picture format, or None with the failure kind and the reason."""

    format: str | None
    kind: str = ""
    reason: str = ""


def _unsupported(what: str) -> Sniffed:
    return Sniffed(None, "unsupported", f"{what} cannot be decoded: convert it to JPEG or PNG")


def _not_an_image(what: str) -> Sniffed:
    return Sniffed(None, "not_an_image", f"the content is {what}, not a picture")


_MAGIC: tuple[tuple[bytes, Sniffed], ...] = (
    (b"\xff\xd8\xff", Sniffed("JPEG")),
    (b"\x89PNG\r\n\x1a\n", Sniffed("PNG")),
    (b"GIF87a", Sniffed("GIF")),
    (b"GIF89a", Sniffed("GIF")),
    (b"II*\0", Sniffed("TIFF")),
    (b"MM\0*", Sniffed("TIFF")),
    (b"II+\0", Sniffed("TIFF")),
    (b"MM\0+", Sniffed("TIFF")),
    (b"\xff\x4f\xff\x51", Sniffed("JPEG 2000")),
    (b"\0\0\0\x0cjP  \r\n\x87\n", Sniffed("JPEG 2000")),
    (b"\xff\x0a", _unsupported("JPEG XL")),
    (b"\0\0\0\x0cJXL \r\n\x87\n", _unsupported("JPEG XL")),
    (b"8BPS", _unsupported("a Photoshop document")),
    (b"\0\0\1\0", _unsupported("an icon file")),
    (b"v/1\x01", _unsupported("OpenEXR")),
    (b"#?RADIANCE", _unsupported("Radiance HDR")),
    (b"qoif", _unsupported("QOI")),
    (b"DDS ", _unsupported("a DirectDraw texture")),
    (b"IIRO", _unsupported("a raw camera file")),
    (b"IIU\0", _unsupported("a raw camera file")),
    (b"FUJIFILMCCD-RAW", _unsupported("a raw camera file")),
    (b"%PDF-", _not_an_image("a PDF document")),
    (b"%!PS", _not_an_image("a PostScript document")),
    (b"PK\x03\x04", _not_an_image("a zip archive")),
    (b"\x1f\x8b", _not_an_image("gzip-compressed data")),
    (b"BZh", _not_an_image("bzip2-compressed data")),
    (b"7z\xbc\xaf\x27\x1c", _not_an_image("a 7z archive")),
    (b"\x28\xb5\x2f\xfd", _not_an_image("zstd-compressed data")),
    (b"\x1a\x45\xdf\xa3", _not_an_image("a video (Matroska or WebM)")),
    (b"OggS", _not_an_image("Ogg audio or video")),
    (b"FLV\x01", _not_an_image("a Flash video")),
    (b"\0\0\1\xba", _not_an_image("an MPEG video")),
    (b"ID3", _not_an_image("MP3 audio")),
    (b"\x89HDF", _not_an_image("an HDF5 file")),
    (b"\x93NUMPY", _not_an_image("a NumPy array file")),
    (b"version https://git-lfs.github.com/spec/", _not_an_image("a Git LFS pointer (run `git lfs pull`)")),
)
_UNSUPPORTED = re.compile("unsupported|not (yet )?supported|cannot handle|unknown pixel mode", re.I)
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}


def sniff(head: bytes) -> Sniffed:
    """Tell what a file is from its first `HEAD` bytes (all of it when it is shorter)."""
    if len(head) < 12:
        return _not_an_image(f"only {len(head)} bytes")
    for magic, answer in _MAGIC:
        if head.startswith(magic):
            is_canon_raw = answer.format == "TIFF" and head[8:10] == b"CR"
            return _unsupported("a raw camera file") if is_canon_raw else answer
    if head.startswith(b"RIFF"):
        return Sniffed("WebP") if head[8:12] == b"WEBP" else _not_an_image("an AVI video or another RIFF file")
    if head[4:8] == b"ftyp":
        return _sniff_iso_media(head)
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in (12, 40, 52, 56, 64, 108, 124):
        return Sniffed("BMP")
    if re.match(rb"P[1-6][\s#]", head):
        return Sniffed("PNM")
    if not head.strip(b"\0"):
        return _not_an_image("only zero bytes, as an interrupted download or copy leaves")
    return _sniff_text(head)


def _sniff_iso_media(head: bytes) -> Sniffed:
    size = int.from_bytes(head[:4], "big")
    major, compatible = head[8:12], {head[i : i + 4] for i in range(16, min(size, len(head)), 4)}
    if major in _AVIF_BRANDS or (major in _HEIF_BRANDS and compatible & _AVIF_BRANDS):
        return Sniffed("AVIF") if "AVIF" in _OPENERS else _unsupported("AVIF, which this Pillow was built without,")
    if major in _HEIF_BRANDS:
        return _unsupported("HEIC")
    if major == b"crx ":
        return _unsupported("a raw camera file")
    return _not_an_image("a video (MP4 or QuickTime)")


def _sniff_text(head: bytes) -> Sniffed:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if re.match(rb"<!doctype html|<html|<head|<body", text):
        return _not_an_image("an HTML page, as a failed download leaves")
    if text.startswith(b"<") and re.search(rb"<svg[\s>]", text):
        return _unsupported("SVG (vector graphics, it has no pixels)")
    if not re.search(rb"[\0-\x08\x0e-\x1a]", head):
        return _not_an_image("text")
    return _not_an_image("no picture format known here")


def open_header(data: bytes, format: str) -> ImageFile.ImageFile:
    """Parse the header: the result knows its size and mode and has decoded no pixel.

    Raises whatever the format class raises; `Image.DecompressionBombError` for a GIF or WebP beyond Pillow's own hard
    limit, which those two classes check themselves.
    """
    return _OPENERS[format](io.BytesIO(data))


def claimed_size(head: bytes, format: str) -> tuple[int, int] | None:
    """Size (width, height) that a WebP claims: its class allocates the canvas already when it parses the header."""
    if format != "WebP" or len(head) < 30:
        return None
    chunk, word = head[12:16], int.from_bytes(head[21:25], "little")
    if chunk == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if chunk == b"VP8L":
        return (word & 0x3FFF) + 1, (word >> 14 & 0x3FFF) + 1
    return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF


def explain(error: Exception, format: str | None, data: bytes | None = None) -> tuple[str, str]:
    """Failure kind and message for what a decoder raised; `data` is the encoded file where it is known."""
    text = str(error) or "no details"
    if isinstance(error, Unsupported):
        return "unsupported", text
    if isinstance(error, MemoryError):
        return "out_of_memory", "decoding needs more memory than there is"
    if isinstance(error, Image.DecompressionBombError):
        return "too_large", f"{text} (Pillow's limit for {format})"
    if re.search("data too large|too much memory", text, re.I):
        return "too_large", f"its metadata are larger than Pillow accepts, strip them: {text}"
    if re.search("truncated|expected to read|reached eof", text, re.I) or (data is not None and _is_cut(data, format)):
        return "truncated", f"the file ends early: {text}"
    if _UNSUPPORTED.search(text):
        return "unsupported", f"this kind of {format} cannot be decoded, convert it to JPEG or PNG: {text}"
    return "decode_error", f"damaged {format}: {type(error.__cause__ or error).__name__}: {text}"


def _is_cut(data: bytes, format: str | None) -> bool:
    """Whether a file lacks its end, by the format's own lengths and end marks."""
    if format == "JPEG":
        return b"\xff\xd9" not in data[-64:]
    if format == "PNG":
        return b"IEND" not in data[-64:]
    if format == "GIF":
        return b";" not in data[-16:]
    if format == "WebP":
        return int.from_bytes(data[4:8], "little") + 8 > len(data)
    if format == "BMP":
        return int.from_bytes(data[2:6], "little") > len(data)
    if format == "TIFF":
        order = "little" if data[:2] == b"II" else "big"
        directory = int.from_bytes(data[4:8], order)
        return directory + 2 + 12 * int.from_bytes(data[directory : directory + 2], order) > len(data)
    if format == "AVIF" or (format == "JPEG 2000" and data[:4] == b"\0\0\0\x0c"):
        at = 0  # a sequence of boxes, each with its length
        while at < len(data):
            at += max(int.from_bytes(data[at : at + 4], "big"), 8)
        return at > len(data)
    return format == "JPEG 2000" and b"\xff\xd9" not in data[-64:]
