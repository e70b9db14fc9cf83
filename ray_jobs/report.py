"""The report that an extraction leaves in its store: `report/index.html` for people, `report/runs.jsonl` for programs.

A store is complete without it. Whatever goes wrong with a report, it is said and changes nothing of how the job ends.
"""

from __future__ import annotations

import datetime
import logging
import os
import shlex
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING

from cache import RegionStore, open_store
from cache.files import replace_file
from cache.keys import printable
from cache.output import visible
from cache.remote import shown

from .report_runs import Run, append_run, read_runs
from .signals import INTERRUPTED
from .tally import Tally

if TYPE_CHECKING:
    from .options import ExtractOptions

FOLDER, PAGE, RUNS = "report", "index.html", "runs.jsonl"
_BUG = 1  # exit code

log = logging.getLogger("roivault")


class Report:
    """Writes the report of one run; as a context manager also that of a run that ends with an error.

    A run that found nothing to do leaves none: the report stays that of the run that did the work.

    Args:
        store: the folder that the store is written in; no report is made where there is none.
        options: what the user chose.
        tally: what the job has done.
    """

    def __init__(self, store: str | os.PathLike, options: ExtractOptions, tally: Tally):
        self._store, self._options, self._tally = Path(store), options, tally
        self._started = datetime.datetime.now(datetime.timezone.utc)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.write("Interrupted; run the same command again to continue.", INTERRUPTED)
        elif isinstance(error, Exception):
            known = hasattr(error, "exit_code")
            said = str(error) if known else f"{type(error).__name__}: {error}"
            self.write(f"Stopped: {said}", error.exit_code if known else _BUG)

    def write(self, verdict: str, exit_code: int) -> str | None:
        """Write it; where the page is, None if there is none."""
        page = self._store / FOLDER / PAGE
        try:
            if self._tally.images["write"] and self._store.is_dir():
                self._write(page, verdict, exit_code)
            return printable(str(page)) if page.is_file() else None
        except KeyboardInterrupt:
            problem = "interrupted"
        except Exception as error:
            problem = str(error) if hasattr(error, "exit_code") else f"{type(error).__name__}: {error}"
        log.warning("no report of this run in %s: %s", self._store, problem)
        if not self._options.quiet:
            print(visible(f"No report of this run: {problem}"), file=sys.stderr)
        return None

    def _write(self, path: Path, verdict: str, exit_code: int) -> None:
        from .report_page import report_page
        from .report_pictures import PictureMaker

        path.parent.mkdir(exist_ok=True)
        started = self._started.isoformat(timespec="seconds")
        about = {"started": started, "command": command_line(self._options), "verdict": verdict, "exit_code": exit_code}
        append_run(path.with_name(RUNS), Run.of(self._tally, **about))
        store = open_store(self._options.output)
        maker, samples = PictureMaker(store, self._tally.samples), self._tally.samples
        failures = {
            kind: [(failure, maker.thumbnail(item, kind)) for failure, item in some]
            for kind, some in sorted(samples.failures.items(), key=lambda each: -self._tally.failures[each[0]])
        }
        page = report_page(
            f"{Path(printable(shown(self._options.output))).name}: extraction",
            read_runs(path.with_name(RUNS)),
            _facts(store),
            maker.samples(),
            failures,
        )
        replace_file(path, page.encode("utf-8", "backslashreplace"))


def command_line(options: ExtractOptions) -> str:
    """The command of these options; those that have their default value are left out."""
    words = ["roivault", "extract", printable(options.source)]
    for each in fields(options):
        value, default = getattr(options, each.name), None if each.default is MISSING else each.default
        if each.name == "source" or value == default:
            continue
        words.append(f"--{each.name.replace('_', '-')}")
        if value is not True:
            words.append(printable(shown(str(value))))
    return shlex.join(words)


def _facts(store: RegionStore) -> dict[str, object]:
    """What a job was: every choice that decides the bytes of a record, and where the latest records were made."""
    manifest = store.manifest
    facts = {name: value for name, value in (manifest.fingerprint or {}).items() if value not in (None, "")}
    facts |= {"features": f"{manifest.dim} × {manifest.feature_dtype}", "shards": len(manifest.shards)}
    made = next((shard.provenance[-1] for shard in reversed(manifest.shards) if shard.provenance), {})
    for name, value in made.items():
        facts |= value if isinstance(value, dict) else {name: value}
    return {str(name).replace("_", " "): value for name, value in facts.items()}
