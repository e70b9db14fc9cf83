from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache import CorruptRecord, InvalidRegions, Regions
from cache.record import FIELD, HEADER, MIN_BYTES, decode, encode


def sign(key: str, record: bytearray) -> bytes:
    """Give an altered record a checksum that fits."""
    values = list(HEADER.unpack_from(record))
    values[9] = 0
    HEADER.pack_into(record, 0, *values)
    values[9] = xxhash.xxh3_64_intdigest(key.encode() + bytes(record))
    HEADER.pack_into(record, 0, *values)
    return bytes(record)


@st.composite
def any_regions(draw):
    n, d = draw(st.integers(0, 4)), draw(st.sampled_from([0, 1, 2, 7]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    corners = rng.uniform(-10, 5000, (n, 2, 2)).astype(np.float32)
    optional = {}
    for name, array in {
        "scores": rng.random(n, np.float32),
        "class_ids": rng.integers(-(2**31), 2**31 - 1, n, np.int32),
        "class_probs": rng.random(n, np.float32),
        "attr_ids": rng.integers(0, 400, n, np.int32),
        "attr_probs": rng.random(n, np.float32),
        "class_scores": rng.random((n, 3)).astype(draw(st.sampled_from([np.float16, np.float32]))),
        "global_features": rng.random(5, np.float32),
        "source_digest": rng.bytes(16),
    }.items():
        if draw(st.booleans()):
            optional[name] = array
    return Regions(
        key=draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)),
        width=draw(st.integers(1, 2**32 - 1)),
        height=draw(st.integers(1, 100)),
        boxes=np.sort(corners, axis=1).reshape(n, 4),
        features=rng.normal(size=(n, d)).astype(draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]))),
        **optional,
    )


@given(any_regions(), st.sampled_from(["float16", "float32", "bfloat16"]))
@settings(max_examples=80, deadline=None)
def test_what_is_encoded_is_decoded(regions, feature_dtype):
    record = encode(regions, feature_dtype)
    assert encode(regions, feature_dtype) == record
    back = decode(regions.key, record)
    assert (back.key, back.width, back.height) == (regions.key, regions.width, regions.height)
    assert back.source_digest == regions.source_digest
    assert back.arrays().keys() == regions.arrays().keys()
    for name, array in regions.arrays().items():
        stored = back.arrays()[name]
        assert stored.shape == array.shape
        if name in ("features", "global_features"):
            assert stored.dtype == feature_dtype
            array = array.astype(stored.dtype)
        assert stored.dtype == array.dtype and stored.tobytes() == array.tobytes()


def test_arrays_are_aligned_where_the_file_is(make):
    record = encode(make("a", n=5, d=16), "float32")
    for *_, offset, _ in FIELD.iter_unpack(record[HEADER.size : HEADER.size + 8 * FIELD.size]):
        assert (16 + offset) % 64 == 0  # a value starts 16 bytes behind a page


def test_a_record_gets_pages_of_its_own(make):
    assert len(encode(make("a", n=0, d=1), "float16")) == MIN_BYTES


def test_views_where_aligned_and_copies_elsewhere(make, same):
    regions = make("a", n=4, d=16)
    record = encode(regions, "float32")
    for shift in (16, 17):
        buffer = memoryview(bytes(shift) + record)[shift:]
        back = decode("a", buffer)
        base = np.frombuffer(buffer, np.uint8)
        assert same(back, regions)
        assert all(array.flags.aligned for array in back.arrays().values())
        assert np.shares_memory(back.features, base) == (shift == 16)
    assert not decode("a", record).features.flags.writeable


def test_a_record_under_another_key_is_found_out(make):
    record = encode(make("a"), "float16")
    with pytest.raises(CorruptRecord, match="'b'.*checksum.*repair"):
        decode("b", record)
    assert decode("b", record, check=False).key == "b"


@pytest.mark.parametrize("size", [0, 1, 47, 48, 100, 2047])
def test_cut_records(make, size):
    record = encode(make("a"), "float16")
    for check in (True, False):
        with pytest.raises(CorruptRecord):
            decode("a", record[:size], check)
    with pytest.raises(CorruptRecord):
        decode("a", record + b"\0", check=False)


def test_every_flipped_bit_is_found(make):
    record = encode(make("a", n=1, d=1), "float16")
    for position in range(len(record)):
        altered = bytearray(record)
        altered[position] ^= 1 << position % 8
        with pytest.raises(CorruptRecord):
            decode("a", bytes(altered))


