"""One writer per published store, as far as an object store can tell: a small file with a heartbeat.

What it guarantees: a second writer that starts while another is alive is refused, whatever the clocks of the two say;
the file of one that died is taken over after it has been watched for STALE seconds without a beat, at once on the
machine where it ran. What it does not: if a writer is cut off from the network for so long that another one takes over,
or two start in the same moment where a file cannot be created in one step, both may write until the loser looks at the
lock, which it does before it registers anything.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
import uuid
from typing import Any

from .errors import RoivaultError, StoreLocked
from .remote import RemoteFolder, shown

FILE = "writer.lock.json"
BEAT = 10.0  # seconds
STALE = 45.0
_LOOK = 1.0
_PAUSE = 0.05
_SETTLE = 0.2  # where creation is no single step, the file of the last of several writers is the one that stays

_UNKNOWN = {"host": "?", "started": "?", "command": "?"}

log = logging.getLogger("roivault")


class RemoteLock:
    """Held from construction to `release`.

    Raises: StoreLocked: another writer is alive; names it. StoreUnreachable, DiskError.
    """

    def __init__(self, folder: RemoteFolder):
        self._folder, self._beats = folder, 0
        self._holder = {
            "token": uuid.uuid4().hex,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "processes": _process_space(),
            "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "command": " ".join(map(shown, sys.argv))[:400],
        }
        self._acquire()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="roivault-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises: StoreLocked: another writer took over."""
        held = self._read()
        if held.get("token") != self._holder["token"]:
            raise StoreLocked(
                f"{self._folder} was taken over by {_name(held)} while this process could not be heard; nothing is "
                "lost: end one of the two, then run its line again"
            )

    def release(self) -> None:
        """Give it up, if it is still this one's."""
        self._ended.set()
        self._thread.join()
        try:
            if self._read().get("token") == self._holder["token"]:
                self._folder.remove(FILE)
        except RoivaultError as error:  # the next writer finds out that nobody is there
            log.warning("%s", error)

    def _acquire(self) -> None:
        seen, since = None, 0.0
        while True:
            held = self._read()
            if not held:
                try:
                    self._folder.put(FILE, self._content(), create=True)
                    time.sleep(0 if self._folder.local else _SETTLE)
                except FileExistsError:
                    pass
                held = self._read()
            if held.get("token") == self._holder["token"]:
                return
            if not held:  # it was given up meanwhile
                time.sleep(_PAUSE)
                continue
            if held != seen:
                if seen is not None:
                    raise StoreLocked(
                        f"{self._folder} is being written by {_name(held)}; wait for it or stop it, then run the same "
                        "line again"
                    )
                seen, since = held, time.monotonic()
                if not _is_dead(held):
                    self._say(f"{self._folder} may be in use by {_name(held)}: looking for a sign of life")
            if _is_dead(held) or time.monotonic() - since > STALE:
                self._folder.remove(FILE)
            else:
                time.sleep(_LOOK)

    def _say(self, text: str) -> None:
        log.warning("%s", text)
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    def _content(self) -> bytes:
        return json.dumps({**self._holder, "beats": self._beats}).encode()

    def _read(self) -> dict[str, Any]:
        """Who holds it; empty when nobody does."""
        try:
            data = self._folder.read(FILE, 0, 4096)
            held = json.loads(data)
            return held if isinstance(held, dict) else {"damaged": held}
        except FileNotFoundError:
            return {}
        except ValueError:
            return {"damaged": data.hex()}

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                if self._read().get("token") == self._holder["token"]:
                    self._beats += 1
                    self._folder.put(FILE, self._content())
            except (RoivaultError, OSError) as error:
                log.warning("%s", error)


def _process_space() -> str | None:
    """What process ids refer to: this boot of this machine, and the container; None where that is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def _is_dead(held: dict[str, Any]) -> bool:
    """Whether the holder ran here and runs no more."""
    pid, space = held.get("pid"), held.get("processes")
    if not isinstance(pid, int) or pid < 1 or space is None or space != _process_space():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is somebody else's
    return False


def _name(held: dict[str, Any]) -> str:
    if "pid" not in held:
        return "another process"
    return "process {pid} on {host}, started {started}: {command}".format_map({**_UNKNOWN, **held})
