"""Verbs that look into stores: `info`, `ls`, `show` and `verify`; `convert` has a module of its own."""

from __future__ import annotations

import fnmatch
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .convert_command import convert
from .errors import DataError, UsageError
from .keys import read_keys
from .output import say, size, table, visible
from .progress import ByteProgress

if TYPE_CHECKING:
    from .manifest import Shard
    from .regions import Regions
    from .store import RegionStore

STORES = typer.Argument(..., metavar="STORE...", help="Stores, shards of one, quoted patterns, URLs; read as one.")
JSON = typer.Option(False, "--json", help="Print the result as JSON.")
IDS = typer.Option(None, "--ids", metavar="FILE", help="Keys that must have a record, one a line.")
DIGEST = typer.Option(False, "--digest", help="Also print one digest of all keys and records.")
QUIET = typer.Option(False, "--quiet", "-q", help="No progress, and nothing when all is well.")
_AHEAD = 64  # records that `ls` asks for at once
_ON_A_TERMINAL = 1000  # keys that `ls` shows there unless told otherwise


def register(app: typer.Typer) -> None:
    """Add the verbs; `verify` can also look at images, so that ray_jobs adds it."""
    for verb in (info, ls, show, convert):
        app.command()(verb)


def info(stores: list[str] = STORES, as_json: bool = JSON) -> None:
    """Say what stores hold and how it was made."""
    from .store import open_store

    opened = open_store(stores)
    described = [_describe(store) for store in opened.apart()]
    if as_json:
        print(json.dumps({"records": len(opened), "stores": described}, indent=2))
        return
    for store in described:
        _print_info(store)
    if len(described) > 1:
        say(f"{len(opened):,} records in all, keys that several stores have counted once")


def _describe(store: RegionStore) -> dict[str, Any]:
    manifest = store.manifest
    kinds = Counter(failure.kind for failure in store.failures())
    return {
        "path": str(store.paths[0]),
        "format": manifest.format,
        "records": len(store),
        "failures": dict(kinds.most_common()),
        "dim": manifest.dim,
        "feature_dtype": manifest.feature_dtype,
        "fingerprint": manifest.fingerprint,
        "vocabularies": {name: len(words) for name, words in manifest.vocabularies.items()},
        "bytes": sum(_shard_size(store, shard) for shard in manifest.shards),
        "shards": [
            {
                "name": shard.name,
                "state": shard.state,
                "records": shard.records,
                "failures": shard.failures,
                "bytes": _shard_size(store, shard),
                "provenance": list(shard.provenance),
            }
            for shard in manifest.shards
        ],
    }


def _print_info(store: dict[str, Any]) -> None:
    failures = ", ".join(f"{count:,} {kind}" for kind, count in store["failures"].items())
    say(store["path"])
    facts = {
        "records": f"{store['records']:,}",
        "failures": failures or "none",
        "features": f"{store['dim']} x {store['feature_dtype']}",
        "size": size(store["bytes"]),
        **{name: f"{count:,} names" for name, count in store["vocabularies"].items()},
        **{f"made with {name}": value for name, value in (store["fingerprint"] or {}).items()},
    }
    for name, values in _distinct(entry for shard in store["shards"] for entry in shard["provenance"]).items():
        facts[f"made on {name}"] = "; ".join(values[:3]) + ("; ..." if len(values) > 3 else "")
    width = max(map(len, facts))
    for name, value in facts.items():
        say(f"  {name:<{width}}", value)
    table(
        ("shard", "state", "records", "failures", "size"),
        [
            (s["name"], s["state"], _count(s["records"]), _count(s["failures"]), size(s["bytes"]))
            for s in store["shards"]
        ],
    )


