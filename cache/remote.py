"""Files behind a URL, through fsspec: read in ranges and written whole, patiently, and never naming a secret.

An fsspec file system does not survive a fork: each process makes its own when it first needs one. Networks fail now and
then: everything is tried again, with growing pauses, until a deadline, but for errors that no second try would mend.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .errors import DiskError, InputNotFound, RoivaultError, StoreDamaged, StoreUnreachable, UsageError
from .files import TEMPORARY, disk_errors, replace_file, sync, sync_file

FIRST_DEADLINE = 15.0  # seconds, for a server that never answered: the name may be wrong
DEADLINE = 120.0  # for one that did
BLOCK = 16 << 20  # largest range of a download
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 8.0
_LEAST_TRIES = 3  # whatever the deadline: one upload may take longer than that
_DRIVERS = {
    "http": "aiohttp", "https": "aiohttp", "s3": "s3fs", "s3a": "s3fs", "hf": "huggingface_hub", "gs": "gcsfs",
    "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "sftp": "paramiko", "ssh": "paramiko",
}  # fmt: skip
_LOCAL = ("file", "local")
_SERVED = ("grpc", "grpc+tls")
_READ_ONLY = ("http", "https", *_SERVED)
_WITH_FOLDERS = (*_LOCAL, "sftp", "ssh", "smb", "hdfs", "webhdfs", "ftp", "webdav")  # that must be made

T = TypeVar("T")


def is_url(target: object) -> bool:
    return isinstance(target, str) and "://" in target


def shown(text: str) -> str:
    """A URL without what may be secret in it, user, password and query; any other text as it is."""
    if not is_url(text):
        return text
    base = text.partition("?")[0] if text.lower().startswith("http") else text
    scheme, mark, rest = base.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


class RemoteFolder:
    """A folder of a file system that fsspec knows. Two are equal when their URLs are.

    `str` of one, and every message, leave out what may be secret: user, password and query.

    Args:
        url: such as s3://bucket/coco.roi; a query (https only) goes to every file.

    Attributes:
        patience: seconds that are tried at most, where there is another place to ask.

    Raises:
        UsageError: it is no such URL.
    """

    patience = math.inf

    def __init__(self, url: str):
        self.url = url
        base, mark, query = url.partition("?") if url.lower().startswith("http") else (url, "", "")
        scheme, _, rest = base.rstrip("/").partition("://")
        self.scheme = scheme.lower()
        self._base, self._query = f"{self.scheme}://{rest}", mark + query
        host, _, path = rest.partition("/")
        user = host.rpartition("@")[0]
        self._shown = shown(self._base)
        self._secrets = [secret for secret in (user, *user.split(":", 1), query) if secret]
        chained = "::" in url and self.scheme not in _SERVED  # as fsspec has it; there it is of an IPv6 address
        if not rest or chained:
            raise UsageError(f"{shown(url)}: give one URL of a folder, such as s3://bucket/name.roi")
        if any(c in path for c in "*[") or ".." in path.split("/"):
            raise UsageError(f"{self}: patterns and '..' are for local paths; give each URL in full")
        self._pid: int | None = None
        self._system: Any = None
        self._making = threading.Lock()
        self._answered = False

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"RemoteFolder({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFolder) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __reduce__(self) -> tuple:
        return RemoteFolder, (self.url,)

    def __truediv__(self, name: str) -> str:
        """How messages name a file in it."""
        return f"{self}/{name}"

    @property
    def local(self) -> Path | None:
        """The folder of a file:// URL."""
        return Path(self._system_here()._strip_protocol(self._base)) if self.scheme in _LOCAL else None

    def address(self, name: str) -> str:
        """The URL of a file in it, secrets included."""
        return f"{self._base}/{name}{self._query}"

    # -- reading

    def read(self, name: str, start: int, end: int, stop: threading.Event | None = None) -> bytes:
        """Bytes from `start` to before `end`, fewer where the file ends.

        Args:
            stop: gives up between two tries when it is set.

        Raises:
            FileNotFoundError: there is no such file.
            StoreDamaged: more came than was asked for: ranges are not supported.
            StoreUnreachable, DiskError, UsageError
        """
        exact = {} if self._system_here().async_impl else {"cache_type": "none"}  # nothing around it is read
        data = self._patiently(name, lambda fs, path: fs.cat_file(path, start=start, end=end, **exact), stop)
        if len(data) > end - start:
            raise StoreDamaged(
                self / name, f"the server sent {len(data)} bytes where {end - start} were asked for",
                "stores can be read only from a server that supports byte ranges: use another, or copy the store here",
            )  # fmt: skip
        return data

    def download(self, name: str, target: Path, size: int, report: Callable[[int], None] = lambda count: None) -> None:
        """Copy a file that should have `size` bytes, block by block; `report` is told of each.

        Raises: StoreDamaged: it is shorter, and so is then the copy; FileNotFoundError, StoreUnreachable, DiskError.
        """
        with disk_errors(target), open(target, "wb") as file:
            for start in range(0, size, BLOCK):
                end = min(start + BLOCK, size)
                data = self.read(name, start, end)
                file.write(data)
                report(len(data))
                if len(data) != end - start:
                    raise StoreDamaged(self / name, f"it ends at byte {start + len(data)}, expected are {size}")

    def size(self, name: str) -> int | None:
        """Bytes of a file; None when there is none. Raises: StoreUnreachable, DiskError, UsageError."""

        def look(fs: Any, path: str) -> int:
            fs.invalidate_cache()
            return fs.info(path)["size"]

        try:
            return self._patiently(name, look)
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """The files in it. Raises: StoreUnreachable, DiskError, UsageError."""

        def look(fs: Any, path: str) -> list[str]:
            fs.invalidate_cache()
            return [found.rstrip("/").rpartition("/")[2] for found in fs.ls(path, detail=False)]

        try:
            return self._patiently("", look)
        except FileNotFoundError:
            return []

    # -- writing

    def check_writable(self) -> None:
        """Raises: UsageError."""
        if self.scheme in _READ_ONLY:
            raise UsageError(f"{self} can only be read: write to a bucket, such as s3://, or a file:// URL")

    def put(self, name: str, data: bytes, create: bool = False) -> None:
        """Write a small file so that nobody sees a part of it.

        Args:
            create: refuse to replace one. Where the system cannot do that in one step, two writers may both succeed.

        Raises: FileExistsError; InputNotFound: no bucket of that name; StoreUnreachable, DiskError, UsageError.
        """

        def write(fs: Any, path: str) -> None:
            self._make_folder(fs)
            if self.local and create:
                with open(self.local / name, "xb") as file:
                    file.write(data)
            elif self.local:
                replace_file(self.local / name, data)
            else:
                fs.pipe_file(path, data, mode="create" if create else "overwrite")

        self._write(name, write)

    def upload(self, name: str, source: Path, report: Callable[[int], None] = lambda count: None) -> None:
        """Copy a whole file there; `report` is told of bytes that went, by some drivers. Raises: StoreUnreachable."""
        from fsspec.callbacks import Callback

        class Listen(Callback):
            def relative_update(self, inc: int = 1) -> None:
                report(inc)

        def write(fs: Any, path: str) -> None:
            self._make_folder(fs)
            if self.local is None:
                fs.put_file(str(source), path, callback=Listen())
                return
            temporary = self.local / (name + TEMPORARY)
            fs.put_file(str(source), str(temporary))
            sync_file(temporary, os.path.getsize(source))
            os.replace(temporary, self.local / name)
            sync(self.local)

        self._write(name, write)

    def remove(self, name: str) -> None:
        """Remove a file if it is there. Raises: StoreUnreachable, DiskError."""
        try:
            self._patiently(name, lambda fs, path: fs.rm_file(path))
        except FileNotFoundError:
            pass

    def _write(self, name: str, act: Callable[[Any, str], None]) -> None:
        try:
            self._patiently(name, act)
        except FileNotFoundError:
            raise InputNotFound(f"{self / name} cannot be made: there is no such bucket or folder; make it") from None

    def _make_folder(self, fs: Any) -> None:
        if self.scheme in _WITH_FOLDERS:
            fs.makedirs(self._base, exist_ok=True)

    # -- the file system, and its errors

    def _system_here(self) -> Any:
        with self._making:
            if self._pid != os.getpid():
                self._system, self._pid = self._make(), os.getpid()
        return self._system

    def _make(self) -> Any:
        try:
            import fsspec

            options: dict[str, Any] = {}
            if self.scheme in ("http", "https"):
                import aiohttp

                # compressed on its way, a range would be one of other bytes
                options["headers"] = {"Accept-Encoding": "identity"}
                timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)
                options["client_kwargs"] = {"timeout": timeout}
            return fsspec.core.url_to_fs(self._base, **options)[0]
        except ImportError as error:
            packages = ["fsspec", *filter(None, [_DRIVERS.get(self.scheme)])]
            raise UsageError(
                f"{self} needs {' and '.join(packages)}: pip install {' '.join(packages)} ({self._clean(error)})"
            ) from None
        except ValueError as error:
            raise UsageError(f"{self} cannot be opened: {self._clean(error)}") from None

    def _patiently(self, name: str, act: Callable[[Any, str], T], stop: threading.Event | None = None) -> T:
        begin, pause = time.monotonic(), _FIRST_PAUSE
        for tries in itertools.count(1):
            try:
                result = act(self._system_here(), self.address(name))
                self._answered = True
                return result
            except Exception as error:
                if _is_range_error(error):
                    return b""  # it begins behind the end of the file
                self._refuse_lasting(name, error)
                deadline = min(self.patience, DEADLINE if self._answered else FIRST_DEADLINE)
                tried = tries >= _LEAST_TRIES or self.patience < math.inf
                late = tried and time.monotonic() - begin + pause > deadline
                if late or (stop and stop.is_set()):
                    raise StoreUnreachable(
                        f"{self / name} cannot be reached ({self._clean(error)}), in {time.monotonic() - begin:.0f} "
                        "seconds of trying: see that the address is right and the network is up, then run the same "
                        "line again"
                    ) from None
            (stop or threading.Event()).wait(pause * random.uniform(0.7, 1.3))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _refuse_lasting(self, name: str, error: Exception) -> None:
        """Raise what no second try would mend."""
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            raise FileNotFoundError(errno.ENOENT, "there is no such file", self / name) from None
        if isinstance(error, FileExistsError):
            raise FileExistsError(errno.EEXIST, "it is there already", self / name) from None
        status = _status(error)
        if isinstance(error, PermissionError) or _says_no_credentials(error) or status in (401, 403, 407):
            raise DiskError(
                f"{self / name}: access is denied ({self._clean(error)}); give credentials as the driver of "
                f"{self.scheme}:// takes them, and see that they allow it"
            ) from None
        if status is not None and 400 <= status < 500 and status not in (408, 429):
            raise DiskError(f"{self / name}: the server refuses it ({self._clean(error)})") from None
        if self.local is not None and isinstance(error, OSError):
            with contextlib.suppress(OSError), disk_errors(self.local):
                raise error
        of_python = type(error).__module__ == "builtins" and not isinstance(error, (OSError, EOFError))
        if isinstance(error, RoivaultError) or of_python:
            raise error  # what drivers define themselves is about the network

    def _clean(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}".rstrip(": ").replace(self.url, str(self))
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:300]


def _forget_event_loop() -> None:
    """The thread of fsspec's event loop does not survive a fork, and not every version of it minds that."""
    if "fsspec.asyn" in sys.modules:
        sys.modules["fsspec.asyn"].reset_lock()


os.register_at_fork(after_in_child=_forget_event_loop)


def _is_range_error(error: Exception) -> bool:
    """Whether a range begins behind the end of its file, in the words of the drivers."""
    texts = ("InvalidRange", "range is not satisfiable")
    return _status(error) == 416 or any(text in str(error) for text in texts)


def _status(error: Exception) -> int | None:
    """The HTTP status behind an error, where the driver tells it."""
    places = ((error, "status"), (getattr(error, "response", None), "status_code"), (error, "code"))
    found = (getattr(place, name, None) for place, name in places)
    return next((status for status in found if isinstance(status, int)), None)


def _says_no_credentials(error: Exception) -> bool:
    return type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "GatedRepoError")
