import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta

import pyarrow.flight as flight
import pytest

import roivault
from cache import InputNotFound, StoreNotFound, UsageError, open_store
from cache.serve import DEAD_SECONDS, ServeOptions, serving
from cache.serve_command import _print
from cache.wire import encode_request
from tests.cache.asker import TIMEOUT, Asker, asked, in_a_process
from tests.cache.certificates import Authority

TOKEN = "anna-0123456789abcdef"


@pytest.fixture
def photos(build):
    return build("photos.roi", ["a", "b"])


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"anna {TOKEN}")
    path.chmod(0o600)
    return path


# -- what is refused before anything is served


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bind": "nowhere:"}, "--bind"),
        ({"bind": "127.0.0.1:99999"}, "--bind"),
        ({"metrics_port": "x"}, "--metrics-port"),
        ({"tls_cert": "c.pem"}, "belong together"),
        ({"tls_key": "c.key"}, "belong together"),
        ({"tls_client_ca": "ca.pem"}, "--tls-client-ca is for"),
        ({"drain_seconds": -1}, "--drain-seconds"),
        ({"drain_seconds": float("nan")}, "--drain-seconds"),
    ],
)
def test_options_that_make_no_sense(options, why):
    with pytest.raises(UsageError, match=why):
        ServeOptions(["photos.roi"], **options)


def refused(error, why, *stores, **options):
    with pytest.raises(error, match=why), serving(ServeOptions(list(map(str, stores)), **{"bind": "0", **options})):
        pass


def test_what_cannot_be_served(photos, build, tmp_path, token_file):
    refused(StoreNotFound, "no store", tmp_path / "nowhere.roi")
    refused(UsageError, "not on a disk", "s3://bucket/photos.roi")
    (tmp_path / "elsewhere").mkdir()
    photos.rename(tmp_path / "elsewhere" / "photos.roi")
    again = build("photos.roi", ["c"])
    refused(UsageError, "one name, 'photos'", again, tmp_path / "elsewhere" / "photos.roi")
    token_file.write_text(f"anna {TOKEN} photo")
    refused(UsageError, "anna is for photo, served are photos", again, token_file=token_file)


def test_addresses_of_other_machines_are_refused(photos, token_file, monkeypatch):
    monkeypatch.setenv("ROIVAULT_TOKENS", f"anna {TOKEN}")
    refused(UsageError, "in the open", photos, bind="0.0.0.0:0")
    refused(UsageError, "in the open", photos, bind="0.0.0.0:0", insecure=True, token_file=token_file)
    monkeypatch.delenv("ROIVAULT_TOKENS")
    refused(UsageError, "give --tls-cert and --tls-key and --token-file", photos, bind="0.0.0.0:0")


def test_certificates_that_cannot_be_used(photos, authority, tmp_path):
    pair, other = authority.pair("server"), authority.pair("other")
    refused(UsageError, "no certificate and its key", photos, tls_cert=pair.cert, tls_key=other.key)
    refused(UsageError, "no certificate and its key", photos, tls_cert=pair.key, tls_key=pair.key)
    refused(InputNotFound, "--tls-cert", photos, tls_cert=tmp_path / "none", tls_key=pair.key)
    refused(InputNotFound, "--tls-client-ca", photos, **pair_of(pair), tls_client_ca=tmp_path / "none")
    refused(UsageError, "--tls-client-ca", photos, **pair_of(pair), tls_client_ca=pair.key)


def pair_of(pair):
    return {"tls_cert": pair.cert, "tls_key": pair.key}


def test_a_port_that_is_taken(photos):
    with asked(photos) as asker:
        taken = asker.url.rpartition(":")[2]
        refused(UsageError, "cannot listen there.*choose another", photos, bind=taken)
        assert len(asker.get(["a"])) == 1
    refused(UsageError, "cannot listen there", photos, bind="192.0.2.1:0", insecure=True)


# -- TLS


@contextmanager
def encrypted(store, pair, **options):
    """The URL of a server with a certificate, and its certificate authority's bytes are for the client to give."""
    with serving(ServeOptions([str(store)], **{"bind": "0", **pair_of(pair), **options})) as server:
        yield f"grpc+tls://127.0.0.1:{server.port}"


def test_tls_and_a_token(photos, authority, token_file):
    with encrypted(photos, authority.pair("server"), token_file=token_file) as url:
        roots = authority.cert.read_bytes()
        anna = Asker(url, TOKEN, tls_root_certs=roots)
        assert anna.get(["b"]) == [bytes(open_store(photos).record("b"))]
        with pytest.raises(flight.FlightUnauthenticatedError):
            Asker(url, tls_root_certs=roots).get(["b"])
        for untrusting in (Asker(url, TOKEN), Asker(url.replace("+tls", ""), TOKEN)):
            with pytest.raises(flight.FlightUnavailableError):
                untrusting.get(["b"])
        assert len(anna.get(["a"])) == 1


def test_an_expired_certificate_is_not_taken(photos, authority):
    roots = authority.cert.read_bytes()
    with encrypted(photos, authority.pair("server", lasts=-timedelta(days=1))) as url:
        with pytest.raises(flight.FlightUnavailableError):
            Asker(url, tls_root_certs=roots).get(["b"])


