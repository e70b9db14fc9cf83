"""`roivault extract --engine ray` as a process of its own, with a cluster of its own, and what may end it."""

import contextlib
import json
import os
import random
import shutil
import signal
import time

import pytest

from cache import open_store
from ray_jobs.work import UNIT

pytest.importorskip("ray")

COUNT = 6 * UNIT + 5
RAY = ("--engine", "ray", "--device", "cpu", "--threads", "1", "--max-failures", "1", "--json")


@pytest.fixture
def whole(job, photos, tmp_path, contents):
    """The pictures, one of them bad, and what a store of them holds when nothing goes wrong."""
    folder = photos(COUNT)
    (folder / "bad.png").write_bytes(b"no picture")
    job(folder, tmp_path / "whole.roi", max_failures="1")
    return folder, contents(tmp_path / "whole.roi")


def processes():
    """{pid: (parent, command line)} of this machine."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat, open(f"/proc/{name}/cmdline") as line:
                fields = stat.read().rpartition(")")[2].split()
                if fields[0] != "Z":
                    found[int(name)] = int(fields[1]), line.read().replace("\0", " ")
        except OSError:
            pass
    return found


def family(pid):
    """The descendants of a process: {pid: command line}."""
    there, found = processes(), {}
    ahead = [pid]
    while ahead:
        parent = ahead.pop()
        children = [child for child, (above, _) in there.items() if above == parent]
        found |= {child: there[child][1] for child in children}
        ahead += children
    return found


def one(relatives, name):
    return next(pid for pid, line in relatives.items() if name in line)


def gone(pids, seconds=150):
    """Whether all these processes end within so many seconds; the agents of Ray need some when nobody tells them."""
    end = time.monotonic() + seconds
    pids = set(pids)
    while pids & set(processes()) and time.monotonic() < end:
        time.sleep(0.1)
    return not pids & set(processes())


def listening(pids):
    """Addresses, as the kernel writes them, at which the processes listen."""
    inodes = set()
    for pid in pids:
        try:
            inodes |= {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        except OSError:
            pass
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            for fields in map(str.split, list(lines)[1:]):
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    found.append(fields[1].partition(":")[0])
    return found


def test_a_cluster_of_its_own_is_private_and_leaves_nothing(whole, tmp_path, contents, command, monkeypatch):
    folder, expected = whole
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    process = command.start(folder, tmp_path / "s.roi", *RAY, "--quiet", hold="0050.png")
    command.wait_for(30, process)
    relatives = family(process.pid)
    assert one(relatives, "raylet") and one(relatives, "gcs_server")
    addresses = listening([process.pid, *relatives])
    assert addresses and set(addresses) <= {"0100007F", "0000000000000000FFFF00000100007F"}
    command.gate.touch()
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["records"] == COUNT and contents(tmp_path / "s.roi") == expected
    assert gone(relatives)
    assert not (tmp_path / "home").exists()


@pytest.fixture(params=[1, 2], ids=["one writer", "two writers"])
def line(request, tmp_path):
    """Options of a job, the number of writers among them."""
    if request.param == 1:
        return RAY
    return (*RAY, "--writers", "2", "--work", tmp_path / "work", "--shard-size", "60000")


def finish(command, folder, store, expected, contents, line=RAY):
    """The same line again does the rest, once: nothing is lost, nothing is there twice."""
    kept = len(open_store(str(store))) if (store / "manifest.json").exists() else 0
    done = command.run(folder, store, *line)
    assert done.returncode == 0, done.err
    summary = json.loads(done.out)
    assert (summary["records"], summary["failed"], summary["already"]) == (COUNT, 1, kept)
    assert sum(shard.records for shard in open_store(str(store)).manifest.shards) == COUNT
    assert contents(store) == expected and not list(store.parent.glob("work/writers*"))
    return kept


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_and_keeps_what_was_committed(whole, tmp_path, contents, command, line):
    folder, expected = whole
    process = command.start(folder, tmp_path / "s.roi", *line, sleep="0.02")
    command.wait_for(3 * UNIT + 2, process)
    relatives = family(process.pid)
    process.kill()
    process.communicate()
    assert gone(relatives)
    command.calls.unlink()
    kept = finish(command, folder, tmp_path / "s.roi", expected, contents, line)
    assert kept >= (UNIT if line == RAY else 0) and len(command.seen()) == COUNT - kept


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_drains(whole, tmp_path, contents, command, number, line):
    """Ctrl-C reaches every process of the terminal, those of Ray too."""
    folder, expected = whole
    process = command.start(folder, tmp_path / "s.roi", *line, sleep="0.02")
    command.wait_for(UNIT + 2, process)
    relatives = family(process.pid)
    for pid in [process.pid, *relatives] if number == signal.SIGINT else [process.pid]:
        os.kill(pid, number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    summary = json.loads(out)
    assert (summary["records"], summary["exit_code"]) == (len(open_store(str(tmp_path / "s.roi"))), 130)
    assert 0 < summary["records"] < COUNT and gone(relatives)
    finish(command, folder, tmp_path / "s.roi", expected, contents, line)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raylet/raylet", "gcs/gcs_server"])
def test_a_dead_cluster_ends_the_job(whole, tmp_path, contents, command, name):
    """Lost infrastructure, unless the job can do without what died."""
    folder, expected = whole
    process = command.start(folder, tmp_path / "s.roi", *RAY, hold="0050.png")
    command.wait_for(UNIT + 2, process)
    relatives = family(process.pid)
    os.kill(one(relatives, name), signal.SIGKILL)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 75 and "run the same line again" in err, (process.returncode, out, err)
    assert json.loads(out)["exit_code"] == 75
    assert gone(relatives)
    finish(command, folder, tmp_path / "s.roi", expected, contents)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_random(whole, tmp_path, contents, command, line):
    """Whatever dies, whenever: the store holds the same in the end."""
    folder, expected = whole
    dice = random.Random(2)
    kills, finished = [], 0
    names = ["driver", "ray::Model", "ray::decode", "raylet/raylet", *(["ray::Writer"] if line != RAY else [])]
    for _ in range(20):
        store = tmp_path / f"{finished}.roi"  # killed until a run of it ends well
        victim = dice.choice(names)
        process = command.start(folder, store, *line, sleep="0.05")
        moment, relatives, victims = len(command.seen()) + dice.randrange(UNIT), {}, []
        titles = (victim, "ray::IDLE") if victim == "ray::decode" else (victim,)
        while process.poll() is None and not victims:
            relatives = family(process.pid) if len(command.seen()) > moment else {}
            victims = [pid for pid, title in relatives.items() if victim == "driver" or any(map(title.count, titles))]
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            for pid in [process.pid] if victim == "driver" else victims[:1]:
                os.kill(pid, signal.SIGKILL)
                kills.append(victim)
        out, err = process.communicate(timeout=200)
        assert process.returncode in (0, 75, -signal.SIGKILL), (victim, err)
        assert gone(pid for pid, title in relatives.items() if "Agent" not in title)
        if process.returncode == 0:
            summary = json.loads(out)
            assert (summary["records"], summary["failures"]) == (COUNT, {"not_an_image": 1})
            assert contents(store) == expected
            shutil.rmtree(tmp_path / "work", ignore_errors=True)
            finished += 1
    assert len(kills) >= 15 and set(kills) == set(names)
    finish(command, folder, tmp_path / f"{finished}.roi", expected, contents, line)
