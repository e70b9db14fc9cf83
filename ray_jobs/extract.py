"""`extract`: images in, a store out. Everything that is the same for every engine."""

from __future__ import annotations

import datetime
import importlib.metadata
import logging
import os
import platform
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from cache import StoreNotFound, StoreWriter, read_fingerprint
from cache.destination import Destination
from cache.keys import printable
from cache.manifest import Manifest
from cache.opening import check_directory
from cache.parts import Collector
from extractor import DecodePolicy, Preset, get_preset
from extractor.given_boxes import GivenBoxes
from extractor.weights import check_weights, weights_path

from .engines import Engine, make_engine
from .listing import Listing
from .metrics import serve_metrics
from .model import Choices, Load, load_model
from .options import ExtractOptions, parse_allowance, parse_size
from .progress import Progress
from .report import Report
from .signals import Drain
from .sources import Source, open_source
from .tally import Summary, Tally, judge
from .work import Work

LIBRARIES = ("numpy", "pillow", "torch", "torchvision", "transformers")

log = logging.getLogger("roivault")


def run_extract(options: ExtractOptions, load: Load = load_model) -> Summary:
    """Extract what the store lacks of a listing; the same call continues an interrupted job.

    The model is loaded only when there is something for it to do, and no store is made when nothing is listed.

    Args:
        options: what the user chose.
        load: makes the extractor; other processes call it, too.

    Raises:
        UsageError: an unknown model or device.
        InputNotFound: SOURCE or the weights are not there.
        WeightsError: the given weights are damaged or another model's.
        StoreMismatch: the store was made by other choices; names them.
        StoreLocked: another process writes to it.
        StoreUnreachable: it is at a URL that does not answer; what was committed stays.
        DiskError: the disk is full or failing; what was committed stays.
    """
    if options.url is None:
        return _run(options, load, options.output)
    with Destination(options.url, options.work) as destination:
        return _run(options, load, str(destination.path), destination)


def _run(options: ExtractOptions, load: Load, folder: str, destination: Destination | None = None) -> Summary:
    """The job. `folder` is the store that is written here; a `destination` takes its sealed shards over."""
    preset = get_preset(options.model)
    source = open_source(options.source, options.key, _stored_key_rule(folder))
    stored = read_fingerprint(folder)
    choices = _resolve(options, preset, stored or {})
    # another `load` has weights of its own kind
    (check_weights if load is load_model else weights_path)(preset, options.weights)
    store = str(destination) if destination else printable(folder)
    log.info("extract %s into %s with %s", printable(options.source), store, preset.name)
    tally, drain, device = Tally(), Drain(), None
    engine = make_engine(options, choices, load, drain)
    with (
        drain,
        serve_metrics(tally, options.metrics_port, model=preset.name, store=store, engine=engine.name),
        Report(folder, options, tally) as report,
        closing(engine),
        closing(Listing(source, tally, options.limit)) as listing,
        Progress(tally, options.quiet),
    ):
        while not (listing.peek(0.5) or listing.exhausted or drain.requested):
            engine.prepare()
        if not listing.exhausted and not drain.requested:
            check_directory(Path(folder))
            if stored is None:  # `auto` is resolved once, for all who continue this store
                choices = replace(choices, precision=engine.precision())
            with _open_writer(folder, options, choices, destination) as writer:
                work = Work(listing, writer, tally, options.retry_failed, options.refresh_changed)
                while not (work.ready() or work.exhausted or drain.requested):
                    pass
                if not work.exhausted and not drain.requested:
                    device = engine.device()
                    writer.provenance = _provenance(options, source, choices, engine)
                    engine.run(work)
    stopped = drain.requested and not tally.finished
    if not stopped:
        _name_first_inputs(source, tally)
    verdict, exit_code = judge(tally, parse_allowance(options.max_failures), store, stopped)
    log.info("exit code %d: %s", exit_code, verdict)
    return Summary.of(
        tally,
        source=printable(options.source),
        store=store,
        model=preset.name,
        engine=engine.name,
        device=device,
        precision=choices.precision,
        feature_dtype=choices.dtype,
        threads=choices.threads,
        verdict=verdict,
        exit_code=exit_code,
        report=report.write(verdict, exit_code),
    )


def _resolve(options: ExtractOptions, preset: Preset, stored: dict) -> Choices:
    """The user's options first, then what the store was made with, then the defaults."""
    precision = options.precision if options.precision != "auto" else stored.get("precision", "auto")
    policy = {
        "orientation": options.orientation or stored.get("orientation"),
        "truncated": options.truncated or stored.get("truncated"),
        "max_pixels": stored.get("max_pixels"),
    }
    return Choices(
        preset=preset,
        weights=options.weights,
        device=options.device,
        precision=precision,
        dtype=options.dtype or stored.get("feature_dtype", "float16"),
        policy=DecodePolicy(**{name: value for name, value in policy.items() if value is not None}),
        threads=options.num_threads,
        boxes=GivenBoxes(options.boxes, options.box_format, options.box_units or "pixels") if options.boxes else None,
    )


def _stored_key_rule(store: str) -> str | None:
    """How the keys of the store were last made; None when there is no store or it does not say."""
    try:
        shards = Manifest.load(Path(store)).shards
    except StoreNotFound:
        return None
    rules = [made["key"] for shard in shards for made in shard.provenance if "key" in made]
    return rules[-1] if rules else None


def _open_writer(
    folder: str, options: ExtractOptions, choices: Choices, destination: Destination | None
) -> StoreWriter:
    preset = choices.preset
    return (Collector if options.writers > 1 else StoreWriter)(
        folder,
        feature_dtype=choices.dtype,
        fingerprint=choices.fingerprint(),
        vocabularies={"classes": preset.classes, "attributes": preset.attributes},
        shard_size=parse_size(options.shard_size),
        destination=destination,
    )


def _provenance(options: ExtractOptions, source: Source, choices: Choices, engine: Engine) -> dict:
    """Where and with what records are made: it says how, and never decides whether a job may go on."""
    return {
        "engine": engine.name,
        "source": source.name,
        "path": printable(os.path.abspath(source.path)),
        "key": source.key_rule,
        "device": engine.device(),
        "threads": choices.threads,
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in LIBRARIES},
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _name_first_inputs(source: Source, tally: Tally) -> None:
    """Say in the examples of duplicate keys which input has the key already; lists again up to the last of them."""
    wanted = {f.key for f in tally.examples if f.kind == "duplicate_key"}
    first: dict[str, str] = {}
    for item in source.items() if wanted else ():
        if item.key in wanted:
            first.setdefault(item.key, item.source)
            if len(first) == len(wanted):
                break
    for place, failure in enumerate(tally.examples):
        if failure.kind == "duplicate_key" and failure.key in first:
            short = source.key_rule in ("name", "stem")
            remedy = "use --key path, or rename one of them" if short else "leave one of them out"
            message = f"{first[failure.key]} has the key {failure.key!r} already; {remedy}"
            tally.examples[place] = replace(failure, message=message)
