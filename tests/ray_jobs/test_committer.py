import threading

import pytest

from ray_jobs.committer import UNITS_WAITING, Committer


class Work:
    """Takes what is committed, when the gate is open; fails at a given unit."""

    def __init__(self, fails_at=None):
        self.committed, self.gate, self._fails_at = [], threading.Event(), fails_at

    def commit(self, tasks, results):
        assert self.gate.wait(30)
        if tasks == self._fails_at:
            raise OSError("no space")
        self.committed.append((tasks, results))


def test_all_is_committed_in_order():
    work = Work()
    work.gate.set()
    with Committer(work) as committer:
        for number in range(20):
            committer.put(number, -number)
    assert work.committed == [(number, -number) for number in range(20)]


def test_few_units_wait():
    work, put = Work(), []

    def fill():
        with Committer(work) as committer:
            for number in range(10):
                committer.put(number, None)
                put.append(number)

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join(0.5)
    assert len(put) <= UNITS_WAITING + 1
    work.gate.set()
    thread.join(30)
    assert len(work.committed) == 10


def test_an_error_is_raised_and_nothing_is_committed_after_it():
    work = Work(fails_at=1)
    work.gate.set()
    with pytest.raises(OSError, match="no space"), Committer(work) as committer:
        for number in range(100):
            committer.put(number, None)
    assert [tasks for tasks, _ in work.committed] == [0]
    work = Work(fails_at=2)
    work.gate.set()
    with pytest.raises(OSError, match="no space"), Committer(work) as committer:
        for number in range(3):
            committer.put(number, None)


def test_what_is_done_is_kept_when_the_model_fails():
    work = Work()
    work.gate.set()
    with pytest.raises(ZeroDivisionError), Committer(work) as committer:
        committer.put(0, None)
        raise ZeroDivisionError
    assert len(work.committed) == 1
