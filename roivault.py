"""roivault's front door: one command line over all its packages, and the names that programs import.

    from roivault import load_extractor, open_store

Names are loaded when they are first used, so importing this module is cheap and needs only the base installation.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import json
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

PACKAGES = ("cache", "extractor", "ray_jobs", "consumers")

# verb -> (the module whose register(app) adds it, loaded when the verb is used; what `roivault --help` says of it)
VERBS = {
    "extract": ("ray_jobs.commands", "Regions of images, into a store; the same line again continues."),
    "demo": ("ray_jobs.commands", "Pictures in, a store and a page to look at out."),
    "info": ("cache.commands", "What stores hold and how it was made."),
    "ls": ("cache.commands", "The keys of stores, or what failed and why."),
    "show": ("cache.commands", "One record."),
    "view": ("extractor.commands", "Regions drawn on their images, and a page of them."),
    "verify": ("ray_jobs.verify_command", "Check that stores are whole, or that their images are still the same."),
    "stats": ("cache.explain_commands", "What the records are like, and what looks wrong with them."),
    "compare": ("cache.explain_commands", "How two caches differ, and the likely cause."),
    "identify": ("ray_jobs.identify_command", "Which model made a store."),
    "repair": ("cache.tool_commands", "Mend a damaged store, and say what of it is lost."),
    "merge": ("cache.tool_commands", "One store of several."),
    "subset": ("cache.tool_commands", "A new store of some keys of another."),
    "convert": ("cache.commands", "A cache of another layout into a store, or a store into one."),
    "publish": ("cache.tool_commands", "A store to where others open it by URL."),
    "serve": ("cache.serve_command", "Stores to trainers on other machines."),
    "models": ("extractor.commands", "The detectors there are."),
    "weights": ("extractor.commands", "Fetch, import and list their checkpoints."),
    "sources": ("ray_jobs.sources_command", "Where images can come from, and what of a dataset is on disk."),
    "tasks": ("consumers.task_commands", "What tasks there are, and what their annotations are like."),
    "finetune": ("ray_jobs.finetune", "An encoder on a task, from a store; the same line again continues."),
    "evaluate": ("ray_jobs.evaluate", "An encoder on a task's test sets, or a predictions file."),
    "report": ("consumers.report_command", "Scores beside the published ones: tables, curves, intervals, plots."),
    "doctor": ("ray_jobs.doctor", "What this machine has and lacks."),
}

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)

_NAMES = {
    "cache": (
        "CorruptRecord DataError DiskError FAILURE_KINDS Failure InputNotFound InvalidRegions MissingKeys Regions "
        "RegionStore RoivaultError StoreDamaged StoreLocked StoreMismatch StoreNotFound StoreUnreachable StoreWriter "
        "UsageError WeightsError WriteResult open_store"
    ),
    "cache.dataset": "RegionBatch RegionDataset RegionLoader collate_regions",
    "extractor": "DecodePolicy ImageError list_extractors load_extractor",
    "consumers": (
        "InputError Selection from_volta list_encoders list_tasks load_encoder load_task load_tokenizer save_encoder "
        "score_pairs"
    ),
}
_HOME = {name: package for package, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", "main", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'roivault' has no attribute {name!r}")
    _refuse_shadowed()
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class ShadowedPackages(ImportError):
    """Another package bears the name of one of roivault's own and comes first on Python's path."""


def shadowed() -> dict[str, str]:
    """Packages of roivault that Python finds somewhere else than beside this file: {name: where it finds them}."""
    home = Path(__file__).resolve().parent
    found = {}
    for name in PACKAGES:
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None) if module else importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or [spec.origin]) if spec else [getattr(module, "__file__", None)]
        if home / name not in [Path(place).resolve() for place in places if place]:
            found[name] = str(places[0] or "nowhere")
    return found


def _refuse_shadowed() -> None:
    others = shadowed()
    if others:
        listing = ", ".join(f"{name} ({place})" for name, place in others.items())
        raise ShadowedPackages(
            f"Python finds other packages under the names of roivault's own: {listing}. roivault's are in "
            f"{Path(__file__).resolve().parent}. Run from another folder, rename the other package, or uninstall it."
        )


class _Verbs(Mapping):
    """The commands of `VERBS`; a command's module is imported when the command is looked up."""

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)

    def __getitem__(self, verb: str) -> Any:
        import typer

        app = typer.Typer(rich_markup_mode=None)
        importlib.import_module(VERBS[verb][0]).register(app)
        command = typer.main.get_group(app).commands[verb]
        _add_common_options(command)
        return command


