import gc
import os
import stat
import weakref

import numpy as np
import pyarrow.flight as flight
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache import Failure, StoreDamaged, StoreWriter, open_store
from cache.index import Index
from cache.manifest import HEAD_BYTES, Manifest
from cache.record import decode
from cache.wire import DATA_LOSS, INVALID_ARGUMENT, NOT_FOUND, TOO_LARGE, Note, encode_request
from tests.cache.asker import asked, until

FAILED = Failure("bad", "empty", "no bytes", "photos/bad.jpg")
MISSING = Note()


@pytest.fixture
def photos(build):
    return build("photos.roi", ["a", "b"], ["c", "d", "e"], failures=[FAILED])


def refused(ask, code=INVALID_ARGUMENT):
    """The message with which a server refuses something."""
    with pytest.raises(flight.FlightServerError) as caught:
        ask()
    assert caught.value.extra_info == code.encode()
    assert "Traceback" not in str(caught.value) and ".py" not in str(caught.value)
    return str(caught.value)


# -- records


def test_records_come_in_the_order_asked_as_they_are_stored(photos):
    store = open_store(photos)
    with asked(photos) as asker:
        for keys in (["d", "a", "d", "e"], ["a"], []):
            assert asker.get(keys) == [bytes(store.record(key)) for key in keys]
        assert decode("c", asker.get(["c"])[0]).features.tobytes() == store["c"].features.tobytes()


def test_what_has_no_record_has_a_note(photos):
    with asked(photos) as asker:
        record, missing, failed, other = asker.get(["a", "nowhere", "bad", "b"])
    assert isinstance(record, bytes) and isinstance(other, bytes) and missing == MISSING
    assert failed == Note({"kind": "empty", "message": "no bytes", "source": "photos/bad.jpg"})


@pytest.mark.parametrize(
    "key", ["../../etc/passwd", "/etc/passwd", "shard-00000.lmdb", "manifest.json", "", "\0", "\udc80", "a" * 5000]
)
def test_keys_are_not_paths(photos, key):
    with asked(photos) as asker:
        assert asker.get([key, "a"])[0] == MISSING


def test_records_by_place(photos):
    store = open_store(photos)
    entries = {index.text(key): entry for _, index in store._lookup.resolved() for key, entry in index.states()}
    places = {key: [entry.shard, entry.offset, entry.length] for key, entry in entries.items()}
    size = store.manifest.shards[0].bytes
    with asked(photos) as asker:
        assert asker.places([places[key] for key in "eba"]) == [bytes(store.record(key)) for key in "eba"]
        beyond = [[0, size, 1], [0, size - 1, 2], [9, 0, 1], [0, 1 << 61, 1], [1 << 70, 0, 1]]
        assert asker.places([*beyond, [0, 0, 0]]) == [MISSING] * len(beyond) + [b""]
        assert asker.places([[0, 0, size]]) == [(photos / "shard-00000.lmdb").read_bytes()]


def test_what_does_not_fit_in_memory_is_copied(photos, monkeypatch):
    monkeypatch.setattr("cache.server_stores.available_memory", lambda: 0)
    monkeypatch.setattr("cache.server_stores._COPIED_AT_ONCE", 2)
    monkeypatch.setattr("cache.server_stores._COPIED_BYTES", 4096)
    store = open_store(photos)
    size = store.manifest.shards[0].bytes
    with asked(photos) as asker:
        keys = ["e", "nowhere", "a", "bad", "b"]
        found = asker.get(keys)
        assert [found[i] for i in (0, 2, 4)] == [bytes(store.record(key)) for key in ("e", "a", "b")]
        assert found[1] == MISSING and found[3].failure["kind"] == "empty"
        whole, part = asker.places([[0, 0, size], [0, 0, 100]])
        assert len(whole) == size > 4096 and part == whole[:100]


def test_a_damaged_record_is_told_and_the_others_come(photos, caplog):
    name, offset, _ = open_store(photos).location("b")
    with open(photos / f"{name}.lmdb", "r+b") as file:
        file.seek(offset + 500)
        file.write(b"\x55" * 8)
    with asked(photos) as asker:
        for _ in range(2):
            assert [isinstance(one, bytes) for one in asker.get(["a", "b", "c"])] == [True, False, True]
            assert asker.get(["b"]) == [Note(damaged=True)]
    assert caplog.text.count("its checksum is wrong") == 1


