import pytest

from ray_jobs.pace import MOST_SPANS, Pace


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pace(clock):
    return Pace(clock)


def commit(pace, clock, times, images, seconds):
    for _ in range(times):
        clock.now += seconds
        pace.add(images)


def test_no_pace_before_the_first_commit(pace, clock):
    clock.now += 50
    assert pace.recent() is None and pace.history() == (1.0, [0])


def test_the_first_commit_took_all_the_time_there_was(pace, clock):
    commit(pace, clock, 1, 16, 8.0)
    assert pace.recent() == 2.0


def test_start_up_does_not_count_once_there_are_two_commits(pace, clock):
    clock.now += 500
    commit(pace, clock, 10, 16, 0.5)
    assert pace.recent() == pytest.approx(32)


def test_only_the_last_minute_counts(pace, clock):
    commit(pace, clock, 3600, 1, 1.0)
    commit(pace, clock, 240, 5, 0.25)
    assert pace.recent() == pytest.approx(20, rel=0.05)


def test_slow_commits_have_a_pace(pace, clock):
    commit(pace, clock, 12, 16, 320.0)
    assert pace.recent() == pytest.approx(0.05)


def test_the_pace_is_steady_between_commits(pace, clock):
    commit(pace, clock, 20, 16, 4.0)
    steady = pace.recent()
    clock.now += 3.9
    assert pace.recent() == steady == pytest.approx(4)


def test_standing_still_slows_down(pace, clock):
    commit(pace, clock, 20, 10, 1.0)
    clock.now += 1000
    assert 0 < pace.recent() < 0.2


@pytest.mark.parametrize("seconds", [0.001, 0.7, 60.0, 86400.0])
def test_history_is_bounded_and_complete(pace, clock, seconds):
    commit(pace, clock, 1000, 16, seconds)
    width, spans = pace.history()
    assert len(spans) <= MOST_SPANS and sum(spans) == 16000
    assert (len(spans) - 1) * width <= pace.elapsed < len(spans) * width
    assert seconds < 1 or len(spans) > MOST_SPANS / 2


def test_many_commits_take_little_memory(pace, clock):
    commit(pace, clock, 100_000, 1, 0.0005)
    assert len(pace._commits) <= 70
