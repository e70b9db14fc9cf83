import os

import pytest

from cache.keys import MAX_KEY_BYTES, file_key, fits, printable, shorten


@pytest.mark.parametrize(
    ("rule", "relative", "key"),
    [
        ("path", "a/b/x.jpg", "a/b/x.jpg"),
        ("path", "track 2.0 (clean).jpg", "track 2.0 (clean).jpg"),
        ("path", 'zwei\nzeilen "q".png', 'zwei\nzeilen "q".png'),
        ("path", "ünï/日本.png", "ünï/日本.png"),
        ("name", "a/b/x.jpg", "x.jpg"),
        ("stem", "a/b/x.jpg", "x"),
        ("stem", "a.v1.jpg", "a.v1"),
        ("stem", "a.v2.jpg", "a.v2"),
        ("stem", ".x.jpg", ".x"),
        ("stem", "a/.jpg", ".jpg"),
        ("stem", "noend", "noend"),
    ],
)
def test_file_key(rule, relative, key):
    assert file_key(relative, rule) == key


def test_bytes_that_are_not_utf8_are_percent_escaped():
    name = os.fsdecode(b"caf\xe9 \xff/ok \xc3\xa9.jpg")
    assert printable(name) == "caf%E9 %FF/ok é.jpg"
    assert file_key(name).encode()  # valid unicode, where the name itself is not


def test_keys_up_to_511_bytes_fit():
    assert fits("x") and fits("x" * MAX_KEY_BYTES) and fits("é" * 255)
    assert not fits("") and not fits("x" * 512) and not fits("é" * 256)


def test_a_long_key_is_cut_between_characters_and_stays_distinct():
    long = "x" + "é" * 400
    short = shorten(long)
    assert fits(short)
    head, _, digest = short.rpartition("#")
    assert head == "x" + "é" * 239 and len(head.encode()) == 479 and len(digest) == 16
    assert shorten(long + "a") != shorten(long + "b")