def test_a_shard_that_is_gone_is_damage(photos, caplog):
    with asked(photos) as asker:
        (photos / "shard-00001.lmdb").unlink()
        assert asker.get(["c", "bad"])[0] == Note(damaged=True)
        assert isinstance(asker.get(["a"])[0], bytes)
    assert "the shard is missing" in caplog.text


def test_an_index_that_is_gone_is_damage(photos, caplog):
    with asked(photos) as asker:
        (photos / "index.idx").unlink()  # it holds nothing that the others do not
        refused(lambda: read(asker, "index", file="index.idx"), NOT_FOUND)
        (photos / "shard-00001.idx").unlink()
        said = refused(lambda: read(asker, "index", file="shard-00001.idx"), DATA_LOSS)
    assert str(photos) not in said and f"{photos}/shard-00001.idx: it cannot be read" in caplog.text


def test_exchanged_requests_are_answered_in_order(photos):
    store = open_store(photos)
    requests = [["a", "nowhere"], [], ["e", "e", "d"]]
    with asked(photos) as asker:
        answers = asker.exchange([encode_request(store=None, keys=keys) for keys in requests])
        assert [metadata for _, metadata in answers] == [
            b'{"request": 0, "keys": 2}', None, MISSING.encode(), b'{"request": 1, "keys": 0}',
            b'{"request": 2, "keys": 3}', None, None, None,
        ]  # fmt: skip
        records = [record for record, metadata in answers if metadata is None]
        assert records == [bytes(store.record(key)) for key in "aeed"]
        assert asker.exchange([]) == []


def test_an_exchange_ends_at_the_first_request_that_is_refused(photos):
    with asked(photos) as asker:
        good = encode_request(store=None, keys=["a"])
        assert "not JSON" in refused(lambda: asker.exchange([good, b"{", good]))
        assert len(asker.get(["a"])) == 1


def test_flight_info(photos):
    store = open_store(photos)
    keys = ["a", "b", "nowhere", "bad"] + ["c"] * 600
    with asked(photos) as asker:
        info = asker.info(keys)
        sizes = [len(store.record(key)) for key in keys if key in store]
        assert (info.total_records, info.total_bytes) == (len(sizes), sum(sizes))
        assert len(info.endpoints) == 3 and info.schema.names == ["record"]
        found = [one for endpoint in info.endpoints for one in asker.raw(endpoint.ticket.ticket)]
        assert [record for record, _ in found if record] == [bytes(store.record(key)) for key in keys if key in store]


# -- several stores


def test_several_stores_are_told_apart_by_their_names(build, photos):
    stores = {"photos": photos, "coco.2014": build("coco.2014", ["a"], salt=1), "coco.2017": build("coco.2017", ["a"])}
    with asked(*stores.values()) as asker:
        assert asker.ask("stores")["stores"] == list(stores)
        for name, path in stores.items():
            assert asker.get(["a"], name) == [bytes(open_store(path).record("a"))]
        assert "store is to be one of photos, coco.2014, coco.2017" in refused(lambda: asker.get(["a"]))
        assert "no store 'x'" in refused(lambda: asker.get(["a"], "x"), NOT_FOUND)


def test_some_shards_of_a_store(photos):
    with asked(photos / "shard-00001.lmdb") as asker:
        assert asker.get(["a"]) == [MISSING] and isinstance(asker.get(["c"])[0], bytes)
        assert [shard.number for shard in Manifest.from_bytes(read(asker, "manifest"), "").shards] == [1]
        assert asker.places([[0, 0, 1]]) == [MISSING]
        refused(lambda: read(asker, "index", file="shard-00000.idx"), NOT_FOUND)


# -- manifest, indexes, listings


def read(asker, action, offset=0, length=None, **fields):
    return asker.bytes(action, store=None, offset=offset, length=length, **fields)


def test_the_manifest_and_the_indexes_are_the_files(photos):
    with asked(photos) as asker:
        data = (photos / "manifest.json").read_bytes()
        assert read(asker, "manifest") == data and read(asker, "manifest", 0, HEAD_BYTES) == data[:HEAD_BYTES]
        for shard in Manifest.from_bytes(data, "").shards:
            whole = (photos / shard.index_file).read_bytes()
            assert read(asker, "index", file=shard.index_file) == whole and len(whole) == shard.index_bytes
            assert read(asker, "index", 7, 50, file=shard.index_file) == whole[7:57]  # as one goes on that broke off
            assert read(asker, "index", len(whole) - 3, 50, file=shard.index_file) == whole[-3:]
            assert read(asker, "index", len(whole) + 3, 50, file=shard.index_file) == b""
            assert read(asker, "index", 1 << 61, 50, file=shard.index_file) == b""  # further than files can be
        merged = photos / "index.idx"
        assert read(asker, "index", file="index.idx") == merged.read_bytes()


