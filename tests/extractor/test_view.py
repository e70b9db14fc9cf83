"""`view`: the right image is found again, drawn as it was extracted, and nothing leaves the output folder."""

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import xxhash
from PIL import Image

import roivault
from cache import Failure, InputNotFound, Regions, StoreWriter, open_store
from cache.keys import shorten
from extractor.view import ImageFinder, draw_store

SIZE = (80, 60)


def save_image(path, seed=0, size=SIZE, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return path


def regions(key, path=None, size=SIZE, n=2):
    boxes = np.tile(np.array([5, 5, 40, 30], np.float32), (n, 1))
    digest = xxhash.xxh3_128(Path(path).read_bytes()).digest() if path else None
    features = np.zeros((n, 4), np.float32)
    return Regions(key, *size, boxes, features, class_ids=[0] * n, class_probs=[0.5] * n, source_digest=digest)


@pytest.fixture
def make_store(tmp_path):
    def make(records, failures=(), fingerprint=None, provenance=None):
        path = tmp_path / "photos.roi"
        names = {"classes": ["cat"], "attributes": []}
        with StoreWriter(path, fingerprint=fingerprint, vocabularies=names, provenance=provenance) as writer:
            writer.write(records, failures)
        return str(path)

    return make


@pytest.fixture
def photos(tmp_path):
    """A folder of images, two with the same name."""
    folder = tmp_path / "photos"
    for seed, name in enumerate(("a.png", "sub dir/a.png", "sub dir/ü #1.png")):
        save_image(folder / name, seed)
    return folder


def keys_below(folder):
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.png"))]


def test_store_is_drawn_with_a_page(make_store, photos, tmp_path, capsys):
    keys = keys_below(photos)
    failure = Failure("broken.jpg", "truncated", "ends early")
    store = make_store([regions(key, photos / key) for key in keys], [failure])
    out = tmp_path / "out"
    assert roivault.main(["view", store, "--images", str(photos), "-o", str(out)]) == 0
    out_text, err = capsys.readouterr()
    assert err == "" and "Drew 3 of 3 images" in out_text
    page = (out / "index.html").read_text("utf-8")
    sources = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: sources.append(dict(attrs)["src"]) if tag == "img" else None
    parser.feed(page)
    assert len(set(sources)) == 3
    for source in sources:
        assert max(Image.open(out / unquote(source)).size) >= 800
    assert "broken.jpg" in page and "ends early" in page and "cat" in page


def test_one_key_is_drawn_to_one_file(make_store, photos, tmp_path, capsys):
    store = make_store([regions("a.png", photos / "a.png")])
    for name in ("one.png", "one.jpg"):
        out = tmp_path / "new" / name
        assert roivault.main(["view", store, "a.png", "--images", str(photos), "-o", str(out), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["pictures"] == {"a.png": str(out)} and answer["exit_code"] == 0
        assert Image.open(out).size == (800, 600)


@pytest.mark.parametrize("told, code", [("", 0), ("a.png", 0), ("**/*.png", 0), ("gone", 66)])
def test_images_are_found_by_what_the_store_says(make_store, photos, tmp_path, told, code):
    store = make_store([regions("a.png")], provenance={"path": str(photos / told)})
    assert roivault.main(["view", store, "a.png", "-o", str(tmp_path / "one.png")]) == code


def test_store_that_does_not_know_asks_for_images(make_store, capsys):
    assert roivault.main(["view", make_store([regions("a.png")])]) == 66
    assert "--images" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["a.png", "sub dir/a.png", "ü #1.png", "ü #1", "a"])
def test_finder_knows_every_key_rule(photos, key):
    found = ImageFinder(photos)(key)
    assert found.relative_to(photos).as_posix().endswith(key) or found.stem == key


def test_finder_finds_names_that_keys_only_stand_for(tmp_path):
    deep = "/".join(["d" * 200] * 3) + "/x.png"
    save_image(tmp_path / deep)
    odd = os.fsdecode(b"caf\xe9.png")
    save_image(tmp_path / "plain.png").rename(tmp_path / odd)
    finder = ImageFinder(tmp_path)
    assert finder(shorten(deep)) == tmp_path / deep
    assert finder("caf%E9.png") == tmp_path / odd


def test_finder_ends_where_links_lead_back_up(tmp_path):
    save_image(tmp_path / "a" / "deep.png")
    for name in ("one", "two", "three"):
        (tmp_path / "a" / name).symlink_to(tmp_path)
    assert ImageFinder(tmp_path)("deep") == tmp_path / "a" / "deep.png"


@pytest.mark.parametrize("key", ["../secret.png", "/etc/hostname", "sub/../../secret.png", "none.png", "x\x00y"])
def test_finder_stays_in_its_folder_and_says_what_it_tried(photos, key):
    save_image(photos.parent / "secret.png")
    with pytest.raises(InputNotFound) as error:
        ImageFinder(photos)(key)
    assert repr(key) in str(error.value) and str(photos) in str(error.value)


def test_pictures_stay_in_the_output_folder_whatever_the_keys(make_store, tmp_path):
    image = save_image(tmp_path / "any.png")
    keys = ["../../up.png", "/abs.png", "A.png", "a.png", "x\ny.png", "<b>.png", "...", "k" * 511, "é.png", "é.jpg"]
    store = open_store(make_store([regions(key) for key in keys]))
    before = set(tmp_path.iterdir())
    out = tmp_path / "out"
    view = draw_store(store, keys, ImageFinder(image), out)
    assert view.errors == {} and len(set(view.pictures.values())) == len(keys)
    assert len({path.name.casefold() for path in view.pictures.values()}) == len(keys)
    assert set(tmp_path.iterdir()) - before == {out}
    assert sorted(path for path in out.rglob("*.png")) == sorted(view.pictures.values())
    again = draw_store(store, keys, ImageFinder(image), out)
    assert again.pictures == view.pictures


def test_image_that_changed_is_warned_about(make_store, photos, tmp_path, capsys):
    store = make_store([regions("a.png", photos / "a.png")])
    save_image(photos / "a.png", seed=7)
    assert roivault.main(["view", store, "--images", str(photos), "-o", str(tmp_path / "out")]) == 0
    assert "has changed" in capsys.readouterr().err


def test_image_of_another_size_is_an_error_that_stops_no_other(make_store, photos, tmp_path, capsys):
    store = make_store([regions("a.png"), regions("gone.png"), regions("sub dir/a.png")])
    save_image(photos / "a.png", size=(60, 80))
    out = tmp_path / "out"
    code = roivault.main(["view", store, "--images", str(photos), "-o", str(out), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == answer["exit_code"] in (65, 66)
    assert list(answer["pictures"]) == ["sub dir/a.png"]
    assert "60x80" in answer["errors"]["a.png"] and "gone.png" in answer["errors"]["gone.png"]


@pytest.mark.parametrize("orientation, size", [("apply", (60, 80)), ("ignore", (80, 60))])
def test_image_is_turned_as_it_was_for_extraction(make_store, tmp_path, orientation, size):
    exif = Image.Exif()
    exif[0x0112] = 6
    save_image(tmp_path / "in" / "turned.jpg", exif=exif)
    store = make_store([regions("turned.jpg", size=size)], fingerprint={"orientation": orientation, "preset": "demo"})
    out = tmp_path / "one.png"
    assert roivault.main(["view", store, "turned.jpg", "--images", str(tmp_path / "in"), "-o", str(out)]) == 0
    width, height = Image.open(out).size
    assert (width < height) == (size[0] < size[1])


def test_keys_that_are_not_there_are_explained(make_store, photos, tmp_path, capsys):
    store = make_store([regions("a.png")], [Failure("bad.png", "truncated", "ends early")])
    code = roivault.main(["view", store, "a.pgn", "bad.png", "--images", str(photos), "-o", str(tmp_path / "out")])
    err = capsys.readouterr().err
    assert code == 65 and "'a.png'" in err and "ends early" in err


def test_control_characters_of_keys_do_not_reach_the_terminal(make_store, photos, tmp_path, capsys):
    store = make_store([regions("x\x1b[31m\n.png")])
    assert roivault.main(["view", store, "--images", str(photos), "-o", str(tmp_path / "out")]) == 66
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err


@pytest.mark.parametrize(
    "options", [["-o", "x.png"], ["k", "l", "-o", "x.png"], ["--limit", "0"], ["--max-regions", "0"]]
)
def test_wrong_usage(make_store, photos, options, capsys):
    assert roivault.main(["view", make_store([regions("a.png")]), "--images", str(photos), *options]) == 2
    assert roivault.main(["view", make_store([]), "--images", str(photos / "a.png")]) == 2


@pytest.mark.parametrize("out", ["file", "file/below", "file/below.png", "/proc/none"])
def test_places_that_cannot_be_written_to(make_store, photos, tmp_path, monkeypatch, out, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    store = make_store([regions("a.png", photos / "a.png")])
    assert roivault.main(["view", store, "a.png", "--images", str(photos), "-o", out]) == 2
    assert "no folder can be made" in capsys.readouterr().err


def test_a_key_that_is_no_file_name_stops_no_other(make_store, photos, tmp_path):
    store = make_store([regions("Q" * 300), regions("a.png", photos / "a.png")])
    assert roivault.main(["view", store, "--images", str(photos), "-o", str(tmp_path / "out")]) == 66
    assert keys_below(tmp_path / "out") == ["pictures/a.png.png"]


def test_page_says_that_weak_regions_are_left_out(make_store, photos, tmp_path):
    store = make_store([regions("a.png").replace(scores=[0.9, 0.1])])
    out = tmp_path / "out"
    assert roivault.main(["view", store, "--images", str(photos), "-o", str(out), "--min-score", "0.5"]) == 0
    page = (out / "index.html").read_text("utf-8")
    assert "score ≥ 0.5" in page and "2 regions" in page


def test_limit_says_what_is_left_out(make_store, photos, tmp_path, capsys):
    keys = keys_below(photos)
    store = make_store([regions(key) for key in keys])
    out = tmp_path / "out"
    assert roivault.main(["view", store, "--images", str(photos), "-o", str(out), "--limit", "1", "--no-html"]) == 0
    assert "2 more" in capsys.readouterr().out
    assert [path.suffix for path in out.iterdir()] == [".png"]