def _distinct(entries: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """name -> the different values that the entries have for it, as text."""
    values: dict[str, dict[str, None]] = {}
    for entry in entries:
        for name, value in entry.items():
            text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            values.setdefault(name, {})[text] = None
    return {name: list(texts) for name, texts in values.items()}


def ls(
    stores: list[str] = STORES,
    pattern: str = typer.Option(None, "--pattern", "-p", metavar="GLOB", help="Only keys that match, such as 'a/*'."),
    limit: int = typer.Option(None, "--limit", "-n", min=1, help="At most so many."),
    failures: bool = typer.Option(False, "--failures", help="List the failures instead of the records."),
    as_json: bool = JSON,
) -> None:
    """List keys with the number of regions and the image size."""
    from .store import open_store

    store = open_store(stores)
    damage: list[str] = []
    rows = _failure_rows(store, pattern) if failures else _record_rows(store, pattern, damage)
    if limit is None and sys.stdout.isatty() and not as_json:
        limit = _ON_A_TERMINAL
    shown = islice(rows, limit)
    if as_json:
        print("[")
        for place, row in enumerate(shown):
            print(("" if place == 0 else ",\n") + json.dumps(row), end="")
        print("\n]")
        _report(damage)
        return
    columns = ("key", "kind", "message", "source") if failures else ("key", "regions", "width", "height")
    table(columns, (row.values() for row in shown))
    if sys.stdout.isatty() and next(rows, None) is not None:
        say(f"... there are more; --limit shows more than {limit:,}")
    _report(damage)


def _report(damage: Sequence[str]) -> None:
    """After a listing, what of it could not be read; what many records share, such as a missing shard, once."""
    for text in dict.fromkeys(damage):
        print(visible(text), file=sys.stderr)
    if damage:
        raise typer.Exit(DataError.exit_code)


def _record_rows(store: RegionStore, pattern: str | None, damage: list[str]) -> Iterator[dict[str, Any]]:
    """A row a record; one that cannot be read has no numbers, and `damage` is told why."""
    from .contents import StoreContents
    from .formats.base import Problem

    contents = StoreContents(store)
    keys = (key for key in store.keys() if pattern is None or fnmatch.fnmatchcase(key, pattern))
    while chunk := list(islice(keys, _AHEAD)):
        for key, found in zip(chunk, contents.find(chunk), strict=True):
            if isinstance(found, Problem):
                damage.append(found.why)
                yield {"key": key, "regions": None, "width": None, "height": None}
            elif found is not None:
                yield {"key": key, "regions": len(found), "width": found.width, "height": found.height}


def _failure_rows(store: RegionStore, pattern: str | None) -> Iterator[dict[str, Any]]:
    for failure in store.failures():
        if pattern is None or fnmatch.fnmatchcase(failure.key, pattern):
            yield asdict(failure)


def show(
    stores_and_key: list[str] = typer.Argument(..., metavar="STORE... KEY", help="Stores, and a key they have."),
    top: int = typer.Option(10, "--top", min=0, help="Regions to show, in the order of the record."),
    as_json: bool = JSON,
) -> None:
    """Show one record: every field, and the first regions with the names of what they show."""
    from .store import open_store

    *stores, key = stores_and_key
    if not stores:
        raise UsageError("show takes one or more stores, then a key")
    store = open_store(stores)
    regions = store[key]
    shard, offset, length = store.location(key)
    fields = {name: _summary(array) for name, array in regions.arrays().items()}
    rows = list(_region_rows(regions, store.manifest.vocabularies, top))
    result = {
        "key": key,
        "width": regions.width,
        "height": regions.height,
        "regions": len(regions),
        "source_digest": regions.source_digest and regions.source_digest.hex(),
        "shard": shard,
        "offset": offset,
        "bytes": length,
        "fields": fields,
        "top": rows,
    }
    if as_json:
        print(json.dumps(result, indent=2))
        return
    for name in ("key", "width", "height", "regions", "source_digest", "shard", "offset", "bytes"):
        say(f"{name:<14}", "-" if result[name] is None else result[name])
    columns = ("field", "dtype", "shape", "min", "mean", "max")
    table(columns, [(name, *facts.values()) for name, facts in fields.items()])
    if rows:
        table(tuple(rows[0]), [{**row, "box": " ".join(map(str, row["box"]))}.values() for row in rows])


def _summary(array: Any) -> dict[str, Any]:
    import numpy as np

    from .distribution import short

    values = array.astype(np.float64)
    low, mean, high = (short(f(values)) for f in (np.min, np.mean, np.max)) if values.size else (None,) * 3
    return {"dtype": str(array.dtype), "shape": list(array.shape), "min": low, "mean": mean, "max": high}


def _region_rows(regions: Regions, vocabularies: dict[str, list[str]], top: int) -> Iterator[dict[str, Any]]:
    for i in range(min(top, len(regions))):
        row: dict[str, Any] = {"region": i, "box": [round(float(x), 1) for x in regions.boxes[i]]}
        if regions.scores is not None:
            row["score"] = round(float(regions.scores[i]), 4)
        for what, ids, probs, words in (
            ("class", regions.class_ids, regions.class_probs, vocabularies.get("classes", [])),
            ("attribute", regions.attr_ids, regions.attr_probs, vocabularies.get("attributes", [])),
        ):
            if ids is not None:
                number = int(ids[i])
                row[what] = words[number] if 0 <= number < len(words) else number
            if probs is not None:
                row[f"{what}_prob"] = round(float(probs[i]), 4)
        yield row


def verify(
    stores: list[str] = STORES,
    ids: Path = IDS,
    digest: bool = DIGEST,
    as_json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Check that stores are whole; exit code 65 when something is damaged or an id is missing."""
    from .verify import digest as digest_of
    from .verify import verify as check

    with ByteProgress("checked", as_json or quiet) as progress:
        report = check(stores, ids and read_keys(ids), progress)
    total = digest_of(stores) if digest and not report.problems else None
    if as_json:
        result = {**asdict(report), "ok": report.ok, "digest": total}
        print(json.dumps(result, indent=2))
    else:
        for problem in report.problems:
            say(f"damaged: {problem}")
        for key in report.missing:
            say(f"missing: {key}")
        if not quiet or not report.ok:
            shards = f"{report.shards:,} shard{'' if report.shards == 1 else 's'}"
            checked = f"{report.records:,} records and {report.failures:,} failures in {shards}"
            say(f"{'ok' if report.ok else 'NOT ok'}: {checked}, {size(report.bytes)}")
            if ids:
                say(f"{len(report.missing):,} ids are missing, {report.extra:,} other keys are there")
        if total:
            say("digest", total)
    raise typer.Exit(0 if report.ok else 65)


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _shard_size(store: RegionStore, shard: Shard) -> int:
    """Bytes of its file; of a published store those that the manifest says."""
    if not isinstance(store.paths[0], Path):
        return shard.bytes
    path = store.paths[0] / shard.file
    return path.stat().st_size if path.exists() else 0
