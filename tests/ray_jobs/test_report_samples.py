from cache import Failure
from ray_jobs.report_samples import FAILURES_SHOWN, RECORDS_SHOWN, Samples
from ray_jobs.sources import Item, Unusable


def item(key):
    return Item(key, Unusable("empty", "why"), key)


def kept(count):
    samples = Samples()
    for number in range(count):
        samples.keep(item(str(number)))
    return [int(item.key) for item in samples.records]


def test_few_records_are_all_shown():
    assert kept(RECORDS_SHOWN - 2) == list(range(RECORDS_SHOWN - 2))


def test_samples_of_many_come_from_all_of_them_and_are_the_same_each_time():
    shown = kept(100_000)
    assert len(set(shown)) == RECORDS_SHOWN and shown == kept(100_000)
    assert min(shown) < 50_000 < max(shown)


def test_the_first_failures_of_each_kind_are_shown():
    samples = Samples()
    for number in range(1000):
        samples.fail(Failure(str(number), ("empty", "truncated")[number % 2], "why"), item(str(number)))
    assert {kind: [f.key for f, _ in shown] for kind, shown in samples.failures.items()} == {
        "empty": [str(n) for n in range(0, 2 * FAILURES_SHOWN, 2)],
        "truncated": [str(n) for n in range(1, 2 * FAILURES_SHOWN, 2)],
    }


def test_what_was_lost_is_shown_no_more():
    samples, record, failed = Samples(), item("record"), item("failed")
    samples.keep(record)
    samples.fail(Failure("failed", "empty", "why"), failed)
    samples.forget(record)
    samples.forget(failed)
    assert not samples.records and not samples.failures