@given(st.binary(max_size=300) | st.binary(min_size=2000, max_size=2100))
@settings(max_examples=80, deadline=None)
def test_noise_is_refused(data):
    for check in (True, False):
        with pytest.raises(CorruptRecord):
            decode("a", data, check)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_altered_and_signed_records_are_refused_or_read(make, data):
    """Whatever is in header and table, decode either reads arrays inside of the record or says it is corrupt."""
    record = bytearray(encode(make("a", n=data.draw(st.integers(0, 2)), d=data.draw(st.integers(0, 2))), "float32"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, HEADER.size + 8 * FIELD.size - 1))
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        record[at : at + size] = data.draw(st.binary(min_size=size, max_size=size) | st.just(b"\xff" * size))
    for candidate, check in ((bytes(record), False), (sign("a", record), True)):
        try:
            regions = decode("a", candidate, check)
        except CorruptRecord:
            continue
        assert len(regions.boxes) == len(regions.features)
        assert all(array.nbytes <= len(candidate) for array in regions.arrays().values())


def with_table(make, change) -> bytes:
    """A record of boxes and features whose field table `change` alters."""
    record = bytearray(encode(make("a", extras=False), "float32"))
    table = [list(entry) for entry in FIELD.iter_unpack(record[HEADER.size : HEADER.size + 2 * FIELD.size])]
    change(table)
    record[HEADER.size : HEADER.size + 2 * FIELD.size] = b"".join(FIELD.pack(*entry) for entry in table)
    return sign("a", record)


@pytest.mark.parametrize(
    "row, column, value, why",
    [
        (0, 0, 200, "no boxes"),
        (0, 1, 4, "dtype code 4"),
        (0, 1, 99, "dtype code 99"),
        (0, 2, 1, "dims"),
        (0, 2, 3, "dims"),
        (0, 3, 4, "dims"),
        (1, 4, 9, "dims"),
        (0, 6, 44, "bytes"),
        (0, 5, 95, "lies outside"),
        (1, 5, 159, "lies outside"),
        (1, 5, 2040, "lies outside"),
        (1, 5, 2**63, "lies outside"),
    ],
)
def test_impossible_field_tables(make, row, column, value, why):
    def change(table):
        table[row][column] = value

    with pytest.raises(CorruptRecord, match=why):
        decode("a", with_table(make, change))


def test_a_field_that_occurs_twice(make):
    def change(table):
        table[1] = [*table[0][:5], table[1][5], table[0][6]]

    with pytest.raises(CorruptRecord, match="boxes occurs twice"):
        decode("a", with_table(make, change))


@pytest.mark.parametrize(
    "offset, value, why",
    [(0, b"RVR2", "starts with"), (4, b"\2\0", "version 2"), (6, b"\1", "impossible"), (16, bytes(4), "impossible")],
)
def test_impossible_headers(make, offset, value, why):
    record = bytearray(encode(make("a"), "float16"))
    record[offset : offset + len(value)] = value
    with pytest.raises(CorruptRecord, match=why):
        decode("a", sign("a", record))


def test_fields_of_a_later_version_are_skipped(make, same):
    regions = make("a")
    record = bytearray(encode(regions, "float32"))
    for place in range(8):
        at = HEADER.size + place * FIELD.size
        if FIELD.unpack_from(record, at)[0] == 3:  # scores
            record[at : at + 2] = struct.pack("<H", 999)
    back = decode("a", sign("a", record))
    assert back.scores is None and same(back, regions.replace(scores=None))


@pytest.mark.parametrize("name", ["features", "global_features"])
@pytest.mark.parametrize("value, dtype, fits", [
    (65504, "float16", True), (-65504, "float16", True), (65505, "float16", False), (-65520, "float16", False),
    (1e6, "float32", True), (1e6, "bfloat16", True), (3.4e38, "bfloat16", False),
])  # fmt: skip
def test_values_that_the_dtype_cannot_hold(make, name, value, dtype, fits):
    regions = make("a", extras=False)
    array = np.array([[0, value]] * 3, np.float32) if name == "features" else np.array([1, value], np.float32)
    regions = regions.replace(**{name: array})
    if fits:
        assert np.isfinite(decode("a", encode(regions, dtype)).arrays()[name].astype(np.float32)).all()
    else:
        with pytest.raises(InvalidRegions, match="float32") as error:
            encode(regions, dtype)
        assert error.value.kind == "value_range" and error.value.key == "a"


@pytest.mark.parametrize("n, d", [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2048)])
def test_tiny_records(make, same, n, d):
    regions = make("a", n=n, d=d)
    assert same(decode("a", encode(regions, "float32")), regions)


def test_a_view_that_is_not_contiguous_or_not_little_endian_is_stored_right(make):
    regions = make("a", n=4, d=6, extras=False)
    turned = regions.replace(features=np.asfortranarray(regions.features), boxes=regions.boxes.astype(">f4"))
    assert encode(turned, "float32") == encode(regions, "float32")
