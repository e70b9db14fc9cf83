import urllib.request

import pyarrow.flight as flight
import pytest

from cache import Failure
from tests.cache.asker import asked, until


def scrape(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


def test_what_is_counted(build, capsys):
    path = build("photos.roi", ["a", "b"], failures=[Failure("bad", "empty", "no bytes", None)])
    with asked(path, metrics_port="0") as asker:
        url = capsys.readouterr().err.split()[-1]
        assert url.startswith("http://127.0.0.1:")
        records = asker.get(["a", "b", "a", "bad", "nowhere"])[:3]
        with pytest.raises(flight.FlightServerError):
            asker.raw(b"{")
        asker.ask("health")
        until(lambda: scrape(url).get('roivault_server_calls_total{method="DoAction health",status="OK"}') == 1)
        counts = scrape(url)
        (path / "manifest.json").unlink()
        (path / "shard-00000.lmdb").unlink()
        assert scrape(url)['roivault_store_records{store="photos"}'] == 2
    expected = {
        'roivault_server_calls_total{method="DoGet",status="OK"}': 1,
        'roivault_server_calls_total{method="DoGet",status="INVALID_ARGUMENT"}': 1,
        'roivault_server_call_seconds_count{method="DoGet"}': 2,
        'roivault_server_keys_total{store="photos"}': 5,
        'roivault_server_records_total{store="photos"}': 3,
        'roivault_server_missing_total{store="photos"}': 2,
        'roivault_server_bytes_total{store="photos"}': sum(map(len, records)),
        'roivault_store_records{store="photos"}': 2,
        'roivault_store_shards{store="photos"}': 1,
        "roivault_server_streams": 0,
        "roivault_server_draining": 0,
    }
    assert {name: counts.get(name) for name in expected} == expected
    assert counts["process_resident_memory_bytes"] > 0
