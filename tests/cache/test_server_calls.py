import hashlib
import json

import pyarrow.flight as flight
import pytest

from cache.server_limits import Limits
from cache.server_stores import ServedStore
from cache.wire import DRAINING, RESOURCE_EXHAUSTED, encode_request
from tests.cache.asker import Asker, asked, chunks, until

ANNA, BERT = "anna-0123456789abcdef", "bert-0123456789abcdef"


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"anna {ANNA}\nbert sha256:{hashlib.sha256(BERT.encode()).hexdigest()} photos\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def both(build):
    return [build("photos.roi", ["a", "b"]), build("other.roi", ["c"])]


EVERYTHING = {
    "get": lambda asker: asker.get(["a"], "photos"),
    "exchange": lambda asker: asker.exchange([encode_request(store="photos", keys=["a"])]),
    "info": lambda asker: asker.info(["a"], "photos"),
    "stores": lambda asker: asker.ask("stores"),
    "stats": lambda asker: asker.ask("stats", store="photos"),
    "keys": lambda asker: list(asker.pages("keys", 5, "photos")),
    "manifest": lambda asker: asker.bytes("manifest", store="photos", offset=0, length=None),
    "actions": lambda asker: asker.client.list_actions(asker.call),
    "flights": lambda asker: list(asker.client.list_flights(b"", asker.call)),
    "put": lambda asker: put(asker),
    "unknown": lambda asker: asker.ask("reset"),
}


def put(asker):
    nothing = flight.FlightDescriptor.for_command(b"")
    asker.client.do_put(nothing, asker.client.get_schema(nothing, asker.call).schema, asker.call)[0].close()


@pytest.mark.parametrize("token", [None, "", "wrong", ANNA[:-1], ANNA + "x", f"{ANNA} {ANNA}"])
def test_without_a_token_that_is_known_nothing_is_told(both, tokens, token):
    with asked(*both, token_file=tokens, token=token) as asker:
        for what, ask in EVERYTHING.items():
            with pytest.raises(flight.FlightUnauthenticatedError) as caught:
                ask(asker)
            assert "photos" not in str(caught.value), what
        assert asker.ask("health") == {"status": "serving"}


