import pytest

from cache import InfrastructureLost
from ray_jobs.blame import MOST_REQUEUES, SLOWNESS, Patience, Retries, Unit
from ray_jobs.sources import Item, Unusable
from ray_jobs.work import Task


def unit(count, **more):
    items = [Item(f"k{n}", Unusable("missing", ""), f"/photos/k{n}") for n in range(count)]
    return Unit([Task(item) for item in items], **more)


def keys(retries):
    return [[task.item.key for task in unit.tasks] for unit in retries.waiting]


def test_a_unit_that_is_blamed_twice_is_taken_apart_into_suspects_in_order():
    retries, guilty = Retries(), unit(3)
    assert retries.blame(guilty, "worker_crash", "it died") is None and keys(retries) == [["k0", "k1", "k2"]]
    assert retries.blame(retries.waiting.popleft(), "worker_crash", "it died") is None
    assert keys(retries) == [["k0"], ["k1"], ["k2"]]
    assert all(suspect.suspect and suspect.blames == 0 for suspect in retries.waiting)


def test_a_suspect_that_is_blamed_twice_fails():
    retries, suspect = Retries(), unit(1, suspect=True)
    assert retries.blame(suspect, "timeout", "it did not end") is None
    failure = retries.blame(retries.waiting.popleft(), "timeout", "it did not end")
    assert (failure.key, failure.kind, failure.source) == ("k0", "timeout", "/photos/k0")
    assert "it did not end, 2 times" in failure.message and not retries.waiting


def test_a_unit_of_one_image_is_made_a_suspect_first():
    """Somebody may have killed the process of a bystander twice."""
    retries = Retries()
    for _ in range(2):
        assert retries.blame(unit(1, blames=1), "worker_crash", "it died") is None
    assert all(suspect.suspect for suspect in retries.waiting)


def test_infrastructure_blames_nobody_but_has_an_end():
    retries, bystander = Retries(), unit(2)
    for _ in range(MOST_REQUEUES):
        retries.redo(bystander, "the node died")
        assert retries.waiting.popleft() is bystander
    assert bystander.blames == 0
    with pytest.raises(InfrastructureLost, match=r"'k0'.*the node died.*same line again"):
        retries.redo(bystander, "the node died")


def test_patience_learns_what_is_usual():
    patience = Patience(60)
    assert patience.of(unit(16)) == 16 * 60
    patience.learn(seconds=16.0, images=160)  # 0.1 s an image
    assert patience.of(unit(16)) == 60 and patience.of(unit(1)) == 60
    slow = Patience(10)
    slow.learn(seconds=8.0, images=10)
    assert slow.of(unit(16)) == pytest.approx(16 * 10) and slow.of(unit(1)) == 10
    usual = Patience(10)
    usual.learn(seconds=1.0, images=10)
    assert usual.of(unit(16)) == pytest.approx(SLOWNESS * 16 * 0.1)
