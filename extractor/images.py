"""Decode pictures: one function for every route, so that the same picture gives the same pixels on each.

`decode` takes a path, a URL, encoded bytes, a PIL image or an array and returns contiguous RGB uint8 [H,W,3], or raises
`ImageError` with one of the failure kinds. The content decides what a file is, never its name. The rules:

* Codec: Pillow. Its JPEG pixels equal those of `cv2.imread` (libjpeg-turbo, the accurate integer transform, smooth
  chroma upsampling, in both), so features match pipelines that read with either.
* Grey is repeated to 3 channels. Palettes are expanded. CMYK and YCCK become (1 - C)(1 - K) and so on; a CMYK JPEG is
  taken as inverted, as Adobe writes it and every reader assumes.
* 16-bit grey, and 16-bit colour PNG, become round(v / 257); 12-bit grey TIFF scales its own range likewise. Other
  16-bit colour (TIFF, JPEG 2000, a PIL image) arrives from Pillow as the high byte, at most one level lower.
  32-bit integer and float samples have no agreed white and are refused.
* Alpha of any kind (RGBA, LA, a palette entry, a transparent colour) is composited on white. (OpenCV drops it.)
* Animations and multi-page files: the first frame or page. A TIFF marked as the preview of a camera file is refused.
* EXIF orientation is applied or ignored, by the policy, for JPEG, PNG, WebP, TIFF and AVIF alike. XMP is not looked at.
* ICC profiles and gamma are ignored: the stored numbers are the pixels.
* A file that ends early fails as `truncated`, or with `truncated="keep"` keeps what decoded: the rest is grey in a
  JPEG, black (in a palette, the first colour) elsewhere. It still fails when no more than the first 16 rows decoded.
  WebP, AVIF and JPEG 2000 are all or nothing. A PNG or GIF whose pixels are all there is whole without its end mark.
* The size in the header is checked against `max_pixels` before anything of that size is allocated. Pillow's settings
  for the whole process, `MAX_IMAGE_PIXELS` and `LOAD_TRUNCATED_IMAGES`, are neither used nor changed; but Pillow itself
  refuses a WebP or GIF of more than twice `MAX_IMAGE_PIXELS` (179 million pixels by default), whatever `max_pixels` is.

Peak memory is the encoded file plus 10 bytes per pixel for an ordinary photo, 14 for one that is turned upright or has
alpha or CMYK, at most 20 (WebP, 16-bit PNG). `decode` holds no state and may run in any number of threads; the codecs
release the GIL.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from PIL import Image

from cache import Failure, RoivaultError, UsageError
from cache.keys import printable

from .image_formats import HEAD, claimed_size, explain, open_header, sniff
from .pixels import rgb_pixels


@dataclass(frozen=True)
class DecodePolicy:
    """The choices of the user that change what a picture decodes to; part of a store's fingerprint.

    Attributes:
        orientation: "apply" turns the picture by its EXIF orientation, "ignore" keeps it as stored.
        truncated: "fail", or "keep" what decoded of a file that ends early.
        max_pixels: a picture with more pixels than this is the failure `too_large`.
    """

    orientation: str = "apply"
    truncated: str = "fail"
    max_pixels: int = 200_000_000

    def __post_init__(self) -> None:
        if self.orientation not in ("apply", "ignore"):
            raise UsageError(f"orientation is {self.orientation!r}: choose apply or ignore")
        if self.truncated not in ("fail", "keep"):
            raise UsageError(f"truncated is {self.truncated!r}: choose fail or keep")
        if self.max_pixels < 1:
            raise UsageError(f"max_pixels is {self.max_pixels}: choose at least 1")

    @property
    def max_bytes(self) -> int:
        """The largest file that is read: 8 bytes for each pixel allowed, and 64 MiB for metadata."""
        return 8 * self.max_pixels + 64 * 2**20


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """Pixels of one picture.

    Attributes:
        rgb: uint8 [H,W,3], RGB, C-contiguous, read-only.
        source_digest: 16 bytes, xxh3-128 of the encoded file; None when the picture was given as an array or PIL image.
    """

    rgb: np.ndarray
    source_digest: bytes | None = None

    @property
    def height(self) -> int:
        return self.rgb.shape[0]

    @property
    def width(self) -> int:
        return self.rgb.shape[1]


class ImageError(RoivaultError):
    """A picture that could not be decoded: `key`, `kind` (one of `cache.FAILURE_KINDS`), `message` and `source`."""

    def __init__(self, key: str, kind: str, message: str, source: str = ""):
        where = f" ({source})" if source and source != key else ""
        super().__init__(f"{key!r}{where}: {kind}: {message}")
        self.key, self.kind, self.message, self.source = key, kind, message, source

    def __reduce__(self):
        return type(self), (self.key, self.kind, self.message, self.source)

    def failure(self) -> Failure:
        """The same as a value, for a store's failures."""
        return Failure(self.key, self.kind, self.message, self.source)


