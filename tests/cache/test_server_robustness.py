"""Clients that behave badly, beside clients that do not."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from cache import open_store
from cache.server_limits import Limits
from cache.wire import encode_request
from tests.cache.asker import TIMEOUT, Asker, asked, chunks, in_a_process, until

KEYS = [f"{i}" for i in range(40)]
LONG = flight.Ticket(encode_request(store=None, keys=KEYS * 8))  # far more than flow control lets through
SOAK_SECONDS = 600
APART = {"generic_options": [("grpc.use_local_subchannel_pool", 1)]}  # a connection for each client

READS_A_LITTLE = """
import os, signal, sys
import pyarrow.flight as flight
stream = iter(flight.connect(sys.argv[1]).do_get(flight.Ticket(sys.argv[2].encode())))
for _ in range(int(sys.argv[3])):
    next(stream)
print("reading", flush=True)
os.kill(os.getpid(), int(sys.argv[4]))
"""


@pytest.fixture
def large(build):
    return build("photos.roi", KEYS, d=40_000)


@contextmanager
def reads_a_little(url, then, batches=3):
    """A client that does something to itself in the middle of a stream, and is killed at the end."""
    line = [sys.executable, "-c", READS_A_LITTLE, url, LONG.ticket.decode(), str(batches), str(int(then))]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout.readline() == "reading\n"
            yield client
        finally:
            client.kill()


def killed_in_the_middle(url, batches=3):
    with reads_a_little(url, signal.SIGKILL, batches) as client:
        assert client.wait(60) == -signal.SIGKILL


def test_64_clients_beside_slow_and_dead_ones(large):
    store = open_store(large)
    stored = {key: bytes(store.record(key)) for key in KEYS}

    def reads(number):
        asker, chosen = Asker(asker_url, **APART), random.Random(number)
        for _ in range(3):
            keys = chosen.choices(KEYS, k=8)
            assert asker.get(keys) == [stored[key] for key in keys]
        asker.client.close()
        return True

    with asked(large) as asker, ExitStack() as stack:
        asker_url = asker.url
        slow = [flight.FlightClient(asker.url, **APART).do_get(LONG, TIMEOUT) for _ in range(8)]
        for stream in slow:
            next(iter(stream))
        address = ("127.0.0.1", asker.server.port)
        mute = [stack.enter_context(socket.create_connection(address, 20)) for _ in range(8)]
        mute[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        mute[1].sendall(os.urandom(1000))
        mute[2].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        with ThreadPoolExecutor(64) as threads:
            assert all(threads.map(reads, range(64)))
        assert len(asker.server.gate) == 8
        for stream in slow:
            stream.cancel()
        until(lambda: not len(asker.server.gate))
        assert len(asker.get(["1"])) == 1


def test_a_client_that_is_killed_leaves_nothing_behind(large, tmp_path):
    log = tmp_path / "access.jsonl"
    with asked(large, access_log=str(log), limits=Limits(streams=1)) as asker:
        for _ in range(2):
            killed_in_the_middle(asker.url)
            until(lambda: not len(asker.server.gate))
            assert len(asker.get(["1"])) == 1
    assert log.read_text().count('"status": "CANCELLED"') == 2


def test_a_client_that_is_frozen_stops_nobody(large):
    """Nothing but the system's timeout tells it from a slow one; others are served, and the server ends in time."""
    with in_a_process(large, "--drain-seconds", "0.2") as (process, described):
        with reads_a_little(described["url"], signal.SIGSTOP) as client:
            os.waitid(os.P_PID, client.pid, os.WSTOPPED)
            for _ in range(3):
                assert len(Asker(described["url"], **APART).get(KEYS)) == 40
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 130
            assert "broken off" in process.stderr.read()


