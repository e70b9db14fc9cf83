import json

import pytest

from cache import Failure
from ray_jobs.sources import Item, Unusable
from ray_jobs.tally import MOST_EXAMPLES, Allowance, Summary, Tally, judge


def item(key):
    return Item(key, Unusable("empty", "why"), f"/photos/{key}")


def tally(listed, records, failed=0, kind="empty"):
    counts = Tally(listed=listed, records=records, new=records)
    for number in range(failed):
        counts.fail(Failure(f"k{number}", kind, "why", f"/photos/k{number}"), item(f"k{number}"))
    return counts


@pytest.mark.parametrize(
    ("counts", "stopped", "exit_code", "said"),
    [
        (tally(10, 10), False, 0, "10 of 10"),
        (tally(200, 198, 2), False, 0, "2 failed"),
        (tally(100, 98, 2), False, 65, "--max-failures 1% allows"),
        (tally(0, 0), False, 65, "no images"),
        (tally(3, 0, 3), False, 65, "None of the 3"),
        (tally(10, 5), True, 130, "run the same command again"),
        (tally(0, 0), True, 130, "after 0 images"),
    ],
)
def test_verdict(counts, stopped, exit_code, said):
    verdict, code = judge(counts, Allowance(1, percent=True), "s.roi", stopped)
    assert code == exit_code and said in verdict


def test_allowance():
    assert not Allowance(2, percent=False).exceeded(2, 3) and Allowance(2, percent=False).exceeded(3, 1000)
    assert not Allowance(0.5, percent=True).exceeded(1, 200) and Allowance(0.5, percent=True).exceeded(2, 399)


def summary(counts, **about):
    told = dict(source="photos", store="s.roi", model="demo", engine="local", device="cpu", precision="float32")
    told |= dict(feature_dtype="float16", threads=2, verdict="Done.", exit_code=0) | about
    return Summary.of(counts, **told)


def test_summary_for_programs():
    counts = tally(30, 5, 25)
    counts.spend("model", 2.0, 5)
    told = json.loads(json.dumps(summary(counts).as_dict()))
    assert (told["listed"], told["records"], told["failed"], told["failures"]) == (30, 5, 25, {"empty": 25})
    assert told["images_per_second"] == {"model": 2.5} and told["seconds"]["model"] == 2.0
    assert len(told["examples"]) == MOST_EXAMPLES
    assert told["examples"][0] == {"key": "k0", "kind": "empty", "message": "why", "source": "/photos/k0"}


def test_summary_for_people():
    text = summary(tally(30, 5, 25)).text()
    for part in ("30 listed", "5 new", "25 failed", "empty: 25", "/photos/k0: why", "and 5 more", "s.roi"):
        assert part in text
    counts = Tally(listed=1)
    counts.fail(Failure("k", "empty", "why", "/photos/\x1b[31mred\n.jpg"), item("k"))
    assert "\x1b" not in summary(counts).text() and r"\n.jpg" in summary(counts).text()
    assert "images/s" not in summary(tally(1, 1), device=None).text()


def test_what_was_lost_counts_no_more():
    counts, failure = Tally(), Failure("k", "empty", "why")
    counts.keep(item("record"))
    counts.fail(failure, item("k"))
    counts.forget(item("record"), None)
    assert (counts.records, counts.failed, counts.examples) == (0, 1, [failure])
    counts.forget(item("k"), failure)
    assert (counts.done, dict(counts.failures), counts.examples) == (0, {}, [])
