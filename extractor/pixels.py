"""From a Pillow image of any mode to upright RGB pixels; the rules are stated in `images`."""

from __future__ import annotations

import contextlib
import io
import struct
from functools import cache

import numpy as np
from PIL import Image, ImageFile, JpegImagePlugin, TiffImagePlugin

from .image_formats import Unsupported, explain

_ORIENTATION, _NEW_SUBFILE_TYPE, _BITS_PER_SAMPLE, _PHOTOMETRIC = 274, 254, 258, 262  # TIFF and EXIF tags
_DECODED_BY_ROWS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "DIB", "PPM", "TIFF")  # the others are all or nothing
_TURN = Image.Transpose
# EXIF orientation -> the transposition that makes the picture upright, and the one that undoes it
_UPRIGHT = {
    2: (_TURN.FLIP_LEFT_RIGHT, _TURN.FLIP_LEFT_RIGHT),
    3: (_TURN.ROTATE_180, _TURN.ROTATE_180),
    4: (_TURN.FLIP_TOP_BOTTOM, _TURN.FLIP_TOP_BOTTOM),
    5: (_TURN.TRANSPOSE, _TURN.TRANSPOSE),
    6: (_TURN.ROTATE_270, _TURN.ROTATE_90),
    7: (_TURN.TRANSVERSE, _TURN.TRANSVERSE),
    8: (_TURN.ROTATE_90, _TURN.ROTATE_270),
}


def rgb_pixels(im: Image.Image, *, upright: bool, keep: bool, encoded: bytes | None = None) -> np.ndarray:
    """RGB uint8 [H,W,3], contiguous and read-only, of an image that may not have been loaded yet.

    Args:
        im: the image; its header has been checked against the size limit.
        upright: apply the EXIF orientation.
        keep: keep what decoded of a file that ends early.
        encoded: the encoded file, where there is one.

    Raises whatever the decoder raises.
    """
    if isinstance(im, TiffImagePlugin.TiffImageFile):
        turn = _load_tiff(im, upright, keep, encoded)
    else:
        im = _load(im, keep, encoded)
        turn = _UPRIGHT.get(_exif_orientation(im), (None,))[0] if upright else None
    rgb = _to_rgb(_to_8_bits(im, encoded))
    if turn is not None:
        rgb = rgb.transpose(turn)
    return np.asarray(rgb)


def _load(im: Image.Image, keep: bool, encoded: bytes | None = None) -> Image.Image:
    """Decode. With `keep`, a file that ends early gives what is left of it, unless that is next to nothing."""
    try:
        im.load()
        return im
    except Exception as error:
        cut = explain(error, im.format, encoded)[0] == "truncated"
        if keep and cut and im.format in _DECODED_BY_ROWS:
            with contextlib.suppress(Exception):
                rest = _rest(im, encoded)
                lower = rest.crop((0, min(16, rest.height - 1), *rest.size))  # below the first row of JPEG blocks
                bands = lower.getextrema() if len(lower.getbands()) > 1 else [lower.getextrema()]
                if any(low != high for low, high in bands):
                    return rest
        raise


def _rest(im: ImageFile.ImageFile, encoded: bytes | None) -> ImageFile.ImageFile:
    """What decoded of an image whose loading failed."""
    if im.format == "JPEG" and encoded is not None:
        # With an end mark libjpeg fills what is missing, and a progressive file shows the scans it has.
        im = JpegImagePlugin.JpegImageFile(io.BytesIO(encoded + b"\xff\xd9"))
    else:
        im.tile = []  # nothing more to decode: the rows that were decoded are in the image
        with contextlib.suppress(Exception):
            im.load_end()
    im.load()
    return im


def _load_tiff(
    im: TiffImagePlugin.TiffImageFile, upright: bool, keep: bool, encoded: bytes | None
) -> Image.Transpose | None:
    """Decode, and return the transposition that is left to do: Pillow makes a TIFF upright while loading it."""
    if im.tag_v2.get(_NEW_SUBFILE_TYPE, 0) & 1:
        raise Unsupported("its first picture is the preview of a raw camera file: convert it to JPEG or PNG")
    orientation = im.tag_v2.get(_ORIENTATION)
    if im.tile:  # with the memory there, Pillow does not hold the size against its process-wide limit
        size = im.size[::-1] if orientation in (5, 6, 7, 8) else im.size
        im.im = Image.new(im.mode, size, None).im
    _load(im, keep, encoded)
    return None if upright else _UPRIGHT.get(orientation, (None, None))[1]


def _exif_orientation(im: Image.Image) -> int | None:
    block = im.info.get("exif")
    if not block:
        return None
    exif = Image.Exif()
    try:
        exif.load(block)
        return exif.get(_ORIENTATION)
    except Exception:  # damaged EXIF says nothing about the orientation
        return None


@cache
def _scale_to_8_bits(white: int) -> np.ndarray:
    """Table from 0..65535 to round(255 v / white)."""
    values = np.minimum(np.arange(65536, dtype=np.uint32), white)
    return ((values * 255 + white // 2) // white).astype(np.uint8)


def _to_8_bits(im: Image.Image, encoded: bytes | None) -> Image.Image:
    tags = getattr(im, "tag_v2", {})
    if im.mode.startswith("I;16") or (im.mode == "I" and im.format in ("PNG", "PPM")):
        values = np.asarray(im)
        grey = _scale_to_8_bits(4095 if tags.get(_BITS_PER_SAMPLE) == (12,) else 65535)[values]
        if tags.get(_PHOTOMETRIC) == 0:  # white is zero; Pillow inverts this for 8 bits only
            grey = 255 - grey
        transparent = im.info.get("transparency")
        if isinstance(transparent, int):
            grey[values == transparent] = 255
        return Image.fromarray(grey)
    if im.mode in ("I", "F"):
        raise Unsupported("32-bit samples have no agreed white, save it with 8 or 16 bits")
    if im.format == "PNG" and encoded is not None and encoded[24] == 16:
        return _deep_png(encoded, im.size) or im
    return im


def _deep_png(encoded: bytes, size: tuple[int, int]) -> Image.Image | None:
    """16-bit colour, of which Pillow keeps the high byte only; None if OpenCV cannot decode it."""
    import cv2

    # Of the file OpenCV gets only the chunks that matter: it allocates what a damaged chunk claims as its length.
    chunks, at = [encoded[:33]], 33
    if struct.unpack(">II", encoded[16:24]) != size:
        return None
    while at < len(encoded):
        end = at + 12 + int.from_bytes(encoded[at : at + 4], "big")
        if encoded[at + 4 : at + 8] in (b"IDAT", b"tRNS") and end <= len(encoded):
            chunks.append(encoded[at:end])
        at = end
    png = b"".join([*chunks, b"\0\0\0\0IEND\xaeB`\x82"])
    try:
        values = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    if values is None or values.dtype != np.uint16 or values.shape[:2] != size[::-1] or values.ndim != 3:
        return None
    to_rgb = cv2.COLOR_BGR2RGB if values.shape[2] == 3 else cv2.COLOR_BGRA2RGBA
    return Image.fromarray(cv2.cvtColor(_scale_to_8_bits(65535)[values], to_rgb))


def _to_rgb(im: Image.Image) -> Image.Image:
    if not im.has_transparency_data:
        return im if im.mode == "RGB" else im.convert("RGB")
    if im.mode == "La":
        im = im.convert("LA")
    rgba = im.convert("RGBA")
    white = Image.new("RGB", im.size, "white")
    white.paste(rgba, mask=rgba.getchannel("A"))
    return white