def test_other_ways_to_use_flight(large):
    schema = pa.schema([("keys", pa.string())])
    batch = pa.record_batch([pa.array(["1"])], schema=schema)
    with asked(large) as asker:
        with pytest.raises(pa.ArrowNotImplementedError):
            asker.client.authenticate_basic_token("somebody", "password")
        writer, reader = asker.client.do_exchange(flight.FlightDescriptor.for_path("x"), TIMEOUT)
        writer.begin(schema)
        writer.write_batch(batch)
        with pytest.raises(flight.FlightServerError, match="the metadata of a message, this message has none"):
            list(chunks(reader))
        with pytest.raises(flight.FlightServerError):
            writer.close()
        late = flight.FlightCallOptions(timeout=1e-6)
        with pytest.raises(flight.FlightTimedOutError):
            list(asker.client.do_get(LONG, late))
        for action in ("CancelFlightInfo", "CloseSession", ""):
            with pytest.raises(flight.FlightServerError, match="there is no action of this name"):
                list(asker.client.do_action(flight.Action(action, b"\xff"), TIMEOUT))
        binary = flight.FlightCallOptions(headers=[(b"x-bin", b"\xff\0"), (b"authorization-bin", b"\xff")])
        assert list(asker.client.list_actions(binary))
        assert len(asker.get(["1"])) == 1


def test_oversized_requests(large):
    request = encode_request(store=None, keys=["a" * (16 << 20)])
    with asked(large) as asker:
        for ask in (
            lambda: asker.raw(request),
            lambda: asker.exchange([request]),
            lambda: list(asker.client.do_action(flight.Action("stats", request), asker.call)),
            lambda: asker.client.get_flight_info(flight.FlightDescriptor.for_command(request), asker.call),
        ):
            with pytest.raises(flight.FlightServerError, match="may have 8388608 bytes"):
                ask()
        assert len(asker.get(["1"])) == 1


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return (int(file.read().split()[1]) - shared(pid)) * os.sysconf("SC_PAGE_SIZE")


def shared(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[2])


@pytest.mark.slow
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_soak(large):
    """Good, slow, killed and malformed clients for ten minutes: memory, threads and open files stay as they are."""
    store = open_store(large)
    stored = {key: bytes(store.record(key)) for key in KEYS}
    end = time.monotonic() + SOAK_SECONDS

    def reads(number):
        chosen, served = random.Random(number), 0
        while time.monotonic() < end:
            asker = Asker(url, **APART)
            for _ in range(50):
                keys = chosen.choices(KEYS, k=16)
                assert asker.get(keys) == [stored[key] for key in keys]
                asker.exchange([encode_request(store=None, keys=keys[:2])] * 3)
                served += 1
            asker.client.close()
        return served

    def misbehaves():
        while time.monotonic() < end:
            killed_in_the_middle(url, random.randrange(1, 20))
            slow = flight.FlightClient(url, **APART)
            stream = slow.do_get(LONG, TIMEOUT)
            next(iter(stream))
            for nonsense in (b"", b"{", os.urandom(100), encode_request(store="x", keys=["1"])):
                with pytest.raises(flight.FlightError):
                    Asker(url).raw(nonsense)
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 20) as mute:
                mute.sendall(os.urandom(100))
            stream.cancel()
            slow.close()

    with in_a_process(large, "--access-log", os.devnull) as (process, described), ThreadPoolExecutor(5) as threads:
        url = described["url"]
        working = [threads.submit(reads, number) for number in range(4)] + [threads.submit(misbehaves)]
        measured = []
        while time.monotonic() < end and not any(one.done() for one in working):
            time.sleep(5)
            counts = (len(os.listdir(f"/proc/{process.pid}/{what}")) for what in ("fd", "task"))
            measured.append((resident(process.pid), *counts))
        served = sum(one.result() for one in working[:-1])
        working[-1].result()
        third = len(measured) // 3
        early, late = measured[third : 2 * third], measured[2 * third :]
        print(f"{served} batches; (MiB, files, threads): {[(size >> 20, *rest) for size, *rest in measured]}")
        for name, before, after, slack in zip(
            ("memory", "files", "threads"), map(max, *early), map(max, *late), (8 << 20, 20, 20), strict=True
        ):
            assert after <= before * 1.1 + slack, name
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
