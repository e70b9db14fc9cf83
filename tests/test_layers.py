"""The shape of the code base: who may import whom, what loads with what, and how long a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cache", "extractor", "consumers", "ray_jobs")
MAY_IMPORT = {
    "cache": {"cache"},
    "extractor": {"extractor", "cache"},
    "consumers": {"consumers", "cache"},
    "ray_jobs": {"ray_jobs", "extractor", "consumers", "cache"},
}
OURS = {*PACKAGES, "roivault", "tests", "benchmarks"}
CACHE_LOADS = {"numpy", "lmdb", "xxhash", "ml_dtypes"}
CACHE_TORCH = ("batch.py", "collate.py", "dataset.py", "lending.py", "sampling.py")  # what cache.dataset is made of
CACHE_ARROW = ("server.py", "server_calls.py")  # loaded by what serves only
COMMANDS_LOAD = CACHE_LOADS | {"typer", "rich"}
HEAVY = ("torch", "torchvision", "cv2", "PIL", "ray", "transformers", "h5py", "pyarrow", "matplotlib", "fsspec")

SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def imports(nodes):
    """Top-level names of the modules that absolute import statements among the nodes bring in."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


def run_at_import(tree):
    """Nodes of a module that run when it is imported: not function bodies, not `if TYPE_CHECKING`."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_point_down(path):
    package = path.relative_to(ROOT).parts[0]
    used = set(imports(ast.walk(ast.parse(path.read_text("utf-8"))))) & OURS
    assert used <= MAY_IMPORT[package], f"{name_of(path)} imports {used - MAY_IMPORT[package]}"


@pytest.mark.parametrize("path", [p for p in SOURCES if p.relative_to(ROOT).parts[0] == "cache"], ids=name_of)
def test_cache_loads_little(path):
    allowed = COMMANDS_LOAD if path.stem.endswith(("commands", "command")) else CACHE_LOADS
    allowed = allowed | {"torch"} if path.parent == ROOT / "cache" and path.name in CACHE_TORCH else allowed
    allowed = allowed | {"pyarrow"} if path.parent == ROOT / "cache" and path.name in CACHE_ARROW else allowed
    loaded = set(imports(run_at_import(ast.parse(path.read_text("utf-8"))))) - set(sys.stdlib_module_names) - {"cache"}
    assert loaded <= allowed, f"{name_of(path)} loads {loaded - allowed} when it is imported"


@pytest.mark.parametrize(
    "statement",
    ["import cache", "import extractor", "import ray_jobs", "import roivault; dict(roivault.build_app().commands)"],
)
def test_import_loads_nothing_heavy(statement):
    code = f"{statement}; import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


@pytest.mark.parametrize("path", [*SOURCES, ROOT / "roivault.py"], ids=name_of)
def test_file_is_one_concept(path):
    assert path.name not in ("utils.py", "util.py", "helpers.py", "common.py", "misc.py")
    assert len(path.read_text("utf-8").splitlines()) <= 400
