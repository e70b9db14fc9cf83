"""Runs done once each, whatever becomes of some of them."""

import json
from dataclasses import dataclass

from cache import UsageError
from consumers.results import Table
from ray_jobs.fan_out import exit_code, fan_out


@dataclass(frozen=True)
class Run:
    number: int
    recipe: tuple = (1, 2)


RUNS = [Run(n) for n in range(4)]


class Work:
    def __init__(self, failing=()):
        self.failing, self.done = failing, []

    def __call__(self, run):
        self.done.append(run.number)
        if run.number in self.failing:
            raise UsageError("no such thing") if run.number % 2 else RuntimeError("broken")
        return {"score": run.number * 10}


def test_runs_are_done_once(tmp_path):
    table, work = Table(tmp_path / "deep/t.jsonl"), Work()
    rows = fan_out(RUNS, work, table)
    assert [row["result"]["score"] for row in rows] == [0, 10, 20, 30] and work.done == [0, 1, 2, 3]
    again = Work()
    assert fan_out(RUNS, again, Table(table.path)) == rows and again.done == []


def test_a_failure_costs_the_others_nothing_and_is_tried_again(tmp_path):
    table = Table(tmp_path / "t.jsonl")
    rows = fan_out(RUNS, Work(failing=(1, 2)), table)
    assert [row["status"] for row in rows] == ["done", "failed", "failed", "done"]
    assert [(row["error"], row["exit_code"]) for row in rows[1:3]] == [
        ("no such thing", 2),
        ("RuntimeError: broken", 1),
    ]
    codes = {
        "some": exit_code(rows),
        "all": exit_code(rows[1:2]),
        "unlike": exit_code(rows[1:3]),
        "none": exit_code([]),
    }
    assert codes == {"some": 65, "all": 2, "unlike": 65, "none": 0}
    work = Work()
    rows = fan_out(RUNS, work, Table(table.path))
    assert work.done == [1, 2] and {row["status"] for row in rows} == {"done"}
    assert len(table.path.read_text().splitlines()) == 6


def test_a_stop_leaves_the_rest_for_later(tmp_path):
    table, work = Table(tmp_path / "t.jsonl"), Work()
    rows = fan_out(RUNS, work, table, stop=lambda: len(work.done) == 2)
    assert len(rows) == 2
    assert len(fan_out(RUNS, work, table)) == 4 and work.done == [0, 1, 2, 3]


def test_a_row_that_was_cut_off_is_written_again(tmp_path):
    table = Table(tmp_path / "t.jsonl")
    fan_out(RUNS[:2], Work(), table)
    whole = table.path.read_bytes()
    table.path.write_bytes(whole[:-10])
    work = Work()
    fan_out(RUNS[:2], work, Table(table.path))
    assert work.done == [1]
    assert [json.loads(line)["run"]["number"] for line in table.path.read_text().splitlines()] == [0, 1]
