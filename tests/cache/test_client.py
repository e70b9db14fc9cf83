import pickle
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
import typer

from cache import (
    CorruptRecord,
    DiskError,
    Failure,
    InputNotFound,
    MissingKeys,
    StoreDamaged,
    StoreNotFound,
    StoreWriter,
    explain_commands,
    open_store,
    published,
)
from cache import client as client_module
from cache import remote as remote_module
from cache.client import ServedFolder
from cache.commands import register
from cache.compare import compare
from cache.contents import StoreContents
from cache.convert import convert
from cache.dataset import RegionDataset
from cache.errors import StoreUnreachable, UsageError
from cache.server_limits import Limits
from cache.stats import collect
from cache.subset import subset
from cache.verify import digest, verify
from tests.cache.asker import asked, in_a_process
from tests.cache.certificates import Authority
from tests.cache.conftest import command_line

FAILED = [Failure("f1", "empty", "m"), Failure("f2", "missing", "gone", "there.jpg")]
TOKEN, OTHER = "a-token-of-some-length", "another-token-of-a-length"
KEYS = ["d/2", "a", "c", "a", "b", "d/1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Mirrors of this test's own, and little patience."""
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    for name in ("FIRST_DEADLINE", "DEADLINE"):
        monkeypatch.setattr(remote_module, name, 0.5)
    monkeypatch.setattr(remote_module, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(client_module, "_FIRST_SECONDS", 5.0)


@pytest.fixture
def path(build):
    return build("coco.roi", ["a", "b", "c"], ["d/1", "d/2"], failures=FAILED)


@pytest.fixture
def url(path):
    with asked(path) as server:
        yield server.url


def test_a_served_store_is_read_like_a_local_one(path, url, same):
    store, local = open_store(url), open_store(path)
    assert str(store.paths[0]) == url and url in repr(store)
    assert list(store.keys()) == list(store) == list(local.keys()) and len(store) == 5
    assert "a" in store and "f1" not in store
    assert list(store.failures()) == list(local.failures()) != [] and list(store.states()) == list(local.states())
    assert store.manifest == local.manifest and store.manifests == local.manifests
    for read in ("auto", "mmap", "pread"):
        assert all(map(same, store.get_many(KEYS, read=read), local.get_many(KEYS)))
    assert same(store["a"], local["a"]) and bytes(store.record("b")) == bytes(local.record("b"))
    assert store.get("z") is None and len(store.get_many(["z", "a", "f1"], missing="skip")) == 1
    assert store.location("d/1") == local.location("d/1") and store.stored("f1") == local.stored("f1")
    assert np.array_equal(store.places([*KEYS, "z"]), local.places([*KEYS, "z"]))
    assert list(store.holds(["a", "f1", "z"])) == [True, False, None] and not store.refresh()
    with pytest.raises(MissingKeys, match="f2.*failed: missing: gone"):
        store["f2"]
    again = pickle.loads(pickle.dumps(store))
    assert again.paths == store.paths and same(again["c"], local["c"])
    (apart,) = store.apart()
    assert same(apart["c"], local["c"])
    assert open_store(url, verify="always")["a"].key == open_store(url, verify="never")["a"].key == "a"


def test_nothing_is_copied_on_the_way_to_the_arrays(url):
    regions = open_store(url)["a"]
    assert not regions.features.flags.owndata and not regions.features.flags.writeable
    assert isinstance(regions.features.base, pa.Buffer)


def test_a_store_by_its_name_and_some_of_its_shards(path, build, make):
    with asked(path, build("vg.roi", ["v"], salt=1)) as server:
        assert list(open_store(f"{server.url}/vg").keys()) == list(open_store(f"{server.url}/vg.roi").keys()) == ["v"]
        part = open_store(f"{server.url}/coco/shard-00001.lmdb")
        assert sorted(part.keys()) == sorted(part.apart()[0].keys()) == ["d/1", "d/2"] and "a" not in part
        both = open_store([f"{server.url}/coco", f"{server.url}/vg"])
        assert len(both) == 6 and both["v"].key == "v"
        with pytest.raises(StoreNotFound, match=f"{server.url} serves no such store; it serves 'coco', 'vg'"):
            open_store(f"{server.url}/flickr")
        with pytest.raises(UsageError, match=f"one of coco, vg.*give {server.url}/NAME"):
            open_store(server.url)


@pytest.mark.parametrize("url", ["grpc://", "grpc:///a", "grpc://h:x", "grpc://h:1?a=b", "grpc://me:pw@h:1"])
def test_what_is_no_address(url):
    with pytest.raises(UsageError, match="is not grpc://HOST:PORT") as raised:
        open_store(url)
    assert "pw" not in str(raised.value)


def test_what_takes_stores_takes_served_ones(path, url, tmp_path, build, capsys):
    run = command_line(_app())
    assert digest(url) == digest(path) and verify(url, ["a", "b"]).ok
    assert verify(url, ["a", "z"]).missing == ["z"]
    for verb in ("info", "ls", "stats"):
        assert run(verb, url)
    assert "640" in run("show", url, "a")
    assert collect(StoreContents(url)).records == 5
    assert compare(StoreContents(url), StoreContents(path)).equal == 5
    assert subset(url, tmp_path / "part.roi", ["b", "d/1"]).records == 2
    assert sorted(open_store(tmp_path / "part.roi").keys()) == ["b", "d/1"]
    convert(url, tmp_path / "copy.roi", feature_dtype="float32")
    assert digest(tmp_path / "copy.roi") == digest(path)
    with pytest.raises(UsageError, match="can only be read"):
        ServedFolder(url).check_writable()


def _app():
    app = typer.Typer()
    register(app)
    explain_commands.register(app)
    return app


# -- requests


def test_requests_are_cut_to_the_limits_of_the_server(path, same):
    local = open_store(path)
    for limits, most in ((Limits(keys=2), 2), (Limits(request_bytes=1100), 1)):
        with asked(path, limits=limits) as server:
            store = open_store(server.url)
            assert store.paths[0]._most_places == most
            store.prefetch(KEYS)
            assert all(map(same, store.get_many(KEYS), local.get_many(KEYS)))
            assert digest(server.url) == digest(path)


def test_prefetch_asks_before_it_is_waited_for(url, monkeypatch, same, make):
    store, asked_for = open_store(url), []
    records_at = ServedFolder.records_at
    monkeypatch.setattr(
        ServedFolder, "records_at", lambda self, places, stop: asked_for.append(len(places)) or records_at(self, places)
    )
    store.prefetch(["a", "b", "d/1", "f1", "z"])
    assert all(same(regions, make(regions.key)) for regions in store.get_many(["a", "b", "d/1"]))
    assert asked_for == [4]
    store.get("a")
    assert asked_for == [4, 1]


def test_large_requests_go_in_several_streams(url, monkeypatch, same, make):
    monkeypatch.setattr(client_module, "REQUEST_BYTES", 5000)
    store, streams = open_store(url), []
    assert store.paths[0]._most_places > 5
    call = ServedFolder._call
    monkeypatch.setattr(ServedFolder, "_call", lambda self, *args: streams.append(1) or call(self, *args))
    assert all(same(regions, make(regions.key)) for regions in store.get_many(["a", "b", "c", "d/1", "d/2"]))
    assert len(streams) == 3


def test_a_snapshot_stays_what_it_was(path, url, make, same):
    store = open_store(url)
    with StoreWriter(path, "float32") as writer:
        writer.write([make("a", salt=1), make("new")], on_duplicate="replace")
    assert same(store["a"], make("a")) and len(store) == 5
    assert store.refresh() and same(store["a"], make("a", salt=1)) and same(store["new"], make("new"))


def test_a_new_shard_is_found_by_a_miss(path, url, make, same, monkeypatch):
    store = open_store(url)
    with StoreWriter(path, "float32") as writer:
        writer.write([make("new")])
    assert "new" not in store
    monkeypatch.setattr(published, "MISS_SECONDS", -1.0)
    assert same(store["new"], make("new"))


def test_a_rate_that_is_exceeded_is_waited_for(path, monkeypatch):
    monkeypatch.setattr(remote_module, "DEADLINE", 20.0)
    with asked(path, limits=Limits(rate=5)) as server:
        store = open_store(server.url)
        for _ in range(3):
            assert len(store.get_many(KEYS[:5])) == 5


# -- damage, and servers that are none


@pytest.mark.parametrize("times", [1, 9])
def test_a_record_that_arrives_altered_is_read_again_then_refused(path, url, monkeypatch, times):
    _, offset, _ = open_store(path).location("b")
    value, spoiled = ServedFolder._value, []

    def spoil(self, chunk, place):
        data = bytearray(value(self, chunk, place))
        if place[1] == offset and len(spoiled) < times:
            spoiled.append(place)
            data[300] ^= 255
        return memoryview(bytes(data))

    monkeypatch.setattr(ServedFolder, "_value", spoil)
    store = open_store(url)
    assert [regions.key for regions in store.get_many(["a", "c"])] == ["a", "c"]
    if times == 1:
        assert store["b"].key == "b"
    else:
        with pytest.raises(CorruptRecord, match=f"'b'.*{url}/shard-00000.lmdb, byte {offset}"):
            store["b"]


def test_shards_that_the_server_cannot_read(path, url):
    store = open_store(url)
    (path / "shard-00001.lmdb").unlink()
    with pytest.raises(StoreDamaged, match=f"{url}/shard-00001.lmdb: the server cannot read it"):
        store["d/1"]
    assert store["a"].key == "a"


class Strange(flight.FlightServerBase):
    """Answers what no feature server does."""

    def __init__(self, batches):
        super().__init__("grpc://127.0.0.1:0")
        self._batches = batches

    def do_get(self, context, ticket):
        return flight.RecordBatchStream(pa.Table.from_batches(self._batches))

    def do_action(self, context, action):
        return iter([flight.Result(b"[1]" * (1 << 20))])


def _batch(*rows, kind=None):
    return pa.record_batch([pa.array(rows, kind or pa.large_binary())], ["record"])


@pytest.mark.parametrize("batches, why", [
    ([_batch(1, kind=pa.int64())], "a batch is 1 rows of .*int64"), ([_batch(b"x", b"y")], "a batch is 2 rows"),
    ([_batch(b"x")], "1 bytes came where 5 were asked for"), ([_batch(None)], "not of its protocol"),
    ([_batch(b"12345"), _batch(b"12345")], "answers more than it was asked"),
])  # fmt: skip
def test_a_server_of_something_else(batches, why):
    with Strange(batches) as server:
        folder = ServedFolder(f"grpc://127.0.0.1:{server.port}")
        with pytest.raises((StoreDamaged, DiskError, Exception), match=why):
            folder.records_at([(0, 0, 5)])
        with pytest.raises(StoreDamaged, match="more came than|it answers what it should not"):
            open_store(folder.url)


def test_a_server_that_speaks_something_else():
    with flight.FlightServerBase("grpc://127.0.0.1:0") as server:
        with pytest.raises(StoreDamaged, match="is it roivault's server"):
            open_store(f"grpc://127.0.0.1:{server.port}")


# -- servers that go and come


def test_nobody_there():
    with pytest.raises(StoreUnreachable, match="grpc://127.0.0.1:9/manifest.json cannot be reached") as raised:
        open_store("grpc://127.0.0.1:9")
    assert raised.value.exit_code == 75


def test_a_server_that_starts_again_is_found(path, same, make, monkeypatch):
    monkeypatch.setattr(remote_module, "DEADLINE", 60.0)
    with in_a_process(path) as (process, told):
        store = open_store(told["url"])
        assert same(store["a"], make("a"))
        process.kill()
        process.wait()
    line = [sys.executable, "-m", "roivault", "serve", str(path), "--bind", told["url"].removeprefix("grpc://")]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as again:
        try:
            assert same(store["b"], make("b"))  # it is not up yet
        finally:
            again.kill()


def test_a_server_that_is_gone_is_named(path):
    with asked(path) as server:
        url, store = server.url, open_store(server.url)
    store.prefetch(["a"])
    with pytest.raises(StoreUnreachable, match=f"{url}.*2 of the 2 keys asked for there") as raised:
        store.get_many(["a", "b"])
    assert raised.value.exit_code == 75 and store.get("z") is None
    with pytest.raises(StoreUnreachable, match=f"{url}.* 5 records are nowhere else"):
        open_store(url)


def test_several_servers_with_some_shards_each(path, same, make):
    keys = ["a", "b", "c", "d/1", "d/2"]
    with asked(path / "shard-00000.lmdb") as one:
        with asked(path / "shard-00001.lmdb") as other:
            store = open_store(f"{one.url},{other.url.removeprefix('grpc://')}")
            assert sorted(store.keys()) == keys and len(store) == 5
            assert all(same(regions, make(regions.key)) for regions in store.get_many(keys))
        with pytest.raises(StoreUnreachable, match=f"{other.url}.*2 of the 2 keys"):
            store.get_many(keys)
        assert store["a"].key == "a"


def test_a_server_with_the_same_shard_stands_in(path, same, make):
    keys = ["a", "b", "c", "d/1", "d/2"]
    with asked(path / "shard-00000.lmdb", path / "shard-00001.lmdb") as both:
        with asked(path / "shard-00000.lmdb") as one:
            urls = [one.url, both.url]
            store = open_store(urls)
            assert len(store) == 5 and store["a"].key == "a"
        store.prefetch(keys)
        for _ in range(2):
            assert all(same(regions, make(regions.key)) for regions in store.get_many(keys))
        assert len(open_store(urls)) == 5, "what the dead one has, the other has too"
        assert same(open_store(urls[::-1])["a"], make("a"))


# -- who may


def test_tokens(path, build, monkeypatch):
    monkeypatch.setenv("ROIVAULT_TOKENS", f"anna {TOKEN} coco\nbert {OTHER} vg")
    with asked(path, build("vg.roi", ["v"])) as server:
        assert len(open_store(server.url, token=TOKEN)) == 5 and len(open_store(server.url, token=OTHER)) == 1
        assert len(open_store(f"{server.url}/coco", token=TOKEN)) == 5
        store = pickle.loads(pickle.dumps(open_store(server.url, token=TOKEN)))
        assert store["a"].key == "a" and TOKEN not in repr(store) + repr(store.paths) + repr(vars(store))
        for token in (None, "wrong"):
            with pytest.raises(DiskError, match=f"{server.url}: the server wants a token, or another one.*token="):
                open_store(server.url, token=token)
        with pytest.raises(DiskError, match="the token is not for this store") as raised:
            open_store(f"{server.url}/coco", token=OTHER)
        assert OTHER not in str(raised.value)
        monkeypatch.setenv("ROIVAULT_TOKEN", TOKEN)
        assert len(open_store(server.url)) == 5 and digest(server.url) == digest(path)
        assert len(RegionDataset(server.url)) == 5


def test_a_token_is_not_sent_where_others_can_read_it(monkeypatch, path):
    with pytest.raises(UsageError, match="grpc://192.0.2.1:8815: a token is not sent.*token=.*give grpc"):
        open_store("grpc://192.0.2.1", token=TOKEN)
    monkeypatch.setenv("ROIVAULT_TOKEN", TOKEN)
    with pytest.raises(UsageError, match="ROIVAULT_TOKEN gives one") as raised:
        open_store("grpc://host.example:1/a")
    assert TOKEN not in str(raised.value)
    for options in ({"token": TOKEN}, {"tls_ca": "ca.pem"}):
        with pytest.raises(UsageError, match="for a server"):
            open_store(path, **options)
    with pytest.raises(UsageError, match="no printable ASCII"):
        open_store("grpc://127.0.0.1:9", token="a\nb")


def test_certificates(path, tmp_path, monkeypatch):
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    pair, own = authority.pair("server"), authority.pair("me")
    monkeypatch.setenv("ROIVAULT_TOKENS", f"anna {TOKEN}")
    with asked(path, tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=authority.cert) as server:
        url = server.url.replace("grpc://", "grpc+tls://")
        monkeypatch.setenv("ROIVAULT_TLS_CERT", str(own.cert))
        with pytest.raises(UsageError, match="set both ROIVAULT_TLS_CERT and ROIVAULT_TLS_KEY"):
            open_store(url, token=TOKEN, tls_ca=authority.cert)
        monkeypatch.setenv("ROIVAULT_TLS_KEY", str(own.key))
        store = open_store(url, token=TOKEN, tls_ca=str(authority.cert))
        assert store["a"].key == "a" and pickle.loads(pickle.dumps(store))["b"].key == "b"
        with pytest.raises(DiskError, match="certificate of the server is not trusted.*tls_ca="):
            open_store(url, token=TOKEN, tls_ca=other.cert)
        with pytest.raises(InputNotFound, match="none.pem.*cannot be read"):
            open_store(url, token=TOKEN, tls_ca=tmp_path / "none.pem")
        monkeypatch.setenv("ROIVAULT_TLS_CA", str(authority.cert))
        assert len(open_store(url, token=TOKEN)) == 5
        monkeypatch.delenv("ROIVAULT_TLS_CERT")
        monkeypatch.delenv("ROIVAULT_TLS_KEY")
        with pytest.raises(StoreUnreachable, match="perhaps the server wants a certificate of the client"):
            open_store(url, token=TOKEN)
        monkeypatch.delenv("ROIVAULT_TLS_CA")
        with pytest.raises(StoreUnreachable, match=r"perhaps the server wants grpc\+tls"):
            open_store(server.url, token=TOKEN)
    with pytest.raises(UsageError, match="tls_ca is for grpc"):
        open_store("grpc://127.0.0.1:9", tls_ca="ca.pem")


def test_a_certificate_that_has_expired(path, tmp_path):
    authority = Authority(tmp_path)
    pair = authority.pair("server", timedelta(days=-1))
    with asked(path, tls_cert=pair.cert, tls_key=pair.key) as server:
        with pytest.raises(DiskError, match="certificate of the server is not trusted"):
            open_store(server.url.replace("grpc://", "grpc+tls://"), tls_ca=authority.cert)


def test_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.flight", None)
    with pytest.raises(UsageError, match=r"pip install 'roivault\[server\]'"):
        open_store("grpc://127.0.0.1:9")


def test_a_server_that_is_ending_is_left_at_once_for_another():
    folder, error = ServedFolder("grpc://127.0.0.1:9"), flight.FlightUnavailableError("no more", b"DRAINING")
    assert folder._refuse_lasting("x", error) is None, "it may start again"
    folder.patience = 5.0
    with pytest.raises(StoreUnreachable, match="grpc://127.0.0.1:9: the server is ending"):
        folder._refuse_lasting("x", error)