@pytest.mark.parametrize("header", [b"Basic abc", b"Bearer", b"bearer " + ANNA.encode(), ANNA.encode()])
def test_other_headers_are_no_tokens(both, tokens, header):
    with asked(*both, token_file=tokens) as asker:
        asker.call = flight.FlightCallOptions(headers=[(b"authorization", header)], timeout=60)
        with pytest.raises(flight.FlightUnauthenticatedError):
            asker.get(["a"], "photos")
        twice = [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer " + ANNA.encode())]
        asker.call = flight.FlightCallOptions(headers=twice, timeout=60)
        with pytest.raises(flight.FlightUnauthenticatedError):
            asker.get(["a"], "photos")


def test_a_token_opens_what_it_is_for(both, tokens):
    with asked(*both, token_file=tokens, token=ANNA) as anna:
        bert = Asker(anna.url, BERT)
        assert anna.ask("stores")["stores"] == ["photos", "other"] and bert.ask("stores")["stores"] == ["photos"]
        assert anna.get(["a"], "photos") == bert.get(["a"], "photos") == bert.get(["a"])
        assert len(anna.get(["c"], "other")) == 1
        for store in ("other", "nowhere"):  # what there is besides is nobody's business
            for ask in (
                lambda store=store: bert.get(["c"], store),
                lambda store=store: bert.places([[0, 0, 1]], store),
                lambda store=store: bert.info(["c"], store),
                lambda store=store: bert.ask("stats", store=store),
                lambda store=store: bert.bytes("manifest", store=store, offset=0, length=None),
                lambda store=store: bert.exchange([encode_request(store=store, keys=["c"])]),
            ):
                with pytest.raises(flight.FlightUnauthorizedError, match=f"not for the store '{store}'"):
                    ask()


def test_too_many_streams_are_refused_and_the_others_go_on(build, make):
    path = build("photos.roi", [f"{i}" for i in range(40)], d=40_000)
    with asked(path, limits=Limits(streams=2)) as asker:
        keys = [f"{i}" for i in range(40)]
        whole = asker.get(keys)
        ticket = flight.Ticket(encode_request(store=None, keys=keys * 4))  # more than flow control lets through
        slow = [asker.client.do_get(ticket, asker.call) for _ in range(2)]
        first = [next(iter(stream)) for stream in slow]
        assert len(first) == 2
        with pytest.raises(flight.FlightUnavailableError, match="2 streams, the limit") as caught:
            asker.get(["1"])
        assert caught.value.extra_info == RESOURCE_EXHAUSTED.encode()
        assert asker.ask("health") == {"status": "serving"}
        for stream in slow:
            assert sum(1 for _ in stream) == 159
        until(lambda: not len(asker.server.gate))
        assert asker.get(keys) == whole


def test_too_fast_a_client_is_told_to_wait(both, tokens):
    limits = Limits(keys=10, rate=1)
    with asked(*both, token_file=tokens, token=ANNA, limits=limits) as anna:
        bert = Asker(anna.url, BERT)
        anna.get(["a"] * 10, "photos")
        for ask in (
            lambda: anna.get(["a"] * 9, "photos"),
            lambda: anna.places([[0, 0, 1]] * 9, "photos"),
            lambda: anna.info(["a"] * 9, "photos"),
            lambda: anna.exchange([encode_request(store="photos", keys=["a"] * 9)]),
        ):
            with pytest.raises(flight.FlightUnavailableError, match="1 keys a second, the limit.*try again") as caught:
                ask()
            assert caught.value.extra_info == RESOURCE_EXHAUSTED.encode()
        assert len(bert.get(["a"] * 10)) == 10


def test_bugs_are_told_without_traceback_or_path(both, monkeypatch, caplog):
    def fails(self, *_, **__):
        raise ZeroDivisionError("/secret/path")

    def fails_late(self, keys):
        yield [b"record"]
        fails(self)

    with asked(both[0]) as asker:
        for name in ("records", "size_of", "stats", "keys"):
            monkeypatch.setattr(ServedStore, name, fails)
        for ask in (EVERYTHING[name] for name in ("get", "exchange", "info", "stats", "keys")):
            with pytest.raises(flight.FlightInternalError) as caught:
                ask(asker)
            assert not any(word in str(caught.value) for word in ("/secret", "Traceback", ".py", "ZeroDivision"))
        monkeypatch.setattr(ServedStore, "records", fails_late)
        with pytest.raises(flight.FlightInternalError) as caught:
            asker.get(["a"])
        assert "/secret" not in str(caught.value) and "Traceback" not in str(caught.value)
        monkeypatch.undo()
        assert len(asker.get(["a"])) == 1
    assert caplog.text.count("ZeroDivisionError: /secret/path") == 6


def test_the_access_log_has_a_line_for_each_call_and_no_secret(both, tokens, tmp_path):
    log = tmp_path / "access.jsonl"
    with asked(*both, token_file=tokens, token=BERT, access_log=str(log)) as bert:
        record = bert.get(["a", "secret-key"])[0]
        with pytest.raises(flight.FlightUnauthorizedError):
            bert.get(["c"], "other")
        with pytest.raises(flight.FlightUnauthenticatedError):
            Asker(bert.url, "wrong-0123456789").get(["a"])
        with pytest.raises(flight.FlightServerError):
            bert.raw(b"{")
        bert.ask("stats", store="photos")
        until(lambda: len(log.read_text().splitlines()) == 5)
    text = log.read_text()
    lines = list(map(json.loads, text.splitlines()))
    assert not any(secret in text for secret in (BERT, ANNA, "secret-key", "wrong-0123456789", str(tmp_path)))
    whats = [tuple(line[name] for name in ("client", "method", "store", "keys", "status")) for line in lines]
    assert whats == [
        ("bert", "DoGet", "photos", 2, "OK"),
        ("bert", "DoGet", None, 0, "UNAUTHORIZED"),
        (None, "DoGet", None, 0, "UNAUTHENTICATED"),
        ("bert", "DoGet", None, 0, "INVALID_ARGUMENT"),
        ("bert", "DoAction stats", "photos", 0, "OK"),
    ]
    assert (lines[0]["records"], lines[0]["missing"], lines[0]["bytes"]) == (1, 1, len(record))
    assert all(line["peer"].startswith("ipv") and line["seconds"] >= 0 and line["time"] for line in lines)


def test_a_server_that_ends_lets_streams_finish_and_refuses_new_ones(build):
    keys = [f"{i}" for i in range(40)]
    with asked(build("photos.roi", keys, d=40_000)) as asker:
        stream = iter(asker.client.do_get(flight.Ticket(encode_request(store=None, keys=keys * 4)), asker.call))
        writer, reader = asker.client.do_exchange(flight.FlightDescriptor.for_command(b""), asker.call)
        writer.write_metadata(encode_request(store=None, keys=["1"]))
        exchanged = chunks(reader)
        assert next(exchanged).app_metadata and next(exchanged).data.num_rows == 1
        next(stream)
        asker.server.gate.close()
        for ask in (lambda: asker.get(["1"]), lambda: asker.ask("stores")):
            with pytest.raises(flight.FlightUnavailableError, match="ending") as caught:
                ask()
            assert caught.value.extra_info == DRAINING.encode()
        assert asker.ask("health") == {"status": "draining"}
        writer.write_metadata(encode_request(store=None, keys=["1"]))
        for go_on in (lambda: next(exchanged), writer.close):
            with pytest.raises(flight.FlightUnavailableError, match="ending"):
                go_on()
        assert not asker.server.gate.wait(0.05)
        assert sum(1 for _ in stream) == 159
        assert asker.server.drain(20)
