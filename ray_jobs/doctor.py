"""`roivault doctor`: what this machine has and lacks, and whether extraction can run here."""

from __future__ import annotations

import importlib
import importlib.util
import json
import mmap
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from cache import InputNotFound
from cache.output import size

DETECTRON2 = "pip install 'git+https://github.com/facebookresearch/detectron2.git'"

# import name -> (what pip installs, the extra of roivault that brings it; "" for the base installation)
REQUIREMENTS = {
    "numpy": ("numpy", ""),
    "lmdb": ("lmdb", ""),
    "xxhash": ("xxhash", ""),
    "ml_dtypes": ("ml_dtypes", ""),
    "typer": ("typer", ""),
    "rich": ("rich", ""),
    "torch": ("torch", "extract"),
    "torchvision": ("torchvision", "extract"),
    "cv2": ("opencv-python-headless", "extract"),
    "PIL": ("pillow", "extract"),
    "safetensors": ("safetensors", "extract"),
    "fsspec": ("fsspec[http]", "extract"),
    "ray": ("ray[default,train]", "ray"),
    "prometheus_client": ("prometheus_client", "ray"),
    "pyarrow": ("pyarrow", "server"),
    "transformers": ("transformers", "consumers"),
    "tokenizers": ("tokenizers", "consumers"),
    "sentencepiece": ("sentencepiece", "consumers"),
    "matplotlib": ("matplotlib", "consumers"),
    "scipy": ("scipy", "consumers"),
    "tensorboard": ("tensorboard", "consumers"),
    "h5py": ("h5py", "all"),
}
NEEDED_TO_EXTRACT = ("", "extract")
OWN_PACKAGES = ("cache", "extractor", "ray_jobs", "consumers")
SMALL_DISK = 2 * 2**30
SMALL_SHM = 2**30


def install_hint(module: str) -> str:
    """The command that installs an importable module that roivault uses, or "" for one that it does not know."""
    if module == "detectron2":
        return DETECTRON2
    if module not in REQUIREMENTS:
        return ""
    requirement, extra = REQUIREMENTS[module]
    return f"pip install '{requirement}'" + (f", or roivault with its extra [{extra}]" if extra else "")


@dataclass(frozen=True)
class Check:
    """One finding. `state` is ok, note (extraction runs, but read this) or problem (it does not run here)."""

    name: str
    state: str
    value: str
    remedy: str = ""


def diagnose(path: Path) -> list[Check]:
    """Everything that `roivault doctor` reports; `path` is an existing folder where stores would be written."""
    probes: dict[str, Callable[[], Iterator[Check]]] = {
        "python": _python,
        "packages": _packages,
        "names": _names,
        "device": _devices,
        "cpu": _processor,
        "memory": _memory,
        "disk": lambda: _disk(path),
        "store": lambda: _store(path),
        "models": _models,
    }
    checks = []
    for name, probe in probes.items():
        try:
            checks.extend(probe())
        except Exception as error:  # whatever is broken here is what doctor is asked to report
            checks.append(Check(name, "problem", f"{type(error).__name__}: {error}", "see the message"))
    return checks


def _python() -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} at {sys.executable} on {platform.platform()}")


def _packages() -> Iterator[Check]:
    from importlib import metadata  # here, as it takes a tenth of the start of every other verb

    for module, (requirement, extra) in REQUIREMENTS.items():
        distribution, needed = requirement.partition("[")[0], extra in NEEDED_TO_EXTRACT
        try:
            version = metadata.version(distribution)
            if needed:
                importlib.import_module(module)
        except metadata.PackageNotFoundError:
            if importlib.util.find_spec(module):
                yield Check(distribution, "ok", f"provided by another distribution as `{module}`")
            else:
                state = "problem" if needed else "note"
                yield Check(distribution, state, "not installed", install_hint(module))
        except Exception as error:
            remedy = f"reinstall it: pip install --force-reinstall --no-deps {distribution}=={version}"
            if module == "cv2":
                remedy = "use the build without a display: pip uninstall opencv-python; " + install_hint(module)
            if module == "torchvision":
                remedy = "torch and torchvision must be a released pair: pip install --upgrade torch torchvision"
            yield Check(distribution, "problem", f"{version}, but importing it fails: {error}", remedy)
        else:
            yield Check(distribution, "ok", version)
    if importlib.util.find_spec("detectron2"):
        yield Check("detectron2", "ok", metadata.version("detectron2"))
    else:
        yield Check("detectron2", "note", "not installed, and not on the package index", DETECTRON2)


def _names() -> Iterator[Check]:
    """Distributions with packages named like roivault's overwrite its files when they are installed beside it."""
    from importlib import metadata

    owners = metadata.packages_distributions()
    others = sorted({owner for name in OWN_PACKAGES for owner in owners.get(name, ())} - {"roivault"})
    if others:
        names = ", ".join(name for name in OWN_PACKAGES if set(owners.get(name, ())) - {"roivault"})
        yield Check(
            "names",
            "problem",
            f"{', '.join(others)} installs packages under names of roivault's own: {names}",
            f"pip uninstall {' '.join(others)}, then pip install --force-reinstall --no-deps roivault",
        )
    else:
        yield Check("names", "ok", f"no other distribution installs {', '.join(OWN_PACKAGES)}")


