"""Settings of a model that are worth a try where a cache is not what it makes: one changed at a time."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from extractor import get_preset, list_extractors
from extractor.configs import DetectionNMS, GridCells, Preprocess

if TYPE_CHECKING:
    from extractor import Extractor


def variations(extractor: Extractor, names: set[str]) -> Iterator[tuple[str, Extractor, bool]]:
    """(what is changed, the extractor with that change, whether it describes the boxes of the cache).

    Where `names`, the causes that were named, have the selection, others are tried first: where boxes are proposals,
    describing those of the cache would be equal too.
    """
    if "selection" in names:
        yield from selections(extractor)
    from extractor.networks import network_class

    for fault, network in getattr(extractor._network, "known_faults", dict)().items():
        faulty = copy(extractor)
        faulty._network = network
        yield fault, faulty, False
    rule = extractor.preset.preprocess
    yield "describing the boxes of the cache", extractor, True
    others = [other for other in map(get_preset, list_extractors()) if isinstance(other.preprocess, Preprocess)]
    if isinstance(rule, Preprocess):
        yield "red and blue swapped", _with(extractor, channels="rgb" if rule.channels == "bgr" else "bgr"), False
        for short, long in sorted({(p.preprocess.short_side, p.preprocess.long_side) for p in others}):
            if (short, long) != (rule.short_side, rule.long_side):
                yield f"images resized to {short}/{long}", _with(extractor, short_side=short, long_side=long), False
        by_method = {other.preprocess.resize: other for other in reversed(others)}
        for method in sorted(by_method.keys() - {rule.resize}):
            network_class(by_method[method].architecture)  # its module says how
            kind, kept = by_method[method].preprocess, {f.name: getattr(rule, f.name) for f in fields(rule)}
            changed = replace(kind, **kept | {"resize": method})
            yield f"images resized as {method} does", _behind(extractor, changed), False
    for orientation in {"apply", "ignore"} - {extractor.policy.orientation}:
        turned = copy(extractor)
        turned.policy = replace(extractor.policy, orientation=orientation)
        yield f"EXIF orientation: {orientation}", turned, False
    if "selection" not in names:
        yield from selections(extractor)


def selections(extractor: Extractor) -> Iterator[tuple[str, Extractor, bool]]:
    """Those of them in which the regions are selected as by another model, whose rule this one's network can answer."""
    from extractor.networks import network_class

    preset, tried = extractor.preset, [extractor.preset.selection]
    # those of the same network first: rules of other systems may keep the same regions, under a misleading name
    for other in sorted(map(get_preset, list_extractors()), key=lambda one: one.architecture != preset.architecture):
        rule = other.selection
        if rule in tried or other.dim != preset.dim or GridCells in (type(rule), type(preset.selection)):
            continue
        by_class = isinstance(rule, DetectionNMS) or getattr(rule, "class_boxes", False)
        if by_class and type(other.architecture) is not type(preset.architecture):
            continue  # it needs boxes of every class, which not every network gives
        tried.append(rule)
        network_class(other.architecture)  # its module says how
        chosen = copy(extractor)
        chosen.preset = replace(preset, selection=rule)
        yield f"regions selected as by {other.name}", chosen, False


def _with(extractor: Extractor, **changes: Any) -> Extractor:
    """The same network behind preprocessing that is changed so."""
    return _behind(extractor, replace(extractor.preset.preprocess, **changes))


def _behind(extractor: Extractor, preprocess: Preprocess) -> Extractor:
    changed = copy(extractor)
    changed.preset = replace(extractor.preset, preprocess=preprocess)
    return changed
