import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache import DataError
from cache.wire import (
    ACTIONS,
    INVALID_ARGUMENT,
    MAX_PAGE,
    PLACES,
    RECORDS,
    TOO_LARGE,
    InvalidRequest,
    Note,
    decode_request,
    encode_request,
)

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def test_requests_are_read_as_they_were_written():
    keys = ["a", "ключ", "\udc80", "../../etc/passwd", ""]
    assert decode_request(encode_request(store="coco", keys=keys), RECORDS) == {"store": "coco", "keys": keys}
    places = [[0, 16, 2048], [7, 0, 0]]
    request = encode_request(store=None, places=places)
    assert decode_request(request, RECORDS, otherwise=PLACES) == {"store": None, "places": places}
    page = {"store": None, "after": "0" * 16, "limit": MAX_PAGE}
    assert decode_request(encode_request(**page), ACTIONS["keys"][0]) == page


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"v": 1, "store": null, "keys": []', "not JSON"),
        (b'{"v": 1, "v": 1, "store": null, "keys": []}', "not JSON"),
        (b"[]", "no JSON object"),
        (b'"v"', "no JSON object"),
        (b'{"store": null, "keys": []}', "version"),
        (b'{"v": 2, "store": null, "keys": []}', "version"),
        (b'{"v": true, "store": null, "keys": []}', "version"),
        (b'{"v": 1.0, "store": null, "keys": []}', "version"),
        (b'{"v": 1, "keys": []}', "other fields"),
        (b'{"v": 1, "store": null, "keys": [], "path": "/"}', "other fields"),
        (b'{"v": 1, "store": 3, "keys": []}', "store is to be"),
        (b'{"v": 1, "store": null, "keys": "a"}', "keys is to be"),
        (b'{"v": 1, "store": null, "keys": ["a", null]}', "keys is to be"),
        (b'{"v": 1, "store": null, "keys": {}}', "keys is to be"),
    ],
)
def test_what_is_no_request_is_told(data, why):
    with pytest.raises(InvalidRequest, match=why) as caught:
        decode_request(data, RECORDS)
    assert caught.value.code == INVALID_ARGUMENT


@pytest.mark.parametrize(
    "place", [[0, 1], [0, 1, 2, 3], [-1, 0, 0], [0, -1, 0], [0, 0, -1], [0, 0.0, 1], [True, 0, 1], [0, 1 << 62, 1],
              [0, 0, 1 << 40], "abc", None, {}]
)  # fmt: skip
def test_places_are_whole_numbers(place):
    with pytest.raises(InvalidRequest, match="places is to be"):
        decode_request(encode_request(store=None, places=[[0, 0, 1], place]), RECORDS, otherwise=PLACES)


@pytest.mark.parametrize(
    ("name", "value"), [("limit", 0), ("limit", MAX_PAGE + 1), ("limit", 1.0), ("limit", True), ("after", 3)]
)
def test_fields_of_pages_are_checked(name, value):
    page = {"store": None, "after": None, "limit": 1, name: value}
    with pytest.raises(InvalidRequest, match=f"{name} is to be"):
        decode_request(encode_request(**page), ACTIONS["keys"][0])


def test_too_large_a_request_names_the_limit():
    with pytest.raises(InvalidRequest, match="100 bytes, this one has 4") as caught:
        decode_request(encode_request(store=None, keys=["a" * 400]), RECORDS, 100)
    assert caught.value.code == TOO_LARGE


@settings(max_examples=60)
@given(st.binary(max_size=64) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_anything_is_a_request_or_refused(data):
    for fields in (RECORDS, *(fields for fields, _ in ACTIONS.values() if fields)):
        with pytest.raises(InvalidRequest):
            decode_request(data, fields, otherwise=PLACES)


@settings(max_examples=60)
@given(st.fixed_dictionaries({"v": st.just(1) | ANYTHING, "store": ANYTHING, "keys": ANYTHING}))
def test_fields_of_any_kind_are_taken_or_refused(request_):
    try:
        taken = decode_request(json.dumps(request_).encode(), RECORDS)
    except InvalidRequest:
        return
    assert taken["store"] is None or isinstance(taken["store"], str)
    assert isinstance(taken["keys"], list) and all(isinstance(key, str) for key in taken["keys"])


@pytest.mark.parametrize(
    "note", [Note(), Note(damaged=True), Note({"kind": "empty", "message": "\udc80", "source": None})]
)
def test_notes_are_read_as_they_were_written(note):
    assert Note.decode(note.encode()) == note


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"{}", b"null", b'{"missing": false}', b'{"damaged": 1.5}', b'{"missing": true, "x": 1}',
     b'{"failure": null}', b'{"failure": {"kind": "empty"}}', b'{"failure": {"kind": 3, "message": "", "source": ""}}',
     b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_note_is_told(data):
    with pytest.raises(DataError, match="protocol"):
        Note.decode(data)
