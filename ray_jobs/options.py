"""What the user of a job chose, checked before any work starts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from cache import UsageError
from cache.endpoints import parse_endpoint
from cache.keys import FILE_KEY_RULES, printable
from cache.regions import FEATURE_DTYPES
from cache.remote import RemoteFolder, is_url, shown
from cache.sizes import parse_bytes
from extractor.given_boxes import FORMATS as BOX_FORMATS
from extractor.given_boxes import UNITS as BOX_UNITS

from .tally import Allowance

KEY_RULES = FILE_KEY_RULES
STORED_DTYPES = tuple(FEATURE_DTYPES)
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
ORIENTATIONS = ("apply", "ignore")
TRUNCATED = ("fail", "keep")
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class ExtractOptions:
    """Options of `run_extract`; None and "auto" become the store's own choices when it exists, else the defaults.

    Attributes:
        source: a path, or name:path for a named source.
        output: the store's directory, or its URL.
        work: for a URL, or several writers: a folder here, and on the node of each writer, for the shard that is being
            written and what is on its way.
        model: a name of `list_extractors()`.
        weights: checkpoint in place of the model's own.
        boxes: file of boxes to describe instead of detecting, see `GivenBoxes`; an image without any fails.
        box_format, box_units: how its boxes are written; default xyxy (xywh in COCO files) and pixels.
        engine: "local" for this process, "ray" for Ray; None for Ray if there is an address or more than one GPU.
        address: of a Ray cluster, HOST:PORT or "auto" for that of this host; None for the one that RAY_ADDRESS names,
            else for one of this machine alone that ends with the job.
        writers: processes that write the store, with Ray; more than one bring their shards to `output`, which is then
            a URL or a folder that all nodes have.
        models_per_gpu: models that share a GPU, with Ray.
        timeout: seconds that one image may take at a stage, with Ray; see `blame.Patience`.
        device: auto, cpu, cuda or cuda:N.
        threads: CPU threads for decoding and for the model; None for all that this process may use.
        precision: number format of the model.
        dtype: number format of stored features; default float16.
        orientation, truncated: how image files are read, see `DecodePolicy`; default apply and fail.
        key: how a file's key is made, see `cache.keys.file_key`; default path.
        shard_size: bytes (or text such as "8GiB") at which a shard is sealed.
        limit: only the first N of the listing.
        retry_failed: try the inputs again that the store holds a failure of.
        refresh_changed: do the inputs again whose image file is not the one that their record was made from.
        max_failures: how many may fail, "N" or "P%", for the job to count as done.
        metrics_port: serve metrics for Prometheus there while the job runs, see `cache.endpoints.parse_endpoint`.
        quiet: show no progress.

    Raises:
        UsageError: a value that makes no sense.
    """

    source: str
    output: str
    model: str
    weights: str | None = None
    boxes: str | None = None
    box_format: str | None = None
    box_units: str | None = None
    engine: str | None = None
    address: str | None = None
    writers: int = 1
    models_per_gpu: int = 1
    timeout: float = 60.0
    device: str = "auto"
    threads: int | None = None
    precision: str = "auto"
    dtype: str | None = None
    orientation: str | None = None
    truncated: str | None = None
    key: str | None = None
    work: str | None = None
    shard_size: int | str = "8GiB"
    limit: int | None = None
    retry_failed: bool = False
    refresh_changed: bool = False
    max_failures: str = "1%"
    metrics_port: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        _choose("--engine", self.engine, (None, *ENGINES))
        _choose("--precision", self.precision, PRECISIONS)
        _choose("--key", self.key, (None, *KEY_RULES))
        _choose("--dtype", self.dtype, (None, *STORED_DTYPES))
        _choose("--orientation", self.orientation, (None, *ORIENTATIONS))
        _choose("--truncated", self.truncated, (None, *TRUNCATED))
        _choose("--box-format", self.box_format, (None, *BOX_FORMATS))
        _choose("--box-units", self.box_units, (None, *BOX_UNITS))
        if self.boxes is None and (self.box_format or self.box_units):
            raise UsageError("--box-format and --box-units say how the file of --boxes is written; give that, too")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise UsageError(f"--device {self.device!r} is not auto, cpu, cuda or cuda:N")
        for name in ("limit", "threads", "writers", "models_per_gpu", "timeout"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; give at least 1")
        if self.address is not None and self.engine == "local":
            raise UsageError("--address is of a Ray cluster; it does not go with --engine local")
        if self.writers > 1 and self.engine != "ray" and self.address is None:
            raise UsageError(f"--writers {self.writers} are processes of Ray; give --engine ray or --address, too")
        parse_size(self.shard_size)
        parse_allowance(self.max_failures)
        if self.metrics_port is not None:
            parse_endpoint(self.metrics_port)
        self._check_output()

    def _check_output(self) -> None:
        name = printable(self.output)
        if not name:
            raise UsageError("the store's name (-o) is empty")
        if name != self.output:
            raise UsageError(f"-o {name}: the name of a store must be valid unicode")
        if (self.url is None) != (self.work is None):
            what = f"--work {self.work}" if self.work else f"-o {shown(name)}"
            raise UsageError(
                f"{what}: a URL or --writers, and nothing else, needs --work DIR, a folder on a disk of this machine"
            )
        if self.url is not None:
            RemoteFolder(self.url).check_writable()
            self._check_folder(f"--work {self.work}", self.work)
        if not is_url(name):
            self._check_folder(f"-o {name}", name)

    def _check_folder(self, option: str, name: str) -> None:
        if os.path.lexists(name) and not os.path.isdir(name):
            raise UsageError(f"{option} is a file; a store is a folder, such as photos.roi")
        from .sources import parse_spec

        source, output = os.path.realpath(parse_spec(self.source).path), os.path.realpath(name)
        if source == output:
            raise UsageError(f"{option} is the folder of the images; choose another name, such as photos.roi")
        if output.startswith(source + os.sep) and not output.endswith(".roi"):
            raise UsageError(f"{option} lies in SOURCE and would be listed; let its name end in .roi")

    @property
    def url(self) -> str | None:
        """Where sealed shards are moved to; None when the store is written in place."""
        if is_url(self.output):
            return self.output
        return f"file://{os.path.abspath(self.output)}" if self.writers > 1 else None

    @property
    def num_threads(self) -> int:
        return self.threads or usable_cpus()


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_size(text: int | str) -> int:
    """Bytes from "500MB", "8GiB" or a plain number. Raises: UsageError."""
    return parse_bytes("--shard-size", text)


def parse_allowance(text: str) -> Allowance:
    """How many failures are allowed, from "20" or "1%". Raises: UsageError."""
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)%", str(text).strip())
    if not match or (match[2] and float(match[2]) > 100):
        raise UsageError(f"--max-failures {text!r} is neither a number nor a percentage; give for instance 20 or 1%")
    return Allowance(float(match[1] or match[2]), percent=bool(match[2]))


def _choose(option: str, value: str | None, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{option} {value!r} is not one of {', '.join(filter(None, choices))}")
