"""From any mode to RGB: exact pixels for every rule."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps, TiffImagePlugin

from extractor.images import DecodePolicy, ImageError, decode

RNG = np.random.default_rng(1)
COLOUR = RNG.integers(0, 256, (14, 22, 3), dtype=np.uint8)
GREY, ALPHA = COLOUR[..., 0], RNG.integers(0, 256, (14, 22), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (14, 22, 4)).astype(np.uint16)


def encode(image, format: str = "PNG", **options) -> bytes:
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def rgb(source, **policy) -> np.ndarray:
    decoded = decode(source, "key", DecodePolicy(**policy)).rgb
    assert decoded.dtype == np.uint8 and decoded.ndim == 3 and decoded.shape[2] == 3
    assert decoded.flags.c_contiguous and not decoded.flags.writeable
    return decoded


def three(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, 2)


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    alpha = alpha[..., None].astype(float)
    return np.floor((colour * alpha + 255 * (255 - alpha)) / 255 + 0.5).astype(np.uint8)


def from_16_bits(values: np.ndarray) -> np.ndarray:
    return np.floor(values / 257 + 0.5).astype(np.uint8)


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(samples: np.ndarray, colour_type: int, before_data: bytes = b"") -> bytes:
    """A PNG of 8-bit or 16-bit samples [H,W] or [H,W,C], for kinds that no library here writes."""
    height, width = samples.shape[:2]
    bits = 8 * samples.itemsize
    rows = b"".join(b"\0" + row.astype(samples.dtype.newbyteorder(">")).tobytes() for row in samples)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + before_data + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# ---- grey, palette, alpha


@pytest.mark.parametrize("format", ["PNG", "TIFF", "BMP", "GIF", "PPM"])
def test_grey_is_repeated(format):
    assert np.array_equal(rgb(encode(GREY, format)), three(GREY))


@pytest.mark.parametrize("options", [{"format": "PNG"}, {"format": "TIFF", "compression": "group4"}])
def test_one_bit(options):
    assert np.array_equal(rgb(encode(GREY > 99, **options)), three(np.where(GREY > 99, 255, 0)))


@pytest.mark.parametrize("options", [{"format": "PNG"}, {"format": "WEBP", "lossless": True, "exact": True}])
def test_alpha_is_composited_on_white(options):
    data = encode(np.dstack([COLOUR, ALPHA]), **options)
    assert np.array_equal(rgb(data), on_white(COLOUR, ALPHA))


def test_transparent_pixels_are_white_whatever_colour_hides_there():
    assert (rgb(encode(np.dstack([COLOUR, np.zeros_like(ALPHA)]))) == 255).all()


def test_grey_with_alpha():
    image = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)])
    assert np.array_equal(rgb(encode(image)), on_white(three(GREY), ALPHA))
    assert np.array_equal(rgb(image), on_white(three(GREY), ALPHA))


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP", "TIFF"])
def test_palette(format):
    image = Image.fromarray(COLOUR).quantize(13)
    assert np.array_equal(rgb(encode(image, format)), np.asarray(image.convert("RGB")))


def test_palette_with_alpha_entries_and_with_one_transparent_colour():
    image = Image.fromarray(COLOUR).quantize(16)
    index, palette = np.asarray(image), np.array(image.getpalette()[:48], np.uint8).reshape(16, 3)
    entries = RNG.integers(0, 256, 16, dtype=np.uint8)
    assert np.array_equal(rgb(encode(image, transparency=entries.tobytes())), on_white(palette[index], entries[index]))
    for format in ("PNG", "GIF"):
        expected = np.where((index == 5)[..., None], 255, palette[index])
        assert np.array_equal(rgb(encode(image, format, transparency=5)), expected)


def test_transparent_colour_of_grey_and_rgb():
    grey, colour = GREY.copy(), COLOUR.copy()
    grey[:4], colour[:4] = 77, (1, 2, 3)
    expected = np.where(three(grey) == 77, 255, three(grey))
    assert np.array_equal(rgb(encode(grey, transparency=77)), expected)
    expected = np.where((colour == (1, 2, 3)).all(-1, keepdims=True), 255, colour)
    assert np.array_equal(rgb(encode(colour, transparency=(1, 2, 3))), expected)


def test_premultiplied_alpha_of_a_pil_image():
    image = Image.fromarray(np.dstack([COLOUR, np.full_like(ALPHA, 255)]))
    assert np.array_equal(rgb(image.convert("RGBa")), COLOUR)
    assert np.array_equal(rgb(image.convert("LA").convert("La")), three(np.asarray(image.convert("L"))))


# ---- CMYK


def test_cmyk():
    inks = np.zeros((16, 16, 4), np.uint8)
    inks[:8, :8, 0], inks[:8, 8:, 1], inks[8:, :8, 2], inks[8:, 8:, 3] = 255, 255, 255, 255
    image = Image.fromarray(inks, "CMYK")
    expected = np.zeros((16, 16, 3), np.uint8)
    expected[:8, :8], expected[:8, 8:], expected[8:, :8] = (0, 255, 255), (255, 0, 255), (255, 255, 0)
    assert np.array_equal(rgb(encode(image, "TIFF")), expected)
    assert np.array_equal(rgb(image), expected)
    photo = encode(image, "JPEG", quality=100, subsampling=0)  # inverted, with Adobe's marker
    assert np.abs(rgb(photo).astype(int) - expected).max() <= 3


# ---- 16 bits and more


@pytest.mark.parametrize("extension", [".png", ".tiff", ".pgm"])
def test_16_bit_grey_is_scaled_not_clipped(extension):
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    assert np.array_equal(rgb(cv2.imencode(extension, ramp)[1].tobytes()), three(from_16_bits(ramp)))


def test_16_bit_grey_of_either_byte_order():
    for dtype in ("<u2", ">u2"):
        image = Image.fromarray(DEEP[..., 0].astype(dtype))
        assert np.array_equal(rgb(image), three(from_16_bits(DEEP[..., 0])))
        assert np.array_equal(rgb(encode(image, "TIFF")), three(from_16_bits(DEEP[..., 0])))


def test_16_bit_colour_png_is_rounded():
    bgr, bgra = DEEP[..., :3], DEEP
    assert np.array_equal(rgb(cv2.imencode(".png", bgr)[1].tobytes()), from_16_bits(bgr[..., ::-1]))
    expected = on_white(from_16_bits(bgra[..., 2::-1]), from_16_bits(bgra[..., 3]))
    assert np.array_equal(rgb(cv2.imencode(".png", bgra)[1].tobytes()), expected)
    expected = on_white(three(from_16_bits(DEEP[..., 0])), from_16_bits(DEEP[..., 1]))
    assert np.array_equal(rgb(png(DEEP[..., :2], 4)), expected)


def test_transparent_colour_of_16_bits():
    samples = DEEP[..., :3].copy()
    samples[:4] = (300, 400, 500)
    expected = from_16_bits(samples)
    expected[:4] = 255
    assert np.array_equal(rgb(png(samples, 2, chunk(b"tRNS", struct.pack(">HHH", 300, 400, 500)))), expected)
    grey = png(samples[..., 0], 0, chunk(b"tRNS", struct.pack(">H", 300)))
    assert np.array_equal(rgb(grey), three(expected[..., 0]))


def test_16_bit_colour_tiff_keeps_the_high_byte():
    data = cv2.imencode(".tiff", DEEP[..., :3])[1].tobytes()
    assert np.array_equal(rgb(data), (DEEP[..., 2::-1] >> 8).astype(np.uint8))


def tiff(samples: np.ndarray, **tags) -> bytes:
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, value in tags.items():
        directory[int(tag[1:])] = value
    return encode(samples, "TIFF", tiffinfo=directory)


def test_tiff_whose_white_is_zero():
    data = tiff(DEEP[..., 0], t262=1)
    at = data.index(struct.pack("<HHI", 262, 3, 1)) + 8
    inverted = data[:at] + b"\0\0" + data[at + 2 :]
    assert np.array_equal(rgb(inverted), three(255 - from_16_bits(DEEP[..., 0])))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_32_bit_samples_are_refused(dtype):
    image = Image.fromarray(GREY.astype(dtype))
    for source in (image, encode(image, "TIFF")):
        with pytest.raises(ImageError, match="no agreed white") as error:
            rgb(source)
        assert error.value.kind == "unsupported"


def test_preview_of_a_raw_camera_file_is_refused():
    with pytest.raises(ImageError, match="raw camera") as error:
        rgb(tiff(COLOUR, t254=1))
    assert error.value.kind == "unsupported"


# ---- orientation

BLOCKS = np.kron(COLOUR[:2, :3], np.ones((16, 16, 1), np.uint8))
LOSSLESS = {"PNG": {}, "WEBP": {"lossless": True}, "TIFF": {}}


def oriented(format: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(BLOCKS, format, exif=exif, **LOSSLESS.get(format, {"quality": 95, "subsampling": 0}))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", *LOSSLESS])
def test_orientation_policy(format, orientation):
    data = oriented(format, orientation)
    applied, ignored = rgb(data), rgb(data, orientation="ignore")
    assert np.array_equal(applied, cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1])
    assert np.array_equal(applied, rgb(Image.open(io.BytesIO(data))))
    assert np.array_equal(ignored, rgb(Image.open(io.BytesIO(data)), orientation="ignore"))
    if format == "JPEG":
        assert np.array_equal(ignored, rgb(encode(BLOCKS, "JPEG", quality=95, subsampling=0)))
    else:
        assert np.array_equal(ignored, BLOCKS)


def test_an_image_that_is_upright_already_is_not_turned_again():
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(oriented("JPEG", 6))))
    assert np.array_equal(rgb(upright), rgb(oriented("JPEG", 6)))


def test_exif_behind_the_pixels_of_a_png():
    data = oriented("PNG", 6)
    start = data.index(b"eXIf") - 4
    block = data[start : start + 12 + int.from_bytes(data[start : start + 4], "big")]
    moved = data.replace(block, b"")
    moved = moved[:-12] + block + moved[-12:]
    assert np.array_equal(rgb(moved), np.rot90(BLOCKS, -1))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_and_unknown_orientations_are_ignored():
    plain = rgb(encode(BLOCKS, "JPEG"))
    for block in (b"Exif\0\0", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0nonsense" * 4):
        assert np.array_equal(rgb(encode(BLOCKS, "JPEG", exif=block)), plain)
    assert np.array_equal(rgb(oriented("PNG", 9)), BLOCKS)


# ---- several frames


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame(format):
    first, *others = [Image.fromarray(np.full((8, 9, 3), (0, level, 0), np.uint8)) for level in (255, 128, 0)]
    options = {"lossless": True} if format == "WEBP" else {}
    data = encode(first, format, save_all=True, append_images=others, **options)
    assert (rgb(data) == (0, 255, 0)).all()


def test_first_picture_of_a_multi_picture_jpeg():
    data = encode(COLOUR, "MPO", save_all=True, append_images=[Image.new("RGB", (22, 14))], quality=95)
    assert np.abs(rgb(data).astype(int) - rgb(encode(COLOUR, "JPEG", quality=95))).max() == 0
