"""Why two caches differ: the likely causes, each with what was measured and what the caches record.

A cause is named only when enough images show it; what is left is said to be unknown, with the measurements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .compare import Comparison, recorded
from .evidence import closeness, distribution, short, told
from .families import apart

SHOWN = 0.05  # share of the images that have to show a cause
LARGE = 0.3  # the same of causes that could be the consequence of another in fewer
UNRELATED, RELATED = 0.2, 0.5  # alignment up to which features are of other weights, and from which of the same
LEAST_REGIONS, LEAST_IMAGES = 10, 6  # that the statements about features and ids need
LEAST_COLOURS = 8
CROSSED, KEPT = 0.6, 0.2  # share of colours crossed between red and blue from which, and up to which, it is settled
NEARLY_ALL, EXPOSED = 0.85, 0.05  # share of regions: in both; the same although the boxes that were pooled are others

_RECORDED = {  # cause -> names of recorded choices that would bring it about
    "channel_order": ("preprocess.channels",),
    "resize_rule": ("preprocess.short_side", "preprocess.long_side", "preprocess.resize"),
    "other_weights": ("weights_sha256", "architecture", "preset"),
    "arithmetic": ("precision", "preprocess.resize"),
    "pooled_boxes": ("given_boxes",),
    "regression": ("selection", "given_boxes"),
    "selection": ("selection",),
    "orientation": ("orientation",),
    "dtype": ("feature_dtype",),
}


@dataclass
class Cause:
    """One likely cause.

    Attributes:
        name: for programs.
        text: for people.
        images: how many show it.
        evidence: what was measured, and what the caches record.
    """

    name: str
    text: str
    images: int
    evidence: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"cause": self.name, "text": self.text, "images": self.images, "evidence": self.evidence}


def causes(report: Comparison) -> list[Cause]:
    """The likely causes, those of keys and images first; one named "equal" if nothing differs."""
    if not report.compared:
        nobody = "no image is in both, under no key rule that is known"
        return [Cause("unknown", "no image can be read on both sides" if report.unreadable else nobody, 0)]
    found: list[Cause] = []
    for look in (_keys, _images, _dtypes, _columns, _families, _features, _boxes, _selection, _ids):
        found += look(report)
    for cause in found:
        cause.evidence += _recorded_evidence(cause.name, report)
    if left := _unexplained(report, {cause.name for cause in found}):
        found.append(Cause("unknown", f"what differs in {', '.join(left)} has no cause that is known here",
                           report.compared, _measurements(report)))  # fmt: skip
    if not found and (rare := set(report.differences_found()) - {"missing_in_a", "missing_in_b", "unreadable"}):
        text = f"what differs in {', '.join(sorted(rare))} does so in too few images to tell a cause"
        found.append(Cause("unknown", text, report.compared - report.equal, _measurements(report)))
    if not found:
        found.append(Cause("equal", "all that both have is equal", report.equal))
    return found


def _enough(report: Comparison, images: int, share: float = SHOWN) -> bool:
    return images > 0 and images >= share * report.compared


def _verdicts(report: Comparison, about: str, *names: str) -> Iterator[tuple[str, str, str, int]]:
    """(verdict, side, note, images), most frequent first."""
    for (aspect, verdict, side, note), images in report.found.most_common():
        if aspect == about and verdict in names:
            yield verdict, side.upper(), note, images


def _keys(report: Comparison) -> Iterator[Cause]:
    if report.keys.changes:
        rules = f"A: {report.keys.rule_a}; B: {report.keys.rule_b}"
        yield Cause("key_forms", f"the same images are under other keys ({rules})", report.compared,
                    [f"{report.compared:,} images were found so"])  # fmt: skip


def _images(report: Comparison) -> Iterator[Cause]:
    others = report.count("image", "other_size")
    if _enough(report, others):  # some of what looks like copies is so by chance then
        others += report.count("image", "resized", "turned")
    for images, name, text in (
        (others, "other_images", "the images were others: their sizes do not fit together"),
        (report.count("image", "other_file"), "other_images", "the image files were others: their digests differ"),
        (report.count("image", "turned"), "orientation",
         "one side turned photos upright by their EXIF orientation, the other did not"),
        (report.count("image", "resized"), "resized_images", "the images of one side are resized copies"),
    ):  # fmt: skip
        if images and (name == "other_images" or not _enough(report, others)):
            yield Cause(name, text, images, [f"{images:,} of {report.compared:,} images"])


def _dtypes(report: Comparison) -> Iterator[Cause]:
    rounded = report.count("features", "rounded")
    kinds = {(a, b): n for (a, b), n in report.dtypes.items() if a != b}
    if not _enough(report, rounded) and not kinds:
        return
    exact = rounded + report.count("features", "equal", "none")
    evidence = [f"A has {a}, B has {b} in {n:,} images" for (a, b), n in kinds.items()]
    if rounded:
        notes = sorted({note for _, _, note, _ in _verdicts(report, "features", "rounded")})
        evidence.append(f"rounded to {' or '.join(notes)}, features are equal in {rounded:,} images")
    only = "nothing but rounding" if exact == report.compared else "rounding"
    text = f"another number format: features differ by {only}" if rounded else "another number format"
    yield Cause("dtype", text, max(rounded, sum(kinds.values())), evidence)


def _columns(report: Comparison) -> Iterator[Cause]:
    for _, side, _, images in _verdicts(report, "columns", "fewer"):
        (a, b), _ = next(pair for pair in report.dims.most_common() if pair[0][0] != pair[0][1])
        other = "B" if side == "A" else "A"
        if _enough(report, images - report.count("features", "different"), LARGE):
            yield Cause("appended_columns", f"{other} appends {abs(a - b)} numbers to the features of {side}", images,
                        [f"{a} and {b} columns; the first {min(a, b)} are the same"])  # fmt: skip
        elif _enough(report, images, LARGE):
            yield Cause("feature_dim", f"features have {a} numbers in A and {b} in B: another network or layer", images,
                        [f"the first {min(a, b)} columns, which were compared, are not the same"])  # fmt: skip


def _families(report: Comparison) -> Iterator[Cause]:
    said, images = apart(*report.traits), report.count("features", "different") + report.without_match
    if said and _enough(report, images, LARGE):
        yield Cause("other_family", said[0], images, said[1:])


def _features(report: Comparison) -> Iterator[Cause]:
    for verdict, side, note, images in _verdicts(report, "features", "normalised", "factor", "clamped", "close"):
        if not _enough(report, images, LARGE if verdict == "close" else SHOWN):
            continue
        text = {
            "normalised": f"the features of {side} are divided by their L2 norm",
            "factor": f"features differ by a factor ({note})",
            "clamped": f"the features of {side} are cut at zero (taken after the ReLU)",
            "close": "the same weights and input with other arithmetic: device, precision, library or interpolation",
        }[verdict]
        name = "arithmetic" if verdict == "close" else verdict
        evidence = [closeness("cosine of matched regions", report.cosine_gaps)]
        if verdict == "close":
            evidence.append(distribution("relative difference", report.differences))
        yield Cause(name, text, images, evidence)
    images, unmatched = report.count("features", "different"), report.without_match
    if _enough(report, images + unmatched, LARGE):
        yield from _different_features(report, images + unmatched)


def _alignments(report: Comparison) -> dict[str, float]:
    """What there is enough of to tell whether the weights are the same."""
    values = {}
    if report.distinct[2] >= LEAST_REGIONS:
        values[f"alignment of {report.distinct[2]:,.0f} regions"] = report.alignment
    if report.image_distinct[2] >= LEAST_IMAGES:
        values[f"alignment of {report.image_distinct[2]:,.0f} images"] = report.image_alignment
    return values


def _different_features(report: Comparison, images: int) -> Iterator[Cause]:
    """The same weights on other pixels or boxes, or other weights."""
    alignments = _alignments(report)
    evidence = [closeness("cosine of matched regions", report.cosine_gaps), *told(alignments)]
    if alignments and max(alignments.values()) <= UNRELATED:
        share = report.regions[2] / max(min(report.regions[:2]), 1)
        evidence.append(f"{share:.0%} of the regions overlap one of the other side (IoU of 0.5 or more)")
        yield Cause("other_weights", "other weights: matched regions are no more alike than any two", images, evidence)
        return
    if (
        not alignments
        or min(alignments.values()) < RELATED
        or report.count("image", "other_file", "other_size", "resized", "turned") > LARGE * images
    ):
        return  # left unknown, or explained by the images
    evidence.append(closeness("IoU of matched regions", report.iou_gaps))
    colours, crossed = _colours(report)
    if colours:
        evidence.append(colours)
    choices = set(recorded(report.choices))
    equal_boxes = sum(n for _, _, note, n in _verdicts(report, "features", "different") if note)
    alike = report.distinct[3] / max(report.distinct[2], 1)
    if crossed is not None and crossed >= CROSSED:
        yield Cause("channel_order", "red and blue are swapped in the input of one side", images, evidence)
    elif equal_boxes > images / 2 and ("given_boxes" in choices or alike >= EXPOSED):
        evidence.append(f"the boxes are equal, and {alike:.0%} of their features are the same all the same")
        yield Cause("pooled_boxes", "one side pooled features from the stored boxes, the other from the proposals that "
                    "these were regressed from", images, evidence)  # fmt: skip
    elif crossed is not None and crossed <= KEPT:
        evidence.append("colours agree, so that the order of channels is the same")
        also = ", or features pooled from other boxes than those stored" if equal_boxes > images / 2 else ""
        yield Cause("resize_rule", f"the same weights saw images resized by another rule (or interpolation){also}",
                    images, evidence)  # fmt: skip
    else:
        by_record = [name for name in ("channel_order", "resize_rule") if choices & set(_RECORDED[name])]
        if len(by_record) == 1:
            text = {"channel_order": "another order of channels", "resize_rule": "another resize rule"}[by_record[0]]
            yield Cause(by_record[0], f"the same weights saw other pixels: {text}, as recorded", images, evidence)
        else:
            yield Cause("other_input", "the same weights saw other pixels: another resize rule or channel order; no "
                        "names of colours tell which, but `roivault identify` can try", images, evidence)  # fmt: skip


def _colours(report: Comparison) -> tuple[str, float | None]:
    crossed, kept = report.warm_cold["crossed"], report.warm_cold["kept"]
    same_numbering = report.attributes.shifts.most_common(1)[:1] == [(0, report.attributes.shifts[0])]
    if crossed + kept < LEAST_COLOURS or not same_numbering:
        return "", None
    text = f"of {crossed + kept:,} regions called red or blue, {crossed:,} are called the other on the other side"
    return text, crossed / (crossed + kept)


_BOXES = {
    "clipped": ("box_clip", "the boxes of {side} reach beyond the image (into its padding), the other's are cut to it"),
    "unit": ("box_frame", "the boxes of {side} are {note}, the other's are in pixels"),
    "scaled": ("box_scale", "the boxes of {side} are in other pixels: {note}"),
    "xywh": ("xywh", "the boxes of {side} are {note}, the other's are corners"),
    "yxyx": ("yxyx", "one side has y before x in its boxes"),
    "offset": ("box_offset", "the boxes differ by a constant: {note}"),
    "rounded": ("box_rounding", "the boxes differ {note}"),
    "moved": ("regression", "one side stores proposals, the other the boxes regressed from them"),
}


def _boxes(report: Comparison) -> Iterator[Cause]:
    # where features differ, regions were matched by trying frames, one of which fits a few images by chance
    tried = _enough(report, report.count("features", "different") + report.without_match, LARGE)
    for verdict, side, note, images in _verdicts(report, "boxes", *_BOXES):
        if _enough(report, images, LARGE if verdict == "moved" or tried else SHOWN):
            name, text = _BOXES[verdict]
            text = text.format(side=side or "one side", note=note)
            if verdict == "scaled":
                text = text.replace(": by one factor", ", larger or smaller by one factor")
            evidence = [f"{images:,} of {report.compared:,} images"]
            if verdict == "moved":
                evidence += ["features are the same", closeness("IoU of their boxes", report.iou_gaps)]
            yield Cause(name, text, images, evidence)


def _selection(report: Comparison) -> Iterator[Cause]:
    a, b, matched, _ = report.regions
    nearly_all = matched >= NEARLY_ALL * max(a, b)  # the rest may be what arithmetic tipped over a threshold
    if nearly_all and _enough(report, report.count("features", "close"), LARGE):
        return
    for verdict, side, _, images in _verdicts(report, "selection", "first", "part", "mean_row", "overlap", "reordered"):
        if not _enough(report, images, LARGE if verdict == "overlap" else SHOWN):
            continue
        name, text = {
            "first": ("selection", f"{side} keeps only the first regions of the other side (top-k or a threshold)"),
            "part": ("selection", f"{side} keeps some of the regions of the other side (a threshold or another NMS)"),
            "mean_row": ("global_row", f"the side that is not {side} adds the mean region, with the image as its box"),
            "overlap": ("selection", "the two kept different regions of the same proposals (another NMS or threshold)"),
            "reordered": ("row_order", "the same regions in another order"),
        }[verdict]
        yield Cause(name, text, images, [f"A has {a:,} regions, B {b:,}, {matched:,} are in both",
                                         f"{images:,} of {report.compared:,} images"])  # fmt: skip


def _ids(report: Comparison) -> Iterator[Cause]:
    for what, labels in (("class", report.classes), ("attribute", report.attributes)):
        if labels.regions < LEAST_REGIONS:
            continue
        step, count = labels.shifts.most_common(1)[0]
        if step and count >= labels.regions / 2 and count >= 3 * labels.shifts[0]:
            more, fewer = ("B", "A") if step > 0 else ("A", "B")
            background = f": {more} counts background as 0, {fewer} does not" if abs(step) == 1 else ""
            yield Cause(f"{what}_offset", f"{what} ids of B are those of A {step:+d}{background}", report.compared,
                        [f"in {count:,} of {labels.regions:,} matched regions"])  # fmt: skip
        elif labels.named and labels.same_name > 1.1 * labels.same_id and labels.same_name > 0.5 * labels.named:
            yield Cause(f"{what}_vocabulary", f"the {what} names are numbered differently", report.compared,
                        [f"names agree in {labels.same_name:,} of {labels.named:,} regions, ids in "
                         f"{labels.same_id:,}"])  # fmt: skip


def _recorded_evidence(name: str, report: Comparison) -> list[str]:
    differing = recorded(report.choices)
    wanted = _RECORDED.get(name, ())
    return [
        f"recorded: {choice} is {short(a)} in A, {short(b)} in B"
        for choice, (a, b) in differing.items()
        if any(choice == prefix or choice.startswith(f"{prefix}.") for prefix in wanted)
    ]


def _unexplained(report: Comparison, named: set[str]) -> list[str]:
    """Aspects that differ in many images though no cause was named that would make them differ."""
    deep = {"channel_order", "resize_rule", "other_input", "feature_dim", "other_weights", "other_family",
            "other_images", "resized_images", "orientation", "pooled_boxes"}  # fmt: skip
    left = []
    if _enough(report, report.count("features", "different") + report.without_match, LARGE) and not named & deep:
        left.append("features")
    if not named & deep:
        unmatched = report.count("selection", "unknown")
        if _enough(report, unmatched) and not (left or "selection" in named):
            left.append("regions")
        consequence = named & {"arithmetic", "regression"} or left
        if _enough(report, report.count("boxes", "other", "near"), LARGE) and not consequence:
            left.append("boxes")
    for what, labels in (("class", report.classes), ("attribute", report.attributes)):
        explained = named & (deep | {"arithmetic", f"{what}_offset", f"{what}_vocabulary"}) or "features" in left
        if labels.regions and labels.same_id < 0.98 * labels.regions and not explained:
            left.append(f"{what} ids")
    return left


def _measurements(report: Comparison) -> list[str]:
    lines = [
        f"regions: A {report.regions[0]:,}, B {report.regions[1]:,}, matched {report.regions[2]:,}",
        closeness("IoU of matched regions", report.iou_gaps),
        closeness("cosine of matched regions", report.cosine_gaps),
    ]
    lines += told(_alignments(report))
    for what, labels in (("class", report.classes), ("attribute", report.attributes)):
        if labels.regions:
            lines.append(f"{what} ids agree in {labels.same_id:,} of {labels.regions:,} regions")
    return [*lines, *(f"recorded: {name} is {short(a)} in A, {short(b)} in B"
                      for name, (a, b) in recorded(report.choices).items())]  # fmt: skip
