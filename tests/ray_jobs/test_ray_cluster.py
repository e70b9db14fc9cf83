import os

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
