"""The gallery page: complete, self-contained, and safe whatever the keys and names hold."""

from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest

from cache import Failure, Regions
from cache.output import visible
from extractor.gallery import write_gallery

VOID = {"meta", "img", "br", "link", "input"}
NASTY = '<script>alert(1)</script> & "quoted" \'single\' \n\x1b[31m ünï.jpg'


class Page(HTMLParser):
    """Elements of a page, with their attributes and text; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.open = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def regions(key, n=2, **fields):
    boxes = np.tile(np.array([1, 2, 30, 40], np.float32), (n, 1))
    return Regions(key, 64, 48, boxes, np.zeros((n, 2), np.float32), **fields)


def write(tmp_path, items, **options):
    path = tmp_path / "index.html"
    write_gallery(path, items, ("cat", "dog <b>"), ("old",), **{"title": "photos.roi", **options})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index.html"]
    return Page(path.read_text("utf-8"))


def test_every_image_is_shown_with_its_regions(tmp_path):
    found = regions("a/b.jpg", class_ids=[0, 1], class_probs=[0.9, 0.25], attr_ids=[0, 0], scores=[0.9, 0.25])
    page = write(tmp_path, iter([("a/b.jpg", "a_b.png", found), ("empty.jpg", "empty.png", regions("empty.jpg", 0))]))
    assert [image["src"] for image in page.all("img")] == ["a_b.png", "empty.png"]
    text = " ".join("".join(page.text).split())
    for expected in ("photos.roi", "a/b.jpg", "64 × 48", "2 regions", "dog <b>", "0.25", "1, 2, 30, 40", "no regions"):
        assert expected in text
    assert len(page.all("details")) == 1


def test_page_needs_nothing_from_elsewhere(tmp_path):
    page = write(tmp_path, [("k", "k.png", regions("k"))], facts={"model": "demo"})
    assert not page.all("script") and not page.all("link")
    for tag, attribute in (("img", "src"), ("a", "href")):
        assert all("//" not in attrs[attribute] for attrs in page.all(tag))


def test_nasty_names_stay_text(tmp_path):
    failure = Failure(NASTY, "decode_error", NASTY)
    page = write(
        tmp_path, [(NASTY, 'dir/a b#c?"<.png', regions(NASTY))], title=NASTY, facts={NASTY: NASTY}, failures=[failure]
    )
    assert not page.all("script")
    assert unquote(page.all("img")[0]["src"]) == 'dir/a b#c?"<.png'
    assert "#" not in page.all("img")[0]["src"] and "?" not in page.all("img")[0]["src"]
    assert "".join(page.text).count(visible(NASTY)) == 7
    assert "\x1b" not in "".join(page.text)


def test_failures_are_listed_with_kind_and_reason(tmp_path):
    page = write(tmp_path, [], failures=[Failure("bad.jpg", "truncated", "ends after 7 of 900 bytes")])
    text = "".join(page.text)
    assert "bad.jpg" in text and "truncated" in text and "ends after 7 of 900 bytes" in text


def test_page_is_replaced_only_when_complete(tmp_path):
    write(tmp_path, [("k", "k.png", regions("k"))])
    before = (tmp_path / "index.html").read_bytes()

    def items():
        yield "k", "k.png", regions("k")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, items())
    assert (tmp_path / "index.html").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index.html"]
