import os

import pytest

from cache import InputNotFound, UsageError
from extractor.images import DecodePolicy, ImageError
from ray_jobs.sources import open_source

JPEG = b"\xff\xd8\xff\xe0 not decoded here"


def touch(path, data=JPEG):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def keys(spec, rule="path"):
    return [item.key for item in open_source(str(spec), rule).items()]


def failure_of(item):
    with pytest.raises(ImageError) as caught:
        item.locator.read(item.key, DecodePolicy())
    assert caught.value.key == item.key
    return caught.value.kind


def test_a_folder_is_listed_directory_by_directory_in_byte_order(tmp_path):
    for name in ("b.jpg", "a.jpg", "Z.jpg", "sub/2.jpg", "sub/10.jpg", "sub/deep/x.jpg", "alpha/x.jpg", "é.jpg"):
        touch(tmp_path / name)
    expected = ["Z.jpg", "a.jpg", "b.jpg", "é.jpg", "alpha/x.jpg", "sub/10.jpg", "sub/2.jpg", "sub/deep/x.jpg"]
    assert keys(tmp_path) == expected == keys(f"{tmp_path}/") == keys(f"folder:{tmp_path}")


def test_suffix_or_content_makes_an_image(tmp_path):
    listed = ["PHOTO.JPEG", "anim.gif", "drawing.svg", "phone.heic", "empty.png", "page.jpg", ".hidden.jpg", "none"]
    for name in listed:
        touch(tmp_path / name)
    touch(tmp_path / "empty.png", b"")
    touch(tmp_path / "page.jpg", b"<!doctype html>")
    touch(tmp_path / "notes.txt", b"hello")
    touch(tmp_path / "Thumbs.db", b"\xd0\xcf\x11\xe0" + bytes(100))
    touch(tmp_path / ".DS_Store", b"\0\0\0\1Bud1" + bytes(100))
    touch(tmp_path / "nothing", b"")
    touch(tmp_path / "photo.jpg_old")  # starts like a JPEG
    os.mkfifo(tmp_path / "pipe")  # must not be opened
    assert sorted(keys(tmp_path)) == sorted([*listed, "photo.jpg_old"])


def test_stores_are_passed_over(tmp_path):
    touch(tmp_path / "a.jpg")
    touch(tmp_path / "photos.roi" / "b.jpg")
    assert keys(tmp_path) == ["a.jpg"]
    with pytest.raises(UsageError, match="is a store"):
        open_source(str(tmp_path / "photos.roi"))


def test_links_to_folders_are_followed_but_never_in_a_circle(tmp_path):
    touch(tmp_path / "photos" / "a" / "1.jpg")
    touch(tmp_path / "elsewhere" / "2.jpg")
    (tmp_path / "photos" / "a" / "up").symlink_to("..")
    (tmp_path / "photos" / "a" / "self").symlink_to(".")
    (tmp_path / "photos" / "linked").symlink_to("../elsewhere")
    (tmp_path / "photos" / "z.jpg").symlink_to("a/1.jpg")
    assert keys(tmp_path / "photos") == ["z.jpg", "a/1.jpg", "linked/2.jpg"]


@pytest.mark.parametrize(("name", "target"), [("gone.jpg", "nowhere"), ("loop.jpg", "loop.jpg")])
def test_broken_links_are_listed_and_fail(tmp_path, name, target):
    (tmp_path / name).symlink_to(target)
    (item,) = open_source(str(tmp_path)).items()
    assert item.key == name
    assert failure_of(item) == ("missing" if target == "nowhere" else "unreadable")


