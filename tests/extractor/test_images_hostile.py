"""Hostile input to `decode`: lying headers, bombs, cut and damaged files. Bounded memory, and an exact failure kind."""

import io
import os
import resource
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageFile

from cache import FAILURE_KINDS, Failure
from extractor.images import DecodedImage, DecodePolicy, ImageError, decode

ROOT = Path(__file__).resolve().parents[2]

RNG = np.random.default_rng(2)
PHOTO = cv2.resize(RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8), (180, 120), interpolation=cv2.INTER_CUBIC)
FAIL, KEEP = DecodePolicy(), DecodePolicy(truncated="keep")


def encode(image, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, format, **options)
    return file.getvalue()


def failure(source, policy: DecodePolicy = FAIL) -> Failure:
    with pytest.raises(ImageError) as error:
        decode(source, "the key", policy)
    return error.value.failure()


# ---- limits


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


PNG, JPEG, GIF, BMP, WEBP = (encode(PHOTO, name) for name in ("PNG", "JPEG", "GIF", "BMP", "WEBP"))
J2K = encode(PHOTO, "JPEG2000", no_jp2=True)
JPEG_FRAME, WEBP_FRAME, SIZE = JPEG.index(b"\xff\xc0") + 5, WEBP.index(b"\x9d\x01\x2a") + 3, 200_000
TIFF_TAGS = ((256, 4, SIZE), (257, 4, SIZE), (258, 3, 8), (273, 4, 8))
LIES = {
    "png": PNG[:8] + chunk(b"IHDR", struct.pack(">II", SIZE, SIZE) + PNG[24:29]) + PNG[33:],
    "jpeg": JPEG[:JPEG_FRAME] + b"\xff\xff\xff\xff" + JPEG[JPEG_FRAME + 4 :],
    "gif": GIF[:6] + b"\xff\xff\xff\xff" + GIF[10:],
    "bmp": BMP[:18] + struct.pack("<ii", SIZE, SIZE) + BMP[26:],
    "bmp from the top": BMP[:18] + struct.pack("<ii", SIZE, -SIZE) + BMP[26:],
    "tiff": b"II*\0\x08\0\0\0\4\0" + b"".join(struct.pack("<HHII", t, k, 1, v) for t, k, v in TIFF_TAGS) + bytes(4),
    "pnm": b"P6 200000 200000 255\n" + bytes(99),
    "webp": WEBP[:WEBP_FRAME] + b"\xff\x3f\xff\x3f" + WEBP[WEBP_FRAME + 4 :],
    "webp canvas": b"RIFF\0\1\0\0WEBPVP8X\n\0\0\0\0\0\0\0" + b"\xff" * 6 + WEBP[12:],
    "jpeg 2000": J2K[:8] + struct.pack(">II", SIZE, SIZE) + J2K[16:],
}


@pytest.fixture
def little_memory():
    """Let the process grow by 200 MiB and no more: a larger allocation fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_more_memory_than_there_is():
    """In a process of its own: this one may have freed enough before to serve the allocation without growing."""
    code = f"""
import resource
from pathlib import Path
from extractor.images import ImageError, decode
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {200 * 2**20}, resource.RLIM_INFINITY))
try:
    decode(b"P6 14000 14000 255\\n" + bytes(99), "k")
except ImageError as error:
    print(error.kind)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout == "out_of_memory\n", ended.stderr


@pytest.mark.parametrize("name", LIES)
def test_a_huge_size_in_the_header_is_refused_before_it_is_allocated(name, little_memory):
    assert failure(LIES[name]).kind == "too_large"