def _devices() -> Iterator[Check]:
    try:
        import torch
    except Exception:
        return  # reported by _packages
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    build = f"torch {torch.__version__}, {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPU-only'} build"
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        yield Check(f"cuda:{index}", "ok", f"{properties.name}, {size(properties.total_memory)}; {build}")
    if count:
        return
    present = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and present:
        remedy = f"CUDA_VISIBLE_DEVICES is {hidden!r}: unset it to let torch see the GPU"
    elif not torch.version.cuda and present:
        remedy = "this machine has an NVIDIA driver: install a CUDA build of torch to use it"
    elif present:
        remedy = "; ".join(str(w.message).strip() for w in caught) or "update the NVIDIA driver to fit this torch"
    else:
        remedy = "large detectors are many times slower without a GPU; the demo model is meant for the CPU"
    yield Check("cuda", "note", f"no GPU in use, extraction runs on the CPU; {build}", remedy)


def _processor() -> Iterator[Check]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{usable} of {os.cpu_count()} cores usable"
    quota = _cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        text += f", limited to {int(quota[0]) / int(quota[1]):.1f} by the container"
    if "torch" in sys.modules:
        text += f", torch uses {sys.modules['torch'].get_num_threads()} threads"
    if threads := os.environ.get("OMP_NUM_THREADS"):
        text += f" (OMP_NUM_THREADS={threads})"
    yield Check("cpu", "ok", text)


def _memory() -> Iterator[Check]:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        yield Check("memory", "note", "this system does not tell how much there is")
        return
    limit = _cgroup("memory.max")
    if limit.isdigit() and int(limit) < total:
        yield Check("memory", "ok", f"{size(total)}, limited to {size(int(limit))} by the container")
    else:
        yield Check("memory", "ok", size(total))


def _disk(path: Path) -> Iterator[Check]:
    for name, place in (("disk", path), ("temporary", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(place).free
        remedy = "" if free >= SMALL_DISK else "a store of 100,000 images with 36 regions of 2048 values takes 15 GB"
        yield Check(name, "note" if remedy else "ok", f"{size(free)} free at {place}", remedy)
    shared = Path("/dev/shm")
    if shared.is_dir():
        total = shutil.disk_usage(shared).total
        remedy = "" if total >= SMALL_SHM else "Ray and data loaders need more: start the container with --shm-size=4g"
        yield Check("shared memory", "note" if remedy else "ok", size(total), remedy)


def _store(path: Path) -> Iterator[Check]:
    with tempfile.TemporaryDirectory(prefix=".roivault-doctor-", dir=path) as scratch:
        for name, trial in (("mmap", _try_mmap), ("lock", _try_lock), ("store", _try_store)):
            try:
                trial(Path(scratch))
            except Exception as error:
                remedy = "write stores to a local disk and copy them when they are sealed"
                yield Check(name, "problem", f"fails at {path}: {type(error).__name__}: {error}", remedy)
            else:
                yield Check(name, "ok", f"works at {path}")


def _try_mmap(folder: Path) -> None:
    with open(folder / "mmap", "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as view:
            view[:5] = b"maps!"
            view.flush()
        if file.read(5) != b"maps!":
            raise OSError("what is written through a memory map does not reach the file")


def _try_lock(folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows locks through msvcrt; the store trial covers it
        return
    with open(folder / "lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _try_store(folder: Path) -> None:
    """Write a store, seal it and read it back."""
    import numpy as np

    from cache import Regions, StoreWriter, open_store

    regions = Regions("doctor", 8, 8, boxes=np.array([[1, 2, 3, 4]]), features=np.arange(16, dtype=np.float32)[None])
    with StoreWriter(folder / "doctor.roi", feature_dtype="float32") as writer:
        writer.write([regions])
        writer.seal()
    read = open_store(folder / "doctor.roi", verify="always")["doctor"]
    if not np.array_equal(read.features, regions.features):
        raise OSError("a sealed store does not give back what was written")


def _models() -> Iterator[Check]:
    from extractor import get_preset, list_extractors

    for preset in map(get_preset, list_extractors()):
        if preset.weights_file.is_file():
            yield Check(f"model {preset.name}", "ok", f"weights are at {preset.weights_file}")
        else:
            remedy = f"roivault weights fetch {preset.name}" if preset.urls else "give a checkpoint with --weights FILE"
            yield Check(f"model {preset.name}", "note", "its weights are not installed", remedy)


def _cgroup(name: str) -> str:
    try:
        return Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return ""


def register(app: typer.Typer) -> None:
    """Add the `doctor` verb."""

    @app.command()
    def doctor(
        path: Path = typer.Option(Path("."), "--path", help="Folder where stores would be written."),
        as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
    ) -> None:
        """Say what this machine has and lacks.

        Ends with 0 when extraction can run here, else with 65.
        """
        if not path.is_dir():
            raise InputNotFound(f"--path {path} is not an existing folder; create it or name another")
        checks = diagnose(path)
        problems = [check.name for check in checks if check.state == "problem"]
        if as_json:
            print(json.dumps({"ok": not problems, "checks": [asdict(check) for check in checks]}, indent=2))
        else:
            colors = {"ok": typer.colors.GREEN, "note": typer.colors.YELLOW, "problem": typer.colors.RED}
            width = max(len(check.name) for check in checks)
            for check in checks:
                state = typer.style(f"{check.state:<8}", fg=colors[check.state])
                typer.echo(f"{state}{check.name:<{width}}  {check.value}")
                if check.remedy:
                    typer.echo(f"{'':<{width + 10}}-> {check.remedy}")
            verdict = f"Extraction cannot run here: {', '.join(problems)}." if problems else "Extraction can run here."
            typer.echo(f"\n{verdict}")
        raise typer.Exit(65 if problems else 0)
