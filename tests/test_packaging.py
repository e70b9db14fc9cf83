"""What is installed: every package and data file, the console command, and nothing else."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import roivault
from extractor.preset import read_vocabulary

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "roivault.py", *roivault.PACKAGES, "tests")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the tree without network; {name in the wheel: its text, or None}."""
    if importlib.util.find_spec("setuptools") is None or importlib.util.find_spec("pip") is None:
        pytest.skip("building a wheel needs pip and setuptools in this environment")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() if ".dist-info/" in name else None for name in archive.namelist()}


def test_wheel_holds_every_module_and_data_file(wheel):
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in roivault.PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and (path.suffix in (".py", ".csv") or "data" in path.parts)
        and "__pycache__" not in path.parts
    }
    assert {name for name in wheel if ".dist-info/" not in name} == expected | {"roivault.py"}


def test_wheel_has_its_licence_and_command(wheel):
    names = {name.rpartition("/")[2]: text for name, text in wheel.items() if text}
    assert "Apache License" in names["LICENSE"] and "Visual Genome" in names["NOTICE"]
    assert "roivault = roivault:main" in names["entry_points.txt"]
    assert f"Version: {roivault.__version__}\n" in names["METADATA"]


def test_base_installation_is_small(wheel):
    metadata = next(text for name, text in wheel.items() if name.endswith("METADATA"))
    required = [line.split(":")[1] for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    base = {line.split(">")[0].strip().replace("-", "_").lower() for line in required if "extra ==" not in line}
    assert base == {"numpy", "lmdb", "xxhash", "ml_dtypes", "typer", "rich"}


@pytest.mark.parametrize(
    "name, count, first, last",
    [("vg_classes.txt", 1600, "yolk", "buoy"), ("vg_attributes.txt", 400, "gray", "leaning")],
)
def test_vocabularies_are_complete(name, count, first, last):
    names = read_vocabulary(name)
    assert len(names) == count and all(names)
    assert names[0] == first and names[-1] == last
