import os
import subprocess
import sys

import pytest

pytest.importorskip("ray")

from ray_jobs.ray_cluster import make_folder


def test_of_the_folders_of_processes_that_are_gone_the_latest_stays(tmp_path):
    made = [make_folder(str(tmp_path)) for _ in range(4)]
    for age, (_, lock) in enumerate(made):
        os.utime(lock.name, (age, age))
    (tmp_path / "roivault-other").mkdir()
    alive, *gone = made
    for _, lock in gone:
        lock.close()
    new, lock = make_folder(str(tmp_path))
    kept = {alive[0], gone[-1][0], new, str(tmp_path / "roivault-other")}
    assert {str(path) for path in tmp_path.iterdir()} == kept
    alive[1].close()
    lock.close()


SIGNALLED = """
import os, signal, sys, time
from ray_jobs.ray_environment import prepare_environment
prepare_environment(None)
signal.signal(signal.SIGTERM, lambda number, frame: print("handled", flush=True))
from ray_jobs.ray_cluster import Cluster
cluster = Cluster(None)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(4)  # Ray's own handler ends the process after 3
cluster.close()
print("finished")
"""


def test_a_process_that_was_told_to_end_has_its_time():
    run = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stdout.split(), run.stderr) == (0, ["handled", "finished"], "")