def test_certificates_of_clients(photos, authority, tmp_path):
    roots = authority.cert.read_bytes()
    mine, expired = authority.pair("client"), authority.pair("expired", lasts=-timedelta(hours=1))
    stranger = Authority(tmp_path, "strangers").pair("stranger")
    with encrypted(photos, authority.pair("server"), tls_client_ca=authority.cert) as url:

        def ask(pair):
            certificate = {"cert_chain": pair.cert.read_bytes(), "private_key": pair.key.read_bytes()} if pair else {}
            return Asker(url, tls_root_certs=roots, **certificate).get(["b"])

        assert len(ask(mine)) == 1
        for other in (None, expired, stranger):
            with pytest.raises((flight.FlightUnavailableError, flight.FlightTimedOutError)):
                ask(other)
        assert len(ask(mine)) == 1


# -- the process


def test_connections_are_watched(photos):
    """The system asks clients that say nothing for a while, and gives up those that do not answer."""
    with asked(photos) as asker:
        asker.get(["a"])
        port, watched = asker.server.port, []
        for name in os.listdir("/proc/self/fd"):
            try:
                if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.family == socket.AF_UNIX or one.getsockname()[1] != port:
                        continue
                    connected = not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    keepalive = one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                    timeout = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                    watched.append((connected, keepalive, timeout))
            except OSError:
                continue
        assert (True, 1, 1000 * DEAD_SECONDS) in watched and (False, 1, 1000 * DEAD_SECONDS) in watched


def test_it_says_how_to_connect(photos, build, token_file):
    other = build("other.roi", ["c"])
    with in_a_process(photos, other, "--token-file", token_file) as (process, described):
        assert described["tokens"] and not described["client_certificates"] and described["pid"] == process.pid
        assert described["stores"]["photos"]["records"] == 2 and list(described["stores"]) == ["photos", "other"]
        assert Asker(described["url"], TOKEN).get(["c"], "other") == [bytes(open_store(other).record("c"))]
        line = [sys.executable, "-m", "roivault", "serve", photos, "--bind", described["url"].rpartition("/")[2]]
        taken = subprocess.run(line, capture_output=True, text=True, timeout=120)
        assert taken.returncode == 2 and "cannot listen there" in taken.stderr


def test_it_ends_when_it_is_told_to(photos):
    with in_a_process(photos) as (process, described):
        asker = Asker(described["url"])
        assert len(asker.get(["a"])) == 1
        writer, _ = asker.client.do_exchange(flight.FlightDescriptor.for_command(b""), TIMEOUT)
        writer.write_metadata(encode_request(store=None, keys=["a"]))  # and then it has nothing more to do
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()


def test_streams_that_run_may_go_on(build):
    keys = [f"{i}" for i in range(40)]
    ticket = flight.Ticket(encode_request(store=None, keys=keys * 4))
    with in_a_process(build("photos.roi", keys, d=40_000), "--drain-seconds", "60") as (process, described):
        stream = iter(flight.connect(described["url"]).do_get(ticket, TIMEOUT))
        next(stream)
        process.send_signal(signal.SIGINT)
        assert "ending" in process.stderr.readline()
        assert sum(1 for _ in stream) == 159
        assert process.wait(60) == 130


def test_a_second_signal_ends_it_at_once(build):
    keys = [f"{i}" for i in range(40)]
    with in_a_process(build("photos.roi", keys, d=40_000), "--drain-seconds", "1000") as (process, described):
        ticket = flight.Ticket(encode_request(store=None, keys=keys * 4))
        next(iter(flight.connect(described["url"]).do_get(ticket, TIMEOUT)))
        process.send_signal(signal.SIGINT)
        assert "ending" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_errors_have_exit_codes(photos, capsys):
    assert roivault.main(["serve", str(photos), "--bind", "0.0.0.0:0", "--json"]) == 2
    assert "--insecure" in json.loads(capsys.readouterr().out)["error"]
    assert roivault.main(["serve", str(photos.parent / "none.roi")]) == 66


def test_what_a_person_is_told(capsys):
    stats = {"records": 1234, "failures": 0, "shards": 1}
    described = {"url": "grpc+tls://[::1]:1", "stores": {"photos": stats, "other": stats}, "tokens": True}
    _print(described)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "photos: 1,234 records and 0 failures in 1 sealed shard"
    assert lines[-1].strip() == 'open_store("grpc+tls://[::1]:1/other", token="TOKEN", tls_ca="CA.pem")'
    _print({"url": "grpc://127.0.0.1:1", "stores": {"my photos": stats, "100%": stats}, "tokens": False})
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[-2:]] == [
        'open_store("grpc://127.0.0.1:1/my%20photos")', 'open_store("grpc://127.0.0.1:1/100%25")'
    ]  # fmt: skip
    _print({"url": "grpc://127.0.0.1:1", "stores": {"photos": stats}, "tokens": False})
    assert capsys.readouterr().out.splitlines()[-1].strip() == 'open_store("grpc://127.0.0.1:1")'


def test_help_loads_neither_arrow_nor_torch(repo_root):
    code = "import roivault, sys; roivault.main(['serve', '--help']); print({'pyarrow', 'torch'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=True)
    assert "--tls-client-ca" in run.stdout and run.stdout.endswith("set()\n")


def test_nothing_is_left_behind(photos):
    before, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    for _ in range(3):
        with asked(photos) as asker:
            asker.get(["a"])
    assert len(os.listdir("/proc/self/fd")) <= before + 8  # gRPC keeps a few for itself
    started = set(threading.enumerate()) - threads
    assert not any("serve" in thread.name for thread in started)