def _add_common_options(command: Any) -> None:
    """`--quiet` and `--log-file` for every verb that does not define them itself."""
    inner = getattr(command, "commands", None)
    for one in (inner or {}).values():
        _add_common_options(one)
    if inner is not None:
        return
    taken = {name for parameter in command.params for name in parameter.opts}
    common = [option for option in _common_options() if not taken & set(option.opts)]
    command.params += common
    invoke = command.invoke

    def invoke_with(context: Any) -> Any:
        chosen = {option.name: context.params.pop(option.name) for option in common}
        quiet = chosen.get("quiet") and not context.params.get("as_json")
        with _logging_to(chosen.get("log_file")), _silence() if quiet else nullcontext():
            return invoke(context)

    command.invoke = invoke_with


def _common_options() -> list[Any]:
    import typer

    app = typer.Typer(add_completion=False)

    @app.command()
    def common(
        quiet: bool = typer.Option(False, "--quiet", help="Print errors and JSON only."),
        log_file: str = typer.Option(None, "--log-file", metavar="F", help="Append what goes on to a file."),
    ) -> None: ...

    return [option for option in typer.main.get_command(app).params if option.name in ("quiet", "log_file")]


@contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as null, redirect_stdout(null):
        yield


@contextmanager
def _logging_to(path: str | None) -> Iterator[None]:
    """Append the log to a file, if one is named. Raises: DiskError."""
    if path is None:
        yield
        return
    import logging

    from cache import DiskError

    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise DiskError(f"--log-file {path} cannot be written: {error.strerror}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("roivault")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


def build_app() -> Any:
    """The command line, as a click group of all verbs. Help is plain: rich would double the start-up time."""
    import typer
    from typer.core import TyperGroup

    class Front(TyperGroup):
        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])

    app = typer.Typer(cls=Front, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

    def show_version(wanted: bool) -> None:
        if wanted:
            print(f"roivault {__version__}")
            raise typer.Exit()

    @app.callback()
    def roivault(
        version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
    ) -> None:
        """Region features of images: extracted once, kept in a cache that trainers read at memory speed."""

    group = typer.main.get_group(app)
    group.commands = _Verbs()
    return group


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code; see the table in the README."""
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        _refuse_shadowed()
        code = _invoke(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough; 141 is what the shell calls that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        code, text = 130, "interrupted"
    except Exception as error:
        code, text = (130, "interrupted") if _interrupted(error) else _explain(error, args)
    # a path may hold characters that would draw on the terminal
    text = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    print(text if text.startswith("Usage:") else f"Error: {text}", file=sys.stderr)
    if "--json" in args:
        print(json.dumps({"error": text, "exit_code": code}))
    return code


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: numpy, for one, reports it as a failed import."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _explain(error: Exception, args: list[str]) -> tuple[int, str]:
    """Exit code and text of an error: deliberate ones carry both, a missing extra is named, the rest is a bug."""
    if hasattr(error, "format_message"):  # click's usage errors
        context = getattr(error, "ctx", None)
        text = error.format_message()
        if context and not text.startswith("Usage:"):
            text = f"{text.removesuffix('.')}{'' if text.endswith('?') else '.'} See `{context.command_path} --help`"
        return error.exit_code, text
    if hasattr(error, "exit_code"):
        return error.exit_code, str(error)
    if isinstance(error, ShadowedPackages):
        return 2, str(error)
    if isinstance(error, ModuleNotFoundError):
        from ray_jobs.doctor import install_hint

        if hint := install_hint(error.name or ""):
            return 2, f"this needs {error.name}, which is not installed: {hint}"
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return 74, f"{error.strerror}: {error.filename or 'no file is named'}"
    return 1, f"{type(error).__name__}: {error}. This is a bug in roivault; the traceback is in {_log(error, args)}"


def _shown(arg: str) -> str:
    """An argument without the secrets of a URL."""
    from cache.remote import shown

    name, mark, value = arg.partition("=") if arg.startswith("-") else ("", "", arg)
    return f"{name}{mark}{shown(value)}"


def _log(error: Exception, args: list[str]) -> str:
    """Write the traceback to --log-file when the command line names one, else to a new file; return its path."""
    text = f"roivault {__version__}, Python {sys.version}\n{shlex.join(['roivault', *map(_shown, args)])}\n"
    text += "".join(traceback.format_exception(error))
    words = [word for arg in args for word in arg.split("=", 1)]
    path = dict(zip(words, words[1:], strict=False)).get("--log-file")
    try:
        with (
            open(path, "a", encoding="utf-8")
            if path
            else tempfile.NamedTemporaryFile("w", prefix="roivault-", suffix=".log", delete=False, encoding="utf-8")
        ) as file:
            file.write(text)
            return file.name
    except OSError:
        sys.stderr.write(text)
        return "the lines above"


def _invoke(args: list[str]) -> int:
    command = build_app()
    import typer

    try:
        with command.make_context("roivault", args) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