def test_the_limit_holds_for_every_route():
    policy = DecodePolicy(max_pixels=PHOTO.shape[0] * PHOTO.shape[1] - 1)
    for source in (PNG, JPEG, WEBP, Image.fromarray(PHOTO), PHOTO):
        found = failure(source, policy)
        assert found.kind == "too_large" and "180x120" in found.message
    assert decode(PNG, "k", DecodePolicy(max_pixels=PHOTO.shape[0] * PHOTO.shape[1])).rgb.shape == PHOTO.shape


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "BMP", "GIF", "PPM", "JPEG2000"])
@pytest.mark.filterwarnings("error")
def test_the_limit_of_pillow_neither_interferes_nor_changes(format, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert decode(encode(PHOTO, format), "k").rgb.shape == PHOTO.shape
    assert Image.MAX_IMAGE_PIXELS == 100


BOMB = zlib.compress(bytes(300 * 2**20), 1)


@pytest.mark.parametrize("name", [b"zTXt", b"iTXt", b"iCCP"])
def test_metadata_that_unpack_to_very_much(name, little_memory):
    packed = b"k\0" + (b"\1\0\0\0" if name == b"iTXt" else b"\0") + BOMB
    found = failure(PNG[:33] + chunk(name, packed) + PNG[33:])
    assert found.kind == "too_large" and "metadata" in found.message


def test_pixels_that_unpack_to_very_much_more_than_the_size(little_memory):
    assert (decode(PNG[:33] + chunk(b"IDAT", BOMB) + PNG[-12:], "k").rgb == np.zeros_like(PHOTO)).all()


def test_a_file_too_large_for_any_picture_is_not_read(tmp_path):
    path = tmp_path / "huge.png"
    path.write_bytes(PNG)
    os.truncate(path, 10**12)
    assert failure(path).kind == "too_large"


# ---- files that end early


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_truncated_files_fail_by_default(format, part):
    data = encode(PHOTO, format)
    assert failure(data[: int(part * len(data))]).kind == "truncated"


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "TIFF", "PPM"])
def test_keep_gives_what_decoded(format):
    data = encode(PHOTO, format)
    whole, part = decode(data, "k").rgb, decode(data[: len(data) // 2], "k", KEEP).rgb
    assert part.shape == whole.shape
    same = (part == whole).all((1, 2))
    assert 0.25 < same.mean() < 0.75
    assert (part[~same] == (128 if format == "JPEG" else 0)).mean() > 0.8
    assert np.array_equal(decode(data, "k", KEEP).rgb, whole)


def test_keep_gives_the_scans_of_a_progressive_jpeg():
    data = encode(np.kron(PHOTO, np.ones((4, 4, 1), np.uint8)), "JPEG", progressive=True)
    whole, part = decode(data, "k").rgb.astype(int), decode(data[: len(data) // 2], "k", KEEP).rgb
    assert 0 < np.abs(part - whole).mean() < 8


@pytest.mark.parametrize("data", [PNG[:60], JPEG[: JPEG.index(b"\xff\xda") + 14], BMP[:54], GIF[:400], WEBP[:-9]])
def test_keep_fails_when_nothing_decoded(data):
    assert failure(data, KEEP).kind == "truncated"


def test_keep_does_not_touch_the_setting_of_pillow():
    decode(JPEG[: len(JPEG) // 2], "k", KEEP)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_pixels_that_are_all_there_are_whole_without_the_end_mark():
    assert np.array_equal(decode(PNG[:-12], "k").rgb, PHOTO)
    assert np.array_equal(decode(GIF[:-1], "k").rgb, decode(GIF, "k").rgb)


# ---- damage


def test_threads_decode_what_one_thread_decodes():
    files = [PNG, JPEG, GIF, WEBP, BMP, encode(PHOTO, "TIFF"), JPEG[: len(JPEG) // 2], encode(PHOTO[::2], "JPEG")] * 12

    def attempt(data: bytes) -> DecodedImage | str:
        try:
            return decode(data, "k", KEEP if len(data) % 2 else DecodePolicy())
        except ImageError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(attempt, files))
    for found, data in zip(together, files, strict=True):
        alone = attempt(data)
        if isinstance(alone, str):
            assert found == alone
        else:
            assert np.array_equal(found.rgb, alone.rgb) and found.source_digest == alone.source_digest


SMALL = Image.fromarray(PHOTO[::6, ::6].copy())
PALETTE = SMALL.quantize(16)
FUZZED = [
    encode(SMALL, "JPEG"),
    encode(SMALL, "JPEG", progressive=True),
    encode(SMALL),
    encode(PALETTE, transparency=3),
    cv2.imencode(".png", np.asarray(SMALL).astype(np.uint16) * 257)[1].tobytes(),
    encode(PALETTE, "GIF", transparency=2, save_all=True, append_images=[PALETTE.rotate(90)], disposal=2),
    encode(SMALL, "WEBP"),
    encode(SMALL, "WEBP", save_all=True, append_images=[SMALL.rotate(180)]),
    encode(SMALL, "TIFF"),
    encode(SMALL, "TIFF", compression="tiff_lzw"),
    encode(SMALL, "BMP"),
    encode(SMALL, "PPM"),
    encode(SMALL, "JPEG2000"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("original", range(len(FUZZED)))
def test_damaged_files_give_an_error_or_a_picture(original, little_memory):
    rng, data, outcomes = np.random.default_rng(original), FUZZED[original], set()
    for i in range(500):
        damaged = bytearray(data[: rng.integers(len(data))] if i % 4 == 3 else data)
        reach = min(len(damaged), 120) if i % 4 == 0 else len(damaged)  # headers are where the decisions are
        for at in rng.integers(0, reach, rng.integers(0, 6)) if reach else ():
            damaged[at] = rng.choice([rng.integers(256), 0, 127, 128, 255])
        try:
            rgb = decode(bytes(damaged), "k", DecodePolicy(truncated=("fail", "keep")[i % 2], max_pixels=10**6)).rgb
        except ImageError as error:
            outcomes.add(error.kind)
        else:
            outcomes.add("decoded")
            assert rgb.dtype == np.uint8 and rgb.shape[2] == 3 and rgb.flags.c_contiguous and 0 < rgb.size <= 3 * 10**6
    assert {"decoded", "truncated"} <= outcomes <= {"decoded", *FAILURE_KINDS} - {"out_of_memory"}
