import threading
import time

import pytest

from ray_jobs.budget import ByteBudget


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def acquire():
    """Acquire in a thread of its own; returns an event for the grant."""
    threads = []

    def start(budget, ticket, nbytes):
        granted = threading.Event()
        thread = threading.Thread(target=lambda: budget.acquire(ticket, nbytes) and granted.set())
        thread.start()
        threads.append(thread)
        return granted

    yield start
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_what_does_not_fit_waits_for_a_release(acquire):
    budget = ByteBudget(100)
    assert budget.acquire(0, 60) and budget.acquire(1, 40) and not budget.exhausted
    granted = acquire(budget, 2, 30)
    eventually(lambda: budget.exhausted)
    assert not granted.is_set()
    budget.release(40)
    assert granted.wait(20) and not budget.exhausted


def test_an_image_larger_than_the_budget_goes_alone(acquire):
    budget = ByteBudget(100)
    budget.acquire(0, 10)
    granted = acquire(budget, 1, 1000)
    eventually(lambda: budget.exhausted)
    budget.release(10)
    assert granted.wait(20)
    behind = acquire(budget, 2, 1)
    eventually(lambda: budget.exhausted)
    assert not behind.is_set()
    budget.release(1000)
    assert behind.wait(20)


def test_grants_are_in_the_order_of_the_tickets(acquire):
    """Else small images behind a large one could hold what it needs, while the model waits for the large one."""
    budget = ByteBudget(100)
    later = acquire(budget, 1, 10)
    time.sleep(0.02)
    assert not later.is_set() and not budget.exhausted
    assert budget.acquire(0, 100)
    eventually(lambda: budget.exhausted)
    assert not later.is_set()
    budget.release(100)
    assert later.wait(20)


def test_closing_wakes_everybody_and_grants_nothing(acquire):
    budget = ByteBudget(100)
    budget.acquire(0, 100)
    waiting = [acquire(budget, 1, 50), acquire(budget, 2, 50), acquire(budget, 9, 0)]
    eventually(lambda: budget.exhausted)
    budget.close()
    assert not any(granted.wait(0.01) for granted in waiting)
    assert not budget.acquire(3, 0)
