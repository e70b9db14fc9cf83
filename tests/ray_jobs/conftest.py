"""A job that runs in milliseconds: small pictures and the model of fake_job.py."""

import contextlib
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cache import open_store
from ray_jobs.extract import run_extract
from ray_jobs.options import ExtractOptions
from ray_jobs.ray_environment import prepare_environment

ROOT = Path(__file__).resolve().parents[2]
FAKE_JOB = Path(__file__).with_name("fake_job.py")
prepare_environment(None)  # before a test imports Ray, which reads it then


@pytest.fixture(scope="session")
def fake_job():
    """The module of the fake model."""
    spec = importlib.util.spec_from_file_location("fake_job", FAKE_JOB)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ray_cluster(fake_job):
    """Starts Ray nodes on the loopback interface: first a head, which this process connects to, then others."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    folder, before = tempfile.mkdtemp(prefix="rv", dir="/tmp"), dict(os.environ)  # short: the paths of sockets must be
    os.environ["RAY_TMPDIR"] = folder
    ray.cloudpickle.register_pickle_by_value(fake_job)
    cluster = Cluster()

    def add_node(**offers):
        node = cluster.add_node(node_ip_address="127.0.0.1", include_dashboard=False, **offers)
        if not ray.is_initialized():
            ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        return node

    add_node.cluster = cluster
    yield add_node
    ray.shutdown()
    cluster.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(fake_job)
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder)


def write_picture(path, index=0, size=(24, 16)):
    """A picture that differs from those of every other index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(index).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def picture():
    return write_picture


@pytest.fixture
def photos(tmp_path):
    """Makes a folder of n pictures: photos(n) or photos(n, "name")."""

    def make(count, name="photos"):
        for index in range(count):
            write_picture(tmp_path / name / f"{index:04d}.png", index)
        return tmp_path / name

    return make


@pytest.fixture
def unprivileged(tmp_path, monkeypatch):
    """A context in which file permissions apply even if root runs the tests; tmp_path is the working folder."""
    monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def context():
        os.chmod(tmp_path, 0o777)
        above = {path: mode for path in tmp_path.parents if not (mode := path.stat().st_mode & 0o777) & 0o001}
        is_root = os.geteuid() == 0
        if is_root:
            for path, mode in above.items():  # pytest closes its own folder to others
                os.chmod(path, mode | 0o111)
            os.setegid(65534)
            os.seteuid(65534)
        try:
            yield
        finally:
            if is_root:
                os.seteuid(0)
                os.setegid(0)
                for path, mode in above.items():
                    os.chmod(path, mode)

    return context


@pytest.fixture
def contents():
    """What a store holds: {key: every value of its record, or the kind of its failure}."""

    def read(path):
        store = open_store(str(path))
        held = {failure.key: failure.kind for failure in store.failures()}
        for key in store.keys():
            regions = store[key]
            arrays = {name: (a.dtype.str, a.shape, a.tobytes()) for name, a in regions.arrays().items()}
            held[key] = {**arrays, "size": (regions.width, regions.height), "source": regions.source_digest}
        return held

    return read


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 600 kB, and how to mount it anew with other options."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if os.getuid() or not mount:
        pytest.skip("mounting a small file system needs root")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=600k", "tmpfs", place], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"mounting a small file system is not allowed here: {made.stderr.strip()}")
    yield place, lambda options: subprocess.run([mount, "-o", f"remount,{options}", place], check=True)
    subprocess.run([shutil.which("umount"), place], check=True)


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "fake.weights"
    path.write_bytes(b"the fake model does not look at them")
    return path


@pytest.fixture
def one_thread():
    """Torch on one thread: small models are slower on more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Job:
    """Runs the fake extraction in this process, and remembers the keys that its model saw."""

    def __init__(self, fake_job, weights):
        self.weights, self.keys, self.models = weights, [], []
        job = self

        class Model(fake_job.FakeModel):
            def __init__(self, choices):
                super().__init__(choices)
                job.models.append(self)

            def extract(self, images, keys):
                job.keys += keys
                return super().extract(images, keys)

        self.model = Model

    def __call__(self, source, output, **options):
        self.keys.clear()
        options = {"model": "demo", "weights": str(self.weights), "quiet": True, **options}
        return run_extract(ExtractOptions(source=str(source), output=str(output), **options), load=self.model)


@pytest.fixture
def job(fake_job, weights):
    return Job(fake_job, weights)


class Command:
    """Starts the fake job as a process of its own; FAKE_... settings are given in lower case.

    `calls` is the file of the keys that were at a model, `gate` the file that lets a model go on.
    """

    def __init__(self, tmp_path, weights):
        self.weights, self.calls, self.gate = weights, tmp_path / "calls", tmp_path / "gate"
        self.running = []
        self.ray_folder = tempfile.mkdtemp(prefix="rv", dir="/tmp")  # short: the paths of sockets must be

    def start(self, source, output, *args, **settings):
        env = {name: value for name, value in os.environ.items() if not name.startswith(("FAKE_", "RAY_"))}
        env |= {"RAY_TMPDIR": self.ray_folder}
        env |= {"PYTHONPATH": str(ROOT), "FAKE_CALLS": str(self.calls), "FAKE_GATE": str(self.gate)}
        env |= {f"FAKE_{name.upper()}": value for name, value in settings.items()}
        line = [sys.executable, FAKE_JOB, source, "-o", output, "--model", "demo", "--weights", self.weights, *args]
        process = subprocess.Popen(
            list(map(str, line)), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.running.append(process)
        return process

    def run(self, *args, **settings):
        process = self.start(*args, **settings)
        process.out, process.err = process.communicate(timeout=100)
        return process

    def seen(self):
        """Keys that the models of all runs saw, in order."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def wait_for(self, count, process):
        """Until that many keys have been at the model."""
        while len(self.seen()) < count:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)


@pytest.fixture
def command(tmp_path, weights):
    command = Command(tmp_path, weights)
    yield command
    for process in command.running:
        if process.poll() is None:
            process.kill()
            process.communicate()
    shutil.rmtree(command.ray_folder, ignore_errors=True)  # killed jobs leave Ray's logs


class RayJob:
    """Runs the fake extraction on the cluster that this process is connected to; FAKE_... settings in lower case."""

    def __init__(self, fake_job, weights, tmp_path):
        self._load, self._weights = fake_job.FakeModel, weights
        self.calls, self.pids, self.gate = tmp_path / "calls", tmp_path / "pids", tmp_path / "gate"

    def __call__(self, source, output, settings=None, **options):
        given = {f"FAKE_{name.upper()}": str(value) for name, value in (settings or {}).items()}
        given |= {"FAKE_CALLS": str(self.calls), "FAKE_PIDS": str(self.pids), "FAKE_GATE": str(self.gate)}
        options = {"model": "demo", "weights": str(self._weights), "quiet": True, "engine": "ray", **options}
        options = {"device": "cpu", "threads": 1, "max_failures": "2", **options}
        load = functools.partial(self._load, settings=given)
        return run_extract(ExtractOptions(source=str(source), output=str(output), **options), load=load)

    def seen(self):
        return self.calls.read_text().split() if self.calls.exists() else []

    def processes(self):
        return [int(pid) for pid in self.pids.read_text().split()] if self.pids.exists() else []


@pytest.fixture
def ray_job(cluster, fake_job, weights, tmp_path):
    return RayJob(fake_job, weights, tmp_path)
