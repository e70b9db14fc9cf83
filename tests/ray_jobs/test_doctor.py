"""The doctor's findings: true, complete, and with a remedy that fits."""

import builtins
import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import roivault
from ray_jobs import doctor

ROOT = Path(__file__).resolve().parents[2]


def findings(tmp_path):
    return {check.name: check for check in doctor.diagnose(tmp_path)}


@pytest.fixture
def hidden(monkeypatch):
    """Make distributions look as if they were not installed."""

    def hide(*modules):
        distributions = [doctor.REQUIREMENTS[module][0].partition("[")[0] for module in modules]
        version, find_spec = importlib.metadata.version, importlib.util.find_spec

        def missing(name):
            if name in distributions:
                raise importlib.metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(importlib.metadata, "version", missing)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in modules else find_spec(name))

    return hide


def test_a_machine_that_runs_these_tests_can_extract(tmp_path, capsys):
    assert roivault.main(["doctor", "--path", str(tmp_path)]) == 0
    assert "Extraction can run here." in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_json_has_every_check(tmp_path, capsys):
    assert roivault.main(["doctor", "--json", "--path", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    names = {check["name"] for check in answer["checks"]}
    assert {"python", "torch", "ray", "detectron2", "cpu", "memory", "disk", "mmap", "lock", "store"} <= names
    assert {check["state"] for check in answer["checks"]} <= {"ok", "note", "problem"}


def test_missing_extra_is_a_problem_with_its_remedy(tmp_path, hidden, capsys):
    hidden("cv2")
    assert roivault.main(["doctor", "--json", "--path", str(tmp_path)]) == 65
    check = next(c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "opencv-python-headless")
    assert (check["state"], check["remedy"]) == ("problem", doctor.install_hint("cv2"))


def test_missing_ray_is_only_a_note(tmp_path, hidden):
    hidden("ray")
    assert findings(tmp_path)["ray"].state == "note"


def test_package_that_cannot_be_imported_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    load = builtins.__import__

    def broken(name, *args, **kwargs):
        if name == "cv2":
            raise ImportError("libGL.so.1: cannot open shared object file")
        return load(name, *args, **kwargs)

    monkeypatch.setattr(importlib, "import_module", broken)
    check = findings(tmp_path)["opencv-python-headless"]
    assert check.state == "problem" and "libGL" in check.value and "pip uninstall opencv-python;" in check.remedy


def test_folder_that_cannot_hold_a_store_is_a_problem(tmp_path, monkeypatch):
    def refuse(folder):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(doctor, "_try_mmap", refuse)
    check = findings(tmp_path)["mmap"]
    assert check.state == "problem" and str(tmp_path) in check.value and "local disk" in check.remedy


def test_path_that_is_no_folder_is_refused(tmp_path, capsys):
    assert roivault.main(["doctor", "--path", str(tmp_path / "none")]) == 66
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_distribution_that_overwrites_ours_is_a_problem(tmp_path, monkeypatch):
    owners = {"cache": ["roivault", "other-cache"], "ray_jobs": ["roivault"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: owners)
    check = findings(tmp_path)["names"]
    assert check.state == "problem" and "other-cache" in check.value and "pip uninstall other-cache" in check.remedy


def gpu(available, cuda="13.0"):
    properties = SimpleNamespace(name="Big GPU", total_memory=80 * 2**30)
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: available, device_count=lambda: 2, get_device_properties=lambda index: properties
        ),
        version=SimpleNamespace(cuda=cuda),
        __version__="9.9",
        get_num_threads=lambda: 1,
    )


def test_every_gpu_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", gpu(True))
    assert [(c.name, c.state) for c in doctor._devices()] == [("cuda:0", "ok"), ("cuda:1", "ok")]


@pytest.mark.parametrize(
    "driver, visible, cuda, remedy",
    [
        (False, None, "13.0", "slower without a GPU"),
        (True, "", "13.0", "CUDA_VISIBLE_DEVICES is ''"),
        (True, None, None, "install a CUDA build"),
        (True, None, "13.0", "driver"),
    ],
)
def test_gpu_that_is_not_in_use_is_explained(monkeypatch, driver, visible, cuda, remedy):
    monkeypatch.setitem(sys.modules, "torch", gpu(False, cuda))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi" if driver else None)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (check,) = doctor._devices()
    assert check.state == "note" and remedy in check.remedy


def test_remedies_name_extras_that_have_the_package():
    code = "from distutils.core import run_setup; d = run_setup('setup.py', stop_after='init'); import json; "
    code = f"import setuptools; {code}print(json.dumps([d.install_requires, d.extras_require]))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    base, extras = json.loads(result.stdout.splitlines()[-1])
    for module, (requirement, extra) in doctor.REQUIREMENTS.items():
        assert requirement in [line.split(">")[0] for line in (extras[extra] if extra else base)], module
        hint = doctor.install_hint(module)
        assert hint.startswith(f"pip install '{requirement}'") and hint.endswith(f"[{extra}]" if extra else "'")
    assert doctor.install_hint("detectron2").startswith("pip install 'git+")
    assert doctor.install_hint("nobody") == ""
