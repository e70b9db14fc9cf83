import os
import signal
import threading

import pytest

from cache import InfrastructureLost, client_connection, open_store
from cache.client_connection import Connection
from tests.cache.asker import asked, in_a_process


@pytest.fixture
def store(build, tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    with in_a_process(build("s.roi", ["a", "b"], ["c"], d=512)) as (_, told):
        yield open_store(told["url"])


def forked(work):
    """Whether something ends well in a forked process."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_connections_belong_to_a_process(store, make, same):
    before = store.get_many(["a", "c"])
    connection = store.paths[0]._connection
    made, connect = [], connection._connect
    connection._connect = lambda: made.append(os.getpid()) or connect()

    def read():
        assert same(before[0], make("a", d=512)), "what was read stays valid"
        assert same(store["b"], make("b", d=512))
        assert forked(lambda: store["c"]) == 0
        assert same(store["a"], make("a", d=512))

    for _ in range(3):
        assert forked(read) == 0
        assert same(store["b"], make("b", d=512))
    assert made == [os.getpid()] * 3


def test_forks_while_other_threads_read(store, make, same):
    ended, wrong = threading.Event(), []

    def read():
        while not ended.is_set():
            store.prefetch(["b", "c"])
            if not all(same(regions, make(regions.key, d=512)) for regions in store.get_many(["a", "b", "c"])):
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        codes = [forked(lambda: store.get_many(["c", "a"])) for _ in range(8)]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * 8 and not wrong


def test_a_fork_within_a_call_does_not_wait_for_it():
    made = []
    connection = Connection(lambda: made.append(1) or "client")
    assert connection.call(lambda client: forked(lambda: None)) == 0
    assert connection.call(str) == "client" and len(made) == 2


def test_what_failed_connects_anew():
    made = []
    connection = Connection(lambda: made.append(1) or len(made))
    assert connection.call(int) == connection.call(int) == 1
    connection.close()
    assert connection.call(int) == 2


def test_where_something_else_uses_grpc(build, tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    monkeypatch.setattr(client_connection, "_ENDING", 0.1)
    monkeypatch.setattr(client_connection, "_DOUBT", 1.0)
    with asked(build("s.roi", ["a"])) as server:  # in this process
        store = open_store(server.url)

        def read():
            with pytest.raises(InfrastructureLost, match="spawn"):
                store["a"]

        assert forked(read) == 0 and store["a"].key == "a"