class _Problem(Exception):
    """Kind and message of a failure, before `decode` adds the key and the source."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind, self.message = kind, message


_DEFAULT_POLICY = DecodePolicy()


def decode(source: Any, key: str, policy: DecodePolicy = _DEFAULT_POLICY) -> DecodedImage:
    """Decode one picture by the rules at the top of this module.

    Args:
        source: a path or URL (http, s3, ... through fsspec), the encoded bytes, a PIL image, or an RGB uint8 array
            [H,W,3].
        key: name of the picture, for errors.
        policy: orientation, truncation and size limit.

    Raises:
        ImageError: the picture is missing, unreadable or cannot be decoded.
        UsageError: `source` is none of the above, or an array of another shape or dtype.
    """
    if isinstance(source, np.ndarray):
        return _decode_array(source, key, policy)
    try:
        if isinstance(source, Image.Image):
            where = f"PIL image of mode {source.mode}"
            return DecodedImage(_decode_pil(source, policy))
        if isinstance(source, (str, os.PathLike)):
            path = os.fsdecode(source)
            where = printable(path)
            data = _read(path, policy)
        elif isinstance(source, (bytes, bytearray, memoryview)):
            data = bytes(source)
            where = f"{len(data)} bytes"
        else:
            raise UsageError(
                f"{key!r}: a {type(source).__name__} is not an image source: give a path, encoded bytes, "
                "a PIL image or an RGB uint8 array [H,W,3]"
            )
        return DecodedImage(_decode_bytes(data, policy), xxhash.xxh3_128(data).digest())
    except _Problem as problem:
        raise ImageError(key, problem.kind, problem.message, where) from problem.__cause__


def read(path: str, key: str, policy: DecodePolicy = _DEFAULT_POLICY, limit: int | None = None) -> bytes:
    """The encoded bytes of a file or URL, as `decode` reads it: for callers that read ahead. Raises: ImageError.

    With `limit` only about as many bytes are read, for callers that want to know what it is.
    """
    try:
        return _read(path, policy, limit)
    except _Problem as problem:
        raise ImageError(key, problem.kind, problem.message, printable(path)) from problem.__cause__


def pixel_count(data: bytes) -> int:
    """Pixels that the header of an encoded picture claims, for a memory budget; 0 when `decode` will refuse it."""
    format = sniff(data[:HEAD]).format
    if format is None:
        return 0
    try:
        width, height = claimed_size(data, format) or open_header(data, format).size
    except Exception:  # whatever is wrong with it, `decode` will say
        return 0
    return width * height


def _decode_array(array: np.ndarray, key: str, policy: DecodePolicy) -> DecodedImage:
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or 0 in array.shape:
        remedy = "give RGB uint8 [H,W,3]"
        if array.ndim == 2:
            remedy += ", for grey np.repeat(a[..., None], 3, 2)"
        elif array.ndim == 3 and array.shape[2] == 4:
            remedy += ", or PIL.Image.fromarray(a), which has its alpha composited on white"
        elif array.ndim == 3 and array.shape[0] == 3:
            remedy += ", for channels first a.transpose(1, 2, 0)"
        raise UsageError(f"{key!r}: an array of shape {array.shape} and dtype {array.dtype} is not an image: {remedy}")
    try:
        _check_size((array.shape[1], array.shape[0]), policy)
    except _Problem as problem:
        raise ImageError(key, problem.kind, problem.message, "array") from None
    rgb = np.ascontiguousarray(array).view()
    rgb.flags.writeable = False
    return DecodedImage(rgb)


def _check_size(size: tuple[int, int], policy: DecodePolicy) -> None:
    width, height = size
    if width * height > policy.max_pixels:
        raise _Problem(
            "too_large",
            f"{width}x{height} is {width * height} pixels, more than the limit of {policy.max_pixels}: "
            "scale it down or raise max_pixels",
        )
    if width < 1 or height < 1:
        raise _Problem("decode_error", f"the size {width}x{height} has no pixels")


# ---------------------------------------------------------------- reading


def _read(where: str, policy: DecodePolicy, limit: int | None = None) -> bytes:
    """All bytes of a file, unless its first ones show that it is no picture."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", where):
        return _read_url(where, policy)
    try:
        # not blocking: opening a named pipe would wait for a writer
        with open(where, "rb", buffering=0, opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _Problem("unreadable", "not a regular file")
            _check_head(file.read(HEAD), status.st_size, policy)
            file.seek(0)
            return file.read(-1 if limit is None else limit)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _Problem("missing", "no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise _Problem("unreadable", f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _read_url(where: str, policy: DecodePolicy) -> bytes:
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f"{where}: reading a URL needs fsspec: pip install fsspec") from error
    try:
        with fsspec.open(where, "rb") as file:
            head = file.read(HEAD)
            _check_head(head, len(head), policy)
            data = head + file.read(policy.max_bytes + 1 - len(head))
            _check_head(head, len(data), policy)
            return data
    except ImportError as error:
        raise UsageError(f"{where}: {error}") from error
    except FileNotFoundError as error:
        raise _Problem("missing", "there is nothing at this URL") from error
    except _Problem:
        raise
    except Exception as error:  # every filesystem of fsspec has errors of its own
        raise _Problem("unreadable", f"cannot be read: {type(error).__name__}: {error}") from error


def _check_head(head: bytes, size: int, policy: DecodePolicy) -> str:
    """The format of a file, from its first bytes."""
    if not head:
        raise _Problem("empty", "the file has no bytes")
    found = sniff(head)
    if found.format is None:
        raise _Problem(found.kind, found.reason)
    if size > policy.max_bytes:
        raise _Problem("too_large", f"the file has {size} bytes, more than any picture within max_pixels needs")
    return found.format


# ---------------------------------------------------------------- decoding


def _decode_bytes(data: bytes, policy: DecodePolicy) -> np.ndarray:
    format = _check_head(data[:HEAD], len(data), policy)
    try:
        if claimed := claimed_size(data, format):
            _check_size(claimed, policy)
        im = open_header(data, format)
        _check_size(im.size, policy)
        return rgb_pixels(im, upright=policy.orientation == "apply", keep=policy.truncated == "keep", encoded=data)
    except _Problem:
        raise
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise _Problem(*explain(error, format, data)) from error


def _decode_pil(im: Image.Image, policy: DecodePolicy) -> np.ndarray:
    _check_size(im.size, policy)
    try:
        return rgb_pixels(im, upright=policy.orientation == "apply", keep=policy.truncated == "keep")
    except Exception as error:  # it may not have been loaded yet
        raise _Problem(*explain(error, im.format)) from error
