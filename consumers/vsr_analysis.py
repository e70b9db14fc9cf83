"""What VSR's annotations tell by themselves (Liu et al., TACL 2023, section 4): how far annotators agree, which
relations they disagree about, and whether a person in the caption makes them take the intrinsic frame of reference."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .agreement import disagreement, fleiss_kappa
from .metrics import percent
from .tasks.base import example
from .tasks.files import find_file, read_json_lines
from .tasks.vsr import FRAMES, concepts, frame_of, votes
from .tasks.vsr_relations import CATEGORIES, UNMAPPED, category_of

if TYPE_CHECKING:
    from .tasks.vsr import Vsr

Records = Sequence[dict[str, Any]]
Rows = list[dict[str, Any]]

AGREED = 2 / 3  # share of the validators behind the label, from which on a caption was kept
FREQUENT = 20  # captions of which a relation needs more, to be drawn
PRINTED = {  # in the paper; its kappa of 0.895 is of people whose answers no file has
    "captions": "raw, as printed", "rows": 12809, "votes": 39507, "all agree %": 69.1, "two thirds agree": 10972,
    "two thirds agree %": 85.6, "with three": "", "kappa of three": "",
}  # fmt: skip
PRINTED_P = {"left out": 0.0054, "as intrinsic": 0.0045}
FILES = {"raw": "all_vsr_raw_data.jsonl", "validated": "all_vsr_validated_data.jsonl"}


def dataset_tables(task: Vsr) -> dict[str, Rows]:
    """{title: rows} of what the files with all captions tell, where they are beside the splits. Raises: DataError."""
    found: dict[str, Rows] = {}
    sets = {name: read_captions(task, name) for name in FILES}
    if there := {name: records for name, records in sets.items() if records}:
        rows = [{"captions": name, **agreement(records)} for name, records in there.items()]
        found["votes of the validators"] = [*rows, PRINTED]
    if raw := sets["raw"]:
        found["disagreement by relation, all captions"] = disagreements(raw)
    if (validated := sets["validated"]) and any(frame_of(record) for record in validated):
        counts = frame_counts(validated)
        found["frames of reference, of true captions with left or right"] = _frame_rows(counts)
        found["intrinsic frame with a person and without, Fisher's exact test"] = [
            {"captions that are true in both frames": name, "odds ratio": odds, "p": p, "p as printed": PRINTED_P[name]}
            for name, (odds, p) in frame_tests(counts).items()
        ]
    if records := sets["validated"]:
        found["relations"] = relation_rows(records)
    return found


def read_captions(task: Vsr, name: str) -> Records:
    """The captions of a file of FILES; none where it is not there. Raises: DataError."""
    path = task.folder("data", "data_files") / FILES[name]
    return list(read_json_lines(path)) if find_file(path) else []


def _votes(records: Records) -> list[tuple[int, int]]:
    return [example(Path("votes"), row, record, votes) for row, record in enumerate(records, 1)]


def behind_label(record: dict[str, Any]) -> float:
    """Share of the validators that agree with the label; 0 without any."""
    false, true = votes(record)
    return (true if record["label"] else false) / (false + true) if false + true else 0.0


def is_validated(record: dict[str, Any], agreed: float = AGREED) -> bool:
    """Whether so many validators agree with the label, as the published captions were chosen."""
    return behind_label(record) >= agreed - 1e-9


def agreement(records: Records) -> dict[str, Any]:
    """Votes, shares of captions that all and two thirds of the validators agree about, and Fleiss' kappa of those with
    three validators."""
    counts = _votes(records)
    threes = [one for one in counts if sum(one) == 3]
    kept = sum(map(is_validated, records))
    return {
        "rows": len(records),
        "votes": sum(map(sum, counts)),
        "all agree %": percent(sum(behind_label(record) == 1 for record in records), len(records)),
        "two thirds agree": kept,
        "two thirds agree %": percent(kept, len(records)),
        "with three": len(threes),
        "kappa of three": fleiss_kappa(threes) if len({*threes}) > 1 else None,
    }


def disagreements(records: Records) -> Rows:
    """For each relation the chance that two of a caption's validators disagree, averaged over captions; most first."""
    by_relation: dict[str, list[float]] = defaultdict(list)
    for record, counts in zip(records, _votes(records), strict=True):
        if sum(counts) > 1:
            by_relation[record["relation"]].append(disagreement(counts))
    rows = [
        {"relation": name, "category": category_of(name), "captions": len(each), "disagreement": sum(each) / len(each)}
        for name, each in by_relation.items()
    ]
    return sorted(rows, key=lambda row: (-row["disagreement"], row["relation"]))


def frame_counts(records: Records) -> dict[str, Counter]:
    """Frame -> captions that mention a person ("with") and that do not ("without")."""
    counts = {frame: Counter() for frame in FRAMES}
    for record in records:
        if frame := frame_of(record):
            counts[frame]["with" if "person" in concepts(record) else "without"] += 1
    return counts


def frame_tests(counts: dict[str, Counter]) -> dict[str, tuple[float, float]]:
    """Odds ratio and two-sided p of Fisher's exact test that a person goes with the intrinsic frame, with captions that
    are true in both frames left out and counted as intrinsic."""
    from scipy.stats import fisher_exact

    intrinsic, relative, both = (counts[frame] for frame in FRAMES)
    found = {}
    for name, few in (("left out", intrinsic), ("as intrinsic", intrinsic + both)):
        test = fisher_exact([[few["with"], relative["with"]], [few["without"], relative["without"]]])
        found[name] = float(test.statistic), float(test.pvalue)
    return found


def _frame_rows(counts: dict[str, Counter]) -> Rows:
    rows = []
    for who in ("with", "without", "all"):
        each = {frame: sum(n.values()) if who == "all" else n[who] for frame, n in counts.items()}
        total = sum(each.values())
        shares = {f"{frame} %": percent(count, total) for frame, count in each.items()}
        rows.append({"a person": who, "captions": total, **each, **shares})
    return rows


def relation_rows(records: Records) -> Rows:
    """How many captions each category has, and of how many of its relations."""
    by_category: dict[str, Counter] = {name: Counter() for name in (*CATEGORIES, UNMAPPED)}
    for record in records:
        by_category[category_of(record["relation"])][record["relation"]] += 1
    rows = []
    for name, each in by_category.items():
        known = CATEGORIES.get(name, ())
        unused = [one for one in known if one not in each and category_of(one) == name]
        rows.append(
            {"category": name, "captions": sum(each.values()), "relations": len(each), "listed": len(known),
             "not used": ", ".join(unused), "most frequent": ", ".join(one for one, _ in each.most_common(3))}
        )  # fmt: skip
    total = len({record["relation"] for record in records})
    return [*rows, {"category": "all", "captions": len(records), "relations": total, "listed": len(
        {one for known in CATEGORIES.values() for one in known}), "not used": "", "most frequent": ""}]  # fmt: skip