def test_what_is_no_regular_file_is_unreadable(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (item,) = open_source(str(tmp_path)).items()
    assert failure_of(item) == "unreadable"


def test_a_folder_that_cannot_be_listed_is_one_failure(tmp_path, unprivileged):
    touch(tmp_path / "open" / "a.jpg")
    touch(tmp_path / "shut" / "b.jpg")
    os.chmod(tmp_path / "shut", 0)
    with unprivileged():
        readable, failed = open_source(".").items()
        with pytest.raises(InputNotFound, match="shut: Permission denied"):
            open_source("shut")
    os.chmod(tmp_path / "shut", 0o755)
    assert (readable.key, failed.key) == ("open/a.jpg", "shut")
    assert failure_of(failed) == "unreadable"


def test_a_single_file_is_listed_whatever_it_is(tmp_path):
    assert keys(touch(tmp_path / "x.jpg")) == ["x.jpg"]
    assert keys(touch(tmp_path / "x.dat", b"?"), "stem") == ["x"]
    assert keys(touch(tmp_path / "really_a_jpeg.txt")) == ["really_a_jpeg.txt"]


@pytest.mark.parametrize("spec", ["list.txt", "@images.lst"])
def test_a_list_file_names_paths_relative_to_itself(tmp_path, spec):
    touch(tmp_path / "in" / "b.jpg")
    touch(tmp_path / "in" / "folder" / "c.jpg")
    inside = tmp_path / "in" / "b.jpg"
    lines = ["b.jpg", "", "  ", "./b.jpg", str(inside), "gone.jpg", "folder", "sp ace.bin", "/abs.jpg"]
    (tmp_path / "in" / spec.strip("@")).write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    at, name = ("@", spec[1:]) if spec.startswith("@") else ("", spec)
    found = keys(f"{at}{tmp_path}/in/{name}")
    assert found == ["b.jpg", "b.jpg", "b.jpg", "gone.jpg", "folder/c.jpg", "sp ace.bin", "/abs.jpg"]


def test_a_list_file_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path / "a.jpg")
    (tmp_path / "list.txt").write_text("a.jpg\n")
    (item,) = open_source("list.txt").items()
    assert (item.key, item.locator.read("a.jpg", DecodePolicy())) == ("a.jpg", JPEG)


def test_globs(tmp_path, monkeypatch):
    for name in ("a/1.jpg", "a/2.png", "b/1.jpg", "b/c/3.jpg", "notes.txt", "{x}.jpg"):
        touch(tmp_path / name, b"text" if name.endswith("txt") else JPEG)
    assert keys(tmp_path / "*/1.jpg") == ["a/1.jpg", "b/1.jpg"]
    assert keys(tmp_path / "**/*.jpg") == ["{x}.jpg", "a/1.jpg", "b/1.jpg", "b/c/3.jpg"]
    assert keys(tmp_path / "b/*.jpg") == ["1.jpg"]
    assert keys(tmp_path / "b*") == ["b/1.jpg", "b/c/3.jpg"]
    assert keys(tmp_path / "{b,a}/{1..2}.*") == ["b/1.jpg", "a/1.jpg", "a/2.png"]
    monkeypatch.chdir(tmp_path)
    assert keys("*/1.jpg") == ["a/1.jpg", "b/1.jpg"]


def test_a_path_that_exists_wins_over_patterns_lists_and_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("[1].jpg", "@list", "folder:x/a.jpg"):
        touch(tmp_path / name)
    touch(tmp_path / "1.jpg")
    assert keys("[1].jpg") == ["[1].jpg"]
    assert keys("@list") == ["@list"]
    assert keys("folder:x") == ["a.jpg"]


@pytest.mark.parametrize("spec", ["gone", "gone/*.jpg", "*.jpg", "@gone", "coco:gone", "folder:gone"])
def test_nothing_there(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputNotFound, match="gone|nothing matches"):
        open_source(spec)


def test_wrong_use():
    with pytest.raises(UsageError, match="path, name, stem"):
        open_source(".", "hash")
    with pytest.raises(UsageError, match="SOURCE"):
        open_source("")


def test_key_rules(tmp_path):
    touch(tmp_path / "sub" / "a.v1.jpg")
    assert [keys(tmp_path, rule) for rule in ("path", "name", "stem")] == [["sub/a.v1.jpg"], ["a.v1.jpg"], ["a.v1"]]


def test_odd_names_become_valid_keys(tmp_path):
    names = [b"caf\xe9.jpg", b"q\"uo'te.jpg", b"new\nline.jpg", "日本.jpg".encode(), b" lead.jpg"]
    for name in names:
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(JPEG)
    items = list(open_source(str(tmp_path)).items())
    assert {item.key for item in items} == {"caf%E9.jpg", "q\"uo'te.jpg", "new\nline.jpg", "日本.jpg", " lead.jpg"}
    for item in items:
        assert item.locator.read(item.key, DecodePolicy()) == JPEG
        assert item.source.encode()


def test_a_key_that_is_too_long_is_a_failure_under_a_shorter_one(tmp_path):
    deep = tmp_path.joinpath(*["d" * 100] * 5)
    touch(deep / "one.jpg")
    touch(deep / "two.jpg")
    one, two = open_source(str(tmp_path)).items()
    assert failure_of(one) == failure_of(two) == "key_invalid"
    assert one.key != two.key and one.key.startswith("d" * 100 + "/") and len(one.key.encode()) <= 511
    assert keys(tmp_path, "name") == ["one.jpg", "two.jpg"]
