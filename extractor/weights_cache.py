"""Download published checkpoints and keep them: resumed, from the first mirror that answers, checked, converted once.

The cache is $ROIVAULT_HOME, else the platform's cache folder. `weights/` in it holds converted checkpoints,
`downloads/` what is on its way, `checksums.json` the sha256 of every file and address ever used: the publishers state
none, so the first use of a file records its own, and anything else under the same name is refused from then on.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from cache import DiskError, InputNotFound, UsageError, WeightsError
from cache.files import cache_folder
from cache.tensor_files import INDEX, read_index

from .preset import Preset, weights_folder
from .weights import SOURCE_SHA256, file_sha256, is_readable, matching_tensors, weights_sha256

BLOCK = 1 << 20
TIMEOUT = 30  # seconds without a byte
ATTEMPTS = 3  # per address, each going on where the last one broke off

_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)

Report = Callable[[int, int | None], None]  # bytes so far, bytes in all where the server says


def fetch_weights(preset: Preset, urls: Sequence[str] = (), report: Report | None = None) -> Path:
    """The preset's converted checkpoint, downloaded when it is not installed yet.

    Args:
        preset: the model.
        urls: addresses to try before the preset's own.
        report: called now and then while bytes arrive.

    Raises:
        UsageError: the model has no published weights, or needs a package that is not installed.
        InputNotFound: no address could be read; lists them with what went wrong and what to do.
        WeightsError: what arrived is not this model's checkpoint, or not the one that was recorded.
        DiskError: the cache cannot be written.
    """
    from .networks import empty_network

    target = preset.weights_file
    if target.is_file():
        if preset.urls:  # else it came with the package
            check_recorded(target)
        return target
    _refuse_unpublished(preset)
    empty_network(preset.architecture)  # says what is not installed before the download, not after it
    failures = []
    with _disk_errors(cache_folder()):
        downloads = cache_folder() / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        for url in (*urls, *preset.urls):
            file = downloads / f"{preset.weights}-{Path(urlsplit(url).path).name or 'checkpoint'}"
            if file.name.endswith(INDEX):
                file = downloads / f"{preset.weights}-files" / INDEX  # the others get the names that it gives them
                file.parent.mkdir(exist_ok=True)
            with _locked(file):
                if target.is_file():  # another process was faster
                    return target
                try:
                    _download(url, file, report)
                    others = _beside(file, preset.part) if file.name == INDEX else []
                    for other in others:
                        _download(urljoin(url, other.name), other, report)
                except (*_NETWORK_ERRORS, ValueError) as error:
                    plain = isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError)
                    failures.append(f"  {url}: {error.reason if plain else error}")
                    continue
                try:
                    return import_weights(preset, file, url)
                finally:
                    for one in (file, *others):
                        one.unlink(missing_ok=True)
    raise InputNotFound(
        f"the weights of model {preset.name!r} cannot be reached:\n"
        + "\n".join(failures)
        + "\nGive another address with --url, or copy the file here from a machine that has it and run\n"
        + f"  roivault weights import {preset.name} FILE"
    )


def _beside(index: Path, part: str) -> list[Path]:
    """The files that an index names for a part of a checkpoint, in its folder. Raises: WeightsError."""
    wanted = re.compile(part)
    return [index.parent / name for name in sorted({f for t, f in read_index(index).items() if wanted.match(t)})]


def import_weights(preset: Preset, file: Path, source: str = "") -> Path:
    """Check a checkpoint against the preset's network and keep it, converted to safetensors; returns where.

    Raises:
        UsageError: the model is not one whose checkpoint is kept.
        InputNotFound: there is no such file.
        WeightsError: it does not fit, or is not the one recorded for this `source` (an address; empty for none).
        DiskError: the cache cannot be written.
    """
    from safetensors.torch import save_file

    from .networks import empty_network

    _refuse_unpublished(preset)
    if not is_readable(file):
        raise InputNotFound(f"there is no file {file}, or none that may be read")
    digest = weights_sha256(file, preset.part)
    if source:
        _refuse_change(source, digest, recorded())
    state = matching_tensors(empty_network(preset.architecture), file)
    if source:
        _record(source, digest)  # only now: what does not fit must not bar the right file later
    target = weights_folder() / preset.weights
    with _disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            # contiguous and in one order: the same checkpoint always gives the same file
            tensors = {name: state[name].contiguous() for name in sorted(state)}
            save_file(tensors, partial, {SOURCE_SHA256: digest, "source": source or file.name})
            _record(target.name, file_sha256(partial), replace=True)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    return target


def _refuse_unpublished(preset: Preset) -> None:
    """Only a model that has addresses looks for its checkpoint in the cache."""
    if not preset.urls:
        raise UsageError(f"model {preset.name!r} has no published weights; give a checkpoint with --weights FILE")


def check_recorded(path: Path) -> str:
    """sha256 of an installed checkpoint, recorded now or equal to what was recorded. Raises: WeightsError."""
    digest = file_sha256(path)
    _record(path.name, digest)
    return digest


def recorded() -> dict[str, str]:
    """sha256 by file name or address. Raises: WeightsError when the record is damaged."""
    path = cache_folder() / "checksums.json"
    try:
        entries = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} is damaged ({error}); remove it to record the checksums anew") from error
    if not isinstance(entries, dict):
        raise WeightsError(f"{path} is damaged; remove it to record the checksums anew")
    return entries


def _refuse_change(name: str, digest: str, entries: dict[str, str]) -> None:
    if entries.get(name, digest) != digest:
        raise WeightsError(
            f"{name} has sha256 {digest}, but {entries[name]} was recorded at its first use: it has changed or is "
            f"damaged. If the new one is right, remove its line from {cache_folder() / 'checksums.json'}"
        )


def _record(name: str, digest: str, replace: bool = False) -> None:
    folder = cache_folder()
    with _disk_errors(folder), _locked(folder / "checksums.json"):
        entries = recorded()
        if not replace:
            _refuse_change(name, digest, entries)
        if entries.get(name) != digest:
            partial = folder / f"checksums.json.{os.getpid()}.partial"
            partial.write_text(json.dumps(entries | {name: digest}, indent=2, sort_keys=True) + "\n", "utf-8")
            os.replace(partial, folder / "checksums.json")


def _download(url: str, file: Path, report: Report | None) -> None:
    """Fill `file` from an address; what is there already is continued when the server still has the same version."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("not an http or https address")
    for attempt in range(ATTEMPTS):
        try:
            return _download_once(url, file, report)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # what is there is not the start of what the server has now
                file.unlink(missing_ok=True)
            elif error.code < 500 or attempt + 1 == ATTEMPTS:
                raise
        except _NETWORK_ERRORS:
            if attempt + 1 == ATTEMPTS:
                raise
    raise ConnectionError("the server does not let the download be completed")


def _download_once(url: str, file: Path, report: Report | None) -> None:
    version = file.with_name(file.name + ".version")  # of the bytes in `file`, as the server names it
    headers, start = {"User-Agent": "roivault"}, 0
    if file.is_file() and version.is_file():
        start = file.stat().st_size
        headers |= {"Range": f"bytes={start}-", "If-Range": version.read_text("utf-8")}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if response.status == 206 and not resumed:
            raise http.client.HTTPException(f"the server sent {response.headers.get('Content-Range')!r}")
        if not resumed:
            start = 0
            version.unlink(missing_ok=True)
            if tag := response.headers.get("ETag") or response.headers.get("Last-Modified"):
                version.write_text(tag, "utf-8")
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with file.open("r+b" if resumed else "wb") as out:
            out.seek(start)
            done = start
            while block := response.read(BLOCK):
                out.write(block)
                done += len(block)
                if report:
                    report(done, total)
    if total is not None and done != total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")
    version.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time for a file; the lock ends with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except _NETWORK_ERRORS:  # some are OSErrors, too
        raise
    except OSError as error:
        raise DiskError(
            f"{folder} cannot be written: {error.strerror or error}; set ROIVAULT_HOME to a folder with space"
        ) from error