def test_large_indexes_come_in_pieces(photos, monkeypatch):
    monkeypatch.setattr("cache.server_stores.FILE_CHUNK", 100)
    whole = (photos / "shard-00001.idx").read_bytes()
    with asked(photos) as asker:
        for offset, length in ((0, None), (150, None), (150, 120), (0, 100)):
            end = None if length is None else offset + length
            assert read(asker, "index", offset, length, file="shard-00001.idx") == whole[offset:end]


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "manifest.json", "shard-00000.lmdb", "", "shard-00009.idx"]
)
def test_only_indexes_can_be_read(photos, name):
    (photos.parent / "secret").write_text("x")
    with asked(photos) as asker:
        refused(lambda: read(asker, "index", file=name), NOT_FOUND)


def test_pages_hold_every_key_once(build):
    names = [f"key-{i}" for i in range(25)]
    failures = [Failure(f"bad-{i}", "empty", str(i), None) for i in range(7)]
    with asked(build("many.roi", names[:11], names[11:], failures=failures)) as asker:
        for limit in (1, 4, 25, 100):
            pages = list(asker.pages("keys", limit))
            assert sorted(key for page in pages for key in page) == sorted(names)
            assert all(len(page) == limit for page in pages[:-1]) and len(pages[-1]) <= limit
        found = [one for page in asker.pages("failures", 3) for one in page]
        assert sorted(one["key"] for one in found) == sorted(failure.key for failure in failures)
        assert {one["message"] for one in found} == set("0123456") and found[0]["kind"] == "empty"
        assert "after is to be" in refused(lambda: asker.ask("keys", store=None, after="zz", limit=1))


def test_pages_end_between_hashes(build, monkeypatch):
    monkeypatch.setattr("cache.index.hash_keys", lambda keys: np.array([len(key) for key in keys], np.uint64))
    names = ["a", "b", "c", "dd", "ee", "fff"]
    with asked(build("equal.roi", names)) as asker:
        assert [sorted(page) for page in asker.pages("keys", 2)] == [["a", "b", "c"], ["dd", "ee"], ["fff"]]


def test_stats(photos):
    with asked(photos) as asker:
        stats = asker.ask("stats", store="photos")
        sizes = [os.path.getsize(photos / f"shard-0000{i}.lmdb") for i in range(2)]
        assert stats == {
            "records": 5, "failures": 1, "bytes": sum(sizes), "shards": 2, "dim": 8, "feature_dtype": "float32",
        }  # fmt: skip
        assert asker.ask("health") == {"status": "serving"}


# -- a store that grows, and is only read


def test_shards_that_are_sealed_meanwhile_are_served(photos, make):
    with asked(photos) as asker:
        assert asker.get(["new", "a"])[0] == MISSING
        earlier = weakref.ref(asker.server.stores["photos"].snapshot())
        with StoreWriter(photos, "float32") as writer:
            writer.write([make("new")])
            assert asker.get(["new"]) == [MISSING]  # not sealed yet
            assert [s.number for s in Manifest.from_bytes(read(asker, "manifest"), "").shards] == [0, 1]
        assert isinstance(asker.get(["new"])[0], bytes)
        assert asker.ask("stats", store=None)["records"] == 6
        assert [s.number for s in Manifest.from_bytes(read(asker, "manifest"), "").shards] == [0, 1, 2]
        index = Index.open(photos / "shard-00002.idx")
        place = index.entry(0)
        assert asker.places([[2, place.offset, place.length]]) == asker.get(["new"])
        until(lambda: gc.collect() >= 0 and earlier() is None)


def test_records_that_are_replaced_meanwhile_are_served(photos, make):
    with asked(photos) as asker:
        earlier = asker.get(["a"])
        with StoreWriter(photos, "float32") as writer:
            writer.write([make("a", salt=1)], on_duplicate="replace")
        now = [bytes(open_store(photos).record("a"))]
        assert now != earlier and asker.get(["a"]) == now and asker.info(["a"]).total_bytes == len(now[0])


