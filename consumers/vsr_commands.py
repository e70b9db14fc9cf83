"""`tasks vsr-validate` and `tasks vsr-split`: VSR's sets made anew."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from cache import UsageError
from cache.output import say

_JSON = typer.Option(False, "--json", help="Print the result as JSON.")


def register(tasks: typer.Typer) -> None:
    """Add the verbs to those of `tasks`."""
    tasks.command("vsr-validate")(validate)
    tasks.command("vsr-split")(split)


def validate(
    raw: Path = typer.Argument(..., metavar="FILE", help="Captions with their validators: all_vsr_raw_data.jsonl."),
    out: Path = typer.Option(..., "--out", "-o", metavar="FILE", help="Where those that are kept go, one a line."),
    agreed: float = typer.Option(2 / 3, "--agreed", min=0, max=1, help="Share of the validators behind the label."),
    as_json: bool = _JSON,
) -> None:
    """Keep the captions of VSR whose validators agree with the label."""
    from .vsr_splits import validated, write_records

    kept = validated(raw, agreed)
    write_records(out, kept)
    if as_json:
        print(json.dumps({"file": str(out), "rows": len(kept)}))
    else:
        say(f"wrote {out}: {len(kept):,} captions")


def split(
    captions: Path = typer.Argument(..., metavar="FILE", help="Captions: all_vsr_validated_data.jsonl."),
    out: Path = typer.Option(..., "--out", "-o", metavar="DIR", help="Folder for train, dev and test."),
    seed: int = typer.Option(0, "--seed", min=0, help="Of which concepts go where."),
    train: float = typer.Option(0.5, "--train", min=0, max=1, help="Share of the concepts."),
    dev: float = typer.Option(0.2, "--dev", min=0, max=1, help="Share of the concepts; the rest is for testing."),
    as_json: bool = _JSON,
) -> None:
    """Split captions of VSR so that no concept is in two of train, dev and test.

    `--task vsr-zeroshot --annotations DIR` then trains and tests on them.
    """
    from .tasks.files import read_json_lines
    from .vsr_splits import concept_split, write_records

    if train + dev >= 1:
        raise UsageError(f"--train {train} and --dev {dev} leave no concepts for testing")
    sets = concept_split(list(read_json_lines(captions)), seed, {"train": train, "dev": dev})
    for name, records in sets.items():
        write_records(out / f"{name}.jsonl", records)
    facts = {
        name: {"rows": len(records), "concepts": len({one[part] for one in records for part in ("subj", "obj")})}
        for name, records in sets.items()
    }
    if as_json:
        print(json.dumps(facts))
        return
    for name, fact in facts.items():
        say(f"wrote {out / name}.jsonl: {fact['rows']:,} captions about {fact['concepts']} concepts")
