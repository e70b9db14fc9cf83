"""The command line of jobs, on real files, with the fake model."""

import functools
import io
import json
import os
import struct
import zlib

import pytest
from PIL import Image

import roivault
from cache import open_store
from ray_jobs import extract


@pytest.fixture
def cli(monkeypatch, fake_job, weights, capfd):
    """Run `roivault extract` in this process; returns exit code, stdout and stderr."""
    monkeypatch.setattr(extract, "run_extract", functools.partial(extract.run_extract, load=fake_job.FakeModel))

    def run(*args, model="demo", weights=weights):
        code = roivault.main(["extract", *map(str, args), "--model", model, "--weights", str(weights)])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


def encode(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def png_that_claims(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    packed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def zoo():
    """{file name: (bytes, size in the store or the kind of failure)}."""
    rgb = Image.effect_noise((60, 40), 80).convert("RGB")
    jpeg = encode(rgb, "JPEG")
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [rgb.rotate(angle) for angle in (0, 90)]
    good = {
        "grey.png": encode(rgb.convert("L"), "PNG"),
        "grey16.png": encode(rgb.convert("I;16"), "PNG"),
        "palette.png": encode(rgb.convert("P"), "PNG"),
        "grey_alpha.png": encode(rgb.convert("LA"), "PNG"),
        "alpha.png": encode(rgb.convert("RGBA"), "PNG"),
        "cmyk.jpg": encode(rgb.convert("CMYK"), "JPEG"),
        "progressive.jpg": encode(rgb, "JPEG", progressive=True),
        "animated.gif": encode(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "web.webp": encode(rgb, "WebP"),
        "tagged.tiff": encode(rgb, "TIFF"),
        "png_named.jpg": encode(rgb, "PNG"),
        "UPPER.JPG": jpeg,
        "one.stem.v1.jpg": jpeg,
        "one.stem.v2.jpg": jpeg,
        "same.jpg": jpeg,
        "same.png": encode(rgb, "PNG"),
        "日本 ünï.jpg": jpeg,
        "sp ace (2).jpg": jpeg,
        'it\'s "quoted".jpg': jpeg,
        "new\nline.jpg": jpeg,
        "sub/.hidden.jpg": jpeg,
        "sub/no_suffix": jpeg,
    }
    other_sizes = {
        "turned.jpg": (encode(rgb, "JPEG", exif=exif), (40, 60)),
        "dot.png": (encode(Image.new("RGB", (1, 1)), "PNG"), (1, 1)),
        "panorama.jpg": (encode(Image.new("RGB", (20000, 600)), "JPEG"), (20000, 600)),
    }
    bad = {
        "cut.jpg": (jpeg[: len(jpeg) // 2], "truncated"),
        "empty.jpg": (b"", "empty"),
        "text.jpg": (b"just some text", "not_an_image"),
        "page.jpg": (b"<!DOCTYPE html><html><body>404</body></html>", "not_an_image"),
        "drawing.svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "unsupported"),
        "drawing.png": (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "unsupported"),
        "bomb.png": (png_that_claims(200_000, 200_000), "too_large"),
    }
    return {name: (data, (60, 40)) for name, data in good.items()} | other_sizes | bad


def test_every_file_of_the_zoo_has_one_record_or_one_named_failure(cli, tmp_path):
    photos = tmp_path / "photos"
    expected = {}
    for name, (data, outcome) in zoo().items():
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(data)
        expected[name] = outcome
    for name, target in {
        "loop.jpg": "loop.jpg",
        "gone.jpg": "nowhere",
        "around": ".",
        "linked.jpg": "same.jpg",
    }.items():
        (photos / name).symlink_to(target)
    os.mkfifo(photos / "pipe.jpg")
    for name in ("notes.txt", "Thumbs.db", "sub/.DS_Store"):
        (photos / name).write_bytes(b"\0\1\2 no picture")
    expected |= {"loop.jpg": "unreadable", "gone.jpg": "missing", "pipe.jpg": "unreadable", "linked.jpg": (60, 40)}

    code, out, _ = cli(photos, "-o", tmp_path / "s.roi", "--json")
    summary = json.loads(out)
    assert code == 65 == summary["exit_code"]
    assert (summary["listed"], summary["records"] + summary["failed"]) == (len(expected), len(expected))
    store = open_store(str(tmp_path / "s.roi"))
    found = {key: (store[key].width, store[key].height) for key in store.keys()}
    failures = list(store.failures())
    assert len(found) + len(failures) == len(expected)
    assert found | {failure.key: failure.kind for failure in failures} == expected
    for failure in failures:
        assert failure.source == str(photos / failure.key) and failure.message
    again = json.loads(cli(photos, "-o", tmp_path / "s.roi", "--json")[1])
    changing = {"new", "already", "regions", "device", "seconds", "images_per_second"}
    assert {k: v for k, v in again.items() if k not in changing} == {
        k: v for k, v in summary.items() if k not in changing
    }
    assert cli(photos, "-o", tmp_path / "s.roi", "--max-failures", "10")[0] == 0


def test_a_file_without_permission_is_a_failure(cli, photos, unprivileged):
    os.chmod(photos(3) / "0001.png", 0)
    cli("photos", "-o", "all.roi")  # imports everything
    with unprivileged():
        code, out, err = cli("photos", "-o", "s.roi", "--json", weights="fake.weights")
    assert code == 65, err
    summary = json.loads(out)
    assert (summary["records"], summary["failures"]) == (2, {"unreadable": 1})
    assert summary["examples"][0]["key"] == "0001.png" and "Permission" in summary["examples"][0]["message"]


def test_what_a_new_user_reads(cli, photos, tmp_path):
    folder = photos(3)
    (folder / "bad.jpg").write_bytes(b"")
    code, out, err = cli(folder, "-o", tmp_path / "s.roi", "--max-failures", "1")
    assert (code, err) == (0, "")
    for part in ("Done", "4 listed", "3 new", "1 failed", "12 written", "empty: 1", "bad.jpg", "s.roi"):
        assert part in out


def test_names_that_are_no_text(cli, photos, tmp_path):
    folder = os.fsdecode(bytes(tmp_path) + b"/caf\xe9")
    os.rename(photos(2), folder)
    code, out, err = cli(folder, "-o", tmp_path / "s.roi", "--log-file", tmp_path / "log", "--json")
    assert (code, err) == (0, "") and json.loads(out)["source"].endswith("caf%E9")
    assert "caf%E9" in (tmp_path / "log").read_text()
    assert open_store(str(tmp_path / "s.roi")).manifest.shards[0].provenance[0]["path"].endswith("caf%E9")
    code, _, err = cli(folder, "-o", folder + ".roi")
    assert code == 2 and "caf%E9.roi" in err


def test_quiet_says_only_what_is_wrong(cli, photos, tmp_path):
    assert cli(photos(1), "-o", tmp_path / "s.roi", "--quiet") == (0, "", "")
    (tmp_path / "none").mkdir()
    code, out, err = cli(tmp_path / "none", "-o", tmp_path / "s.roi", "--quiet")
    assert (code, out) == (65, "") and "no images" in err


def test_every_failure_is_in_the_log(cli, photos, tmp_path):
    folder = photos(1)
    for number in range(30):
        (folder / f"bad{number}.jpg").write_bytes(b"")
    for _ in range(2):
        cli(folder, "-o", tmp_path / "s.roi", "--quiet", "--log-file", tmp_path / "log")
    log = (tmp_path / "log").read_text()
    assert log.count("empty: ") == 60 and log.count("exit code 65") == 2
    assert cli(folder, "-o", tmp_path / "s.roi", "--log-file", tmp_path / "no" / "log")[0] == 74


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["nowhere", "-o", "s.roi"], 66, "nowhere"),
        (["photos"], 2, "-o"),
        (["photos", "-o", "s.roi", "--engine", "spark"], 2, "--engine"),
        (["photos", "-o", "s.roi", "--dtype", "float64"], 2, "float16"),
        (["photos", "-o", "s.roi", "--limit", "0"], 2, "--limit"),
        (["photos", "-o", "s.roi", "--unknown"], 2, "--unknown"),
        (["photos", "-o", "s.roi", "--max-failures", "x"], 2, "--max-failures"),
        (["photos", "-o", "photos/store"], 2, ".roi"),
        (["photos", "-o", "fake.weights"], 2, "is a file"),
        (["photos", "-o", "other"], 2, "not a store"),
        (["photos", "-o", "/proc/none/s.roi"], 2, "no store can be made"),
        (["photos/a.png", "photos/b.png", "-o", "s.roi"], 2, "quote"),
        (["s3:photos", "-o", "s.roi"], 66, "s3:photos"),
    ],
)
def test_wrong_use(cli, photos, tmp_path, monkeypatch, args, code, said):
    photos(1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    monkeypatch.chdir(tmp_path)
    ended, out, err = cli(*args)
    assert (ended, out) == (code, "") and said in err and "Traceback" not in err
    assert not (tmp_path / "s.roi").exists()


def test_an_unknown_model_names_those_near(cli, photos, tmp_path):
    code, _, err = cli(photos(1), "-o", tmp_path / "s.roi", model="dmo")
    assert code == 2 and "did you mean demo" in err


def test_a_store_of_other_choices_is_refused(cli, photos, tmp_path):
    folder = photos(1)
    cli(folder, "-o", tmp_path / "s.roi")
    code, _, err = cli(folder, "-o", tmp_path / "s.roi", "--orientation", "ignore")
    assert code == 78 and "orientation" in err and "'apply'" in err and "'ignore'" in err


@pytest.mark.slow
def test_progress_is_json_lines_when_stderr_is_no_terminal(photos, tmp_path, command):
    process = command.start(photos(2), tmp_path / "s.roi", "--json", hold="0000.png")
    line = json.loads(process.stderr.readline())
    command.gate.touch()
    out, _ = process.communicate(timeout=60)
    assert line["listed"] == 2 and line["done"] == 0
    assert json.loads(out)["records"] == 2