def test_a_store_that_cannot_be_read_any_more_is_served_as_it_was(photos, caplog):
    with asked(photos) as asker:
        kept = asker.get(["a"])
        (photos / "manifest.json").write_bytes(b"{}")
        assert asker.get(["nowhere", "a"]) == [MISSING, *kept]
        assert asker.ask("stats", store=None)["records"] == 5
    assert "is served as it was" in caplog.text


def test_nothing_is_written(build):
    path = build("growing.roi", ["a"], ["b"], open_last=True)
    before = {name: os.stat(path / name).st_mtime_ns for name in os.listdir(path) if not name.endswith("-lock")}
    for name in os.listdir(path):
        if name.endswith("-lock"):
            (path / name).unlink()
    path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with asked(path) as asker:
            assert asker.get(["b"]) == [MISSING] and isinstance(asker.get(["a"])[0], bytes)
            asker.ask("stats", store=None)
        assert {name: os.stat(path / name).st_mtime_ns for name in os.listdir(path)} == before
    finally:
        path.chmod(0o700)


def test_a_store_without_sealed_shards_is_empty(build):
    with asked(build("young.roi", ["a"], open_last=True)) as asker:
        assert asker.ask("stats", store=None)["records"] == 0 and asker.get(["a"]) == [MISSING]
        assert list(asker.pages("keys", 5)) == [[]]


def test_a_damaged_store_is_not_served(photos):
    (photos / "shard-00000.idx").write_bytes(b"x")
    (photos / "index.idx").unlink()
    with pytest.raises(StoreDamaged), asked(photos):
        pass


# -- what is refused


def test_requests_that_are_none(photos):
    with asked(photos) as asker:
        refused(lambda: asker.raw(b"{"))
        refused(lambda: asker.raw(b""))
        assert "there are health, stores" in refused(lambda: asker.ask("reset", store=None))
        refused(lambda: asker.ask("keys", store=None))
        command = flight.FlightDescriptor.for_path("photos")
        refused(lambda: asker.client.get_flight_info(command, asker.call))
        refused(lambda: list(asker.client.list_flights(b"", asker.call)))
        refused(lambda: asker.client.do_put(command, asker.client.get_schema(command, asker.call).schema)[0].close())
        assert [action.type for action in asker.client.list_actions(asker.call)][0] == "health"
        assert len(asker.get(["a"])) == 1


def test_too_large_requests_name_the_limit(photos):
    from cache.server_limits import Limits

    with asked(photos, limits=Limits(keys=3, request_bytes=1000)) as asker:
        assert len(asker.get(["a"] * 3)) == 3
        assert "3 keys, this one has 4" in refused(lambda: asker.get(["a"] * 4), TOO_LARGE)
        assert "3 keys, this one has 4" in refused(lambda: asker.places([[0, 0, 1]] * 4), TOO_LARGE)
        assert "1000 bytes" in refused(lambda: asker.get(["a" * 1000]), TOO_LARGE)
        assert "3 keys" in refused(lambda: asker.exchange([encode_request(store=None, keys=["a"] * 4)]), TOO_LARGE)
        stated = asker.ask("stores")
        assert (stated["max_keys"], stated["max_request_bytes"]) == (3, 1000)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(min_size=1, max_size=80),
    action=st.text(max_size=6) | st.sampled_from(["keys", "index", "stats", "stores"]),
)
def test_nonsense_is_refused_and_the_server_stays_up(fuzzed, data, action):
    for ask in (
        lambda: fuzzed.raw(data),
        lambda: list(fuzzed.client.do_action(flight.Action(action, data), fuzzed.call)),
        lambda: fuzzed.client.get_flight_info(flight.FlightDescriptor.for_command(data), fuzzed.call),
        lambda: fuzzed.exchange([data]),
    ):
        try:
            ask()
        except flight.FlightServerError as error:
            assert error.extra_info.decode() in (INVALID_ARGUMENT, NOT_FOUND, TOO_LARGE)
        else:
            assert action == "stores"
    assert len(fuzzed.get(["a"])) == 1


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    from tests.cache.conftest import make_regions

    path = tmp_path_factory.mktemp("fuzzed") / "photos.roi"
    with StoreWriter(path, "float32") as writer:
        writer.write([make_regions("a")])
    with asked(path) as asker:
        yield asker
