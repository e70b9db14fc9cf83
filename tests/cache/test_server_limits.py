import threading

import pytest

from cache import UsageError
from cache.server_limits import Gate, Limits, Refused
from cache.wire import DRAINING, RESOURCE_EXHAUSTED


def test_limits_are_whole_numbers():
    for options in ({"keys": 0}, {"streams": 0}, {"rate": -1}, {"request_bytes": 63}, {"keys": 1.5}, {"streams": True}):
        with pytest.raises(UsageError, match=next(iter(options))):
            Limits(**options)


def test_so_many_calls_run_at_a_time():
    gate = Gate(Limits(streams=2))
    gate.enter("a")
    gate.enter("b")
    gate.rest("a")
    gate.enter("a")  # goes on
    with pytest.raises(Refused, match="2 streams, the limit") as caught:
        gate.enter("c")
    assert caught.value.code == RESOURCE_EXHAUSTED and len(gate) == 2
    gate.leave("c")
    gate.leave("b")
    gate.enter("c")
    assert len(gate) == 2


def test_so_many_keys_a_second_for_each_client():
    now = [100.0]
    gate = Gate(Limits(keys=50, rate=10), lambda: now[0])
    gate.spend("a", 50)  # as many as one request may have
    with pytest.raises(Refused, match="10 keys a second, the limit for a client.*again in 2.0 s") as caught:
        gate.spend("a", 20)
    assert caught.value.code == RESOURCE_EXHAUSTED
    gate.spend("b", 50)
    now[0] += 1.9
    with pytest.raises(Refused):
        gate.spend("a", 20)
    now[0] += 0.2
    gate.spend("a", 20)
    now[0] += 1000
    gate.spend("a", 50)
    with pytest.raises(Refused):
        gate.spend("a", 1)


def test_memory_of_clients_is_bounded(monkeypatch):
    monkeypatch.setattr("cache.server_limits._CLIENTS", 3)
    gate = Gate(Limits(keys=1, rate=1), lambda: 0.0)
    for client in "abcd":
        gate.spend(client, 1)
    assert list(gate._left) == ["b", "c", "d"]


def test_without_a_rate_nothing_is_counted():
    gate = Gate(Limits())
    for _ in range(100):
        gate.spend("a", 10**9)
    assert not gate._left


def test_a_closed_gate_lets_nothing_in_and_waits_for_what_runs():
    gate = Gate(Limits())
    gate.enter("runs")
    gate.enter("rests")
    gate.rest("rests")
    gate.close()
    for call in ("new", "rests"):
        with pytest.raises(Refused, match="ending") as caught:
            gate.enter(call)
        assert caught.value.code == DRAINING
    assert not gate.wait(0.01)
    threading.Timer(0.05, gate.leave, ["runs"]).start()
    assert gate.wait(20)
