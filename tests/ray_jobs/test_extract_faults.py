"""Whatever ends a job, the same line finishes it: nothing lost, nothing twice, the same records."""

import json
import multiprocessing
import os
import random
import signal
import time

import pytest
from PIL import Image

from cache import open_store
from ray_jobs.work import UNIT

COUNT = 5 * UNIT + 4


@pytest.fixture
def whole(job, photos, tmp_path, contents):
    """The pictures, and what a store of them holds when nothing goes wrong."""
    folder = photos(COUNT)
    (folder / "bad.png").write_bytes(b"no picture")
    job(folder, tmp_path / "whole.roi")
    return folder, contents(tmp_path / "whole.roi")


def killed_after(seconds, job, folder, store, options):
    """Run the job in a forked child, for so long; returns whether it had to be killed."""
    child = multiprocessing.get_context("fork").Process(target=lambda: (job(folder, store, **options), os._exit(0)))
    child.start()
    child.join(seconds)
    child.kill()
    child.join()
    return child.exitcode == -signal.SIGKILL


def test_killed_at_any_moment(job, whole, tmp_path, contents, monkeypatch):
    folder, expected = whole
    monkeypatch.setenv("FAKE_SLEEP", "0.001")
    options = {"shard_size": 60_000}  # several seals in a run
    begin = time.monotonic()
    job(folder, tmp_path / "timed.roi", **options)
    duration = time.monotonic() - begin
    dice = random.Random(0)
    kills = 0
    for number in range(20):
        store = tmp_path / f"{number // 4}.roi"  # each is killed up to four times
        kills += killed_after(dice.uniform(0.02, 0.8) * duration, job, folder, store, options)
        if number % 4 == 3:
            summary = job(folder, store, **options)
            assert (summary.listed, summary.records, summary.failed) == (COUNT + 1, COUNT, 1)
            assert contents(store) == expected
            assert all(shard.sealed for shard in open_store(str(store)).manifest.shards)
    assert kills >= 5


def wait_until_stored(count, store, process):
    """Until a store holds exactly that many records, committed beside the model."""
    while not (store / "manifest.json").exists() or len(open_store(str(store))) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    assert len(open_store(str(store))) == count


def test_killed_by_an_image_keeps_what_was_committed(whole, tmp_path, contents, command):
    folder, expected = whole
    killed = command.start(folder, tmp_path / "s.roi", die="0040.png", hold="0039.png")
    wait_until_stored(2 * UNIT, tmp_path / "s.roi", killed)
    command.gate.touch()
    assert killed.wait(timeout=60) == -signal.SIGKILL
    command.calls.unlink()
    assert command.run(folder, tmp_path / "s.roi", "--max-failures", "1").returncode == 0
    assert command.seen() == [f"{i:04d}.png" for i in range(2 * UNIT, COUNT)]
    assert contents(tmp_path / "s.roi") == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(whole, tmp_path, contents, command, number):
    """The unit at the model is finished and committed, no other is begun, and nothing is done twice."""
    folder, expected = whole
    process = command.start(folder, tmp_path / "s.roi", "--json", "--max-failures", "1", hold=f"{UNIT + 1:04d}.png")
    command.wait_for(UNIT + 2, process)
    process.send_signal(number)
    assert process.stderr.readline() == "\n" and "interrupt again" in process.stderr.readline()
    command.gate.touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    summary = json.loads(out)
    assert (summary["exit_code"], summary["records"], summary["new"]) == (130, 2 * UNIT, 2 * UNIT)
    store = open_store(str(tmp_path / "s.roi"))
    assert len(store) == 2 * UNIT and all(shard.sealed for shard in store.manifest.shards)
    again = command.run(folder, tmp_path / "s.roi", "--json", "--quiet", "--max-failures", "1")
    assert (again.returncode, again.err, json.loads(again.out)["already"]) == (0, "", 2 * UNIT)
    assert command.seen() == [f"{i:04d}.png" for i in range(COUNT)]
    assert contents(tmp_path / "s.roi") == expected


def test_interrupted_twice_ends_at_once(whole, tmp_path, contents, command):
    folder, expected = whole
    process = command.start(folder, tmp_path / "s.roi", hold=f"{UNIT + 1:04d}.png")
    command.wait_for(UNIT + 2, process)
    wait_until_stored(UNIT, tmp_path / "s.roi", process)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "\n" and "interrupt again" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "same command continues it" in err
    assert len(open_store(str(tmp_path / "s.roi"))) == UNIT
    assert command.run(folder, tmp_path / "s.roi", "--max-failures", "1").returncode == 0
    assert contents(tmp_path / "s.roi") == expected


def test_a_second_writer_is_refused_and_the_first_goes_on(whole, tmp_path, contents, command):
    folder, expected = whole
    first = command.start(folder, tmp_path / "s.roi", "--max-failures", "1", hold="0000.png")
    command.wait_for(1, first)
    second = command.run(folder, tmp_path / "s.roi")
    assert second.returncode == 75
    assert f"process {first.pid}" in second.err and "s.roi" in second.err
    command.gate.touch()
    assert first.wait(timeout=60) == 0
    assert contents(tmp_path / "s.roi") == expected


def test_a_full_disk_is_named_and_the_job_finishes_when_there_is_room(
    small_disk, photos, tmp_path, contents, job, command
):
    place, remount = small_disk
    folder = photos(300)
    full = command.run(folder, place / "s.roi", "--dtype", "float32")
    assert full.returncode == 74, full.err
    assert f"the disk at {place} is full" in full.err
    assert not [name for name in os.listdir(place / "s.roi") if name.endswith(".tmp")]
    kept = len(open_store(str(place / "s.roi")))
    assert 0 < kept < 300
    again = command.run(folder, place / "s.roi")
    assert again.returncode == 74 and len(open_store(str(place / "s.roi"))) >= kept
    remount("size=20m")
    finished = command.run(folder, place / "s.roi", "--json")
    assert finished.returncode == 0 and json.loads(finished.out)["already"] >= kept
    job(folder, tmp_path / "whole.roi", dtype="float32")
    assert contents(place / "s.roi") == contents(tmp_path / "whole.roi")


def test_a_disk_that_cannot_be_written_is_named(small_disk, photos, command):
    place, remount = small_disk
    remount("ro")
    done = command.run(photos(1), place / "s.roi")
    assert done.returncode == 74 and f"the disk at {place} is read-only" in done.err


def test_memory_does_not_grow_with_the_number_of_images(tmp_path, command):
    """200 and 40 links to one picture of 1000 x 1000: 600 and 120 MB of pixels."""
    source = tmp_path / "one.png"
    Image.new("RGB", (1000, 1000)).save(source)
    peaks = {}
    for count in (40, 200):
        folder = tmp_path / str(count)
        folder.mkdir()
        for index in range(count):
            os.link(source, folder / f"{index}.png")
        process = command.start(folder, tmp_path / f"{count}.roi", "--quiet", "--threads", "2")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, process.stderr.read()
        peaks[count] = usage.ru_maxrss / 1024
    assert peaks[200] < peaks[40] + 60, peaks
