"""What is told of a run, also of one that was killed between two writes of its state."""

import json
import sys
import types

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cache import UsageError
from consumers.run_log import LOG, RunLog


def told(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def updates(log, first, last, loss):
    for number in range(first, last + 1):
        log.update(number, loss, 1e-3, 8)


def test_no_update_is_told_of_twice(tmp_path):
    log = RunLog(tmp_path, 0, {})
    updates(log, 1, 25, 0.5)
    log.validation({"update": 25, "dev": 50.0})
    log.flush()  # a state of 25 updates is written here
    updates(log, 26, 40, 0.75)
    log.validation({"update": 40, "dev": 60.0})
    log.__exit__()
    with open(tmp_path / LOG, "a") as file:
        file.write('{"update": 4')
    log = RunLog(tmp_path, 25, {})
    updates(log, 26, 45, 0.25)
    log.validation({"update": 45, "dev": 70.0})
    log.__exit__()
    scalars = told(tmp_path)
    assert scalars["loss"] == [(1, 0.5), (10, 0.5), (20, 0.5), (30, 0.25), (40, 0.25)]
    assert scalars["validation"] == [(25, 50.0), (45, 70.0)]
    assert {name for name in scalars} == {"loss", "learning rate", "images per second", "validation"}
    assert all(value > 0 for _, value in scalars["images per second"])
    assert [json.loads(line)["update"] for line in (tmp_path / LOG).read_text().splitlines()] == [25, 45]


def test_weights_and_biases_is_asked_for_only(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("consumers.run_log.find_spec", lambda name: None)
    updates(RunLog(tmp_path, 0, {}), 1, 1, 0.5)
    with pytest.raises(UsageError, match="pip install wandb"):
        RunLog(tmp_path, 0, {}, "project")


def test_weights_and_biases_is_told_the_same(tmp_path, monkeypatch):
    asked, logged = [], []
    run = types.SimpleNamespace(log=lambda values, step: logged.append((step, values)), finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **given: asked.append(given) or run))
    monkeypatch.setattr("consumers.run_log.find_spec", lambda name: name)
    for done in (0, 10):
        log = RunLog(tmp_path, done, {"task": "a"}, "mine")
        log.validation({"update": done + 5, "dev": 50.0})
        log.__exit__()
    assert logged == [(5, {"validation": 50.0}), (15, {"validation": 50.0})]
    assert asked[0] == asked[1] and asked[0]["project"] == "mine" and asked[0]["resume"] == "allow"
