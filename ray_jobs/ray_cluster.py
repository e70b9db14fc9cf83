"""The connection to a Ray cluster: one of the job's own on this machine, or one that is there."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import IO, NoReturn

import ray
from ray._private import utils, worker

from cache import InfrastructureLost

from .options import usable_cpus
from .ray_environment import LOOPBACK

POLL_SECONDS = 1.0
MOST_SILENCE = 20.0  # seconds without an answer from the cluster; Ray itself would end this process after 60
MOST_CLOSING = 10.0
FOLDERS, LOCK = "roivault-", "roivault.lock"

log = logging.getLogger("roivault")


@dataclass(frozen=True)
class Node:
    """A machine of the cluster and what it offers."""

    id: str
    address: str
    cpus: int
    gpus: float


class Cluster:
    """Connects, follows which nodes are there, and ends what it started.

    Args:
        address: of a cluster; None starts one on this machine, unless this process is connected to one already.

    Raises:
        InfrastructureLost: there is no cluster to connect to, or it cannot be started.
    """

    def __init__(self, address: str | None):
        self._address = address
        self._connected = not ray.is_initialized()  # by us
        self._folder: str | None = None  # of Ray's own files, if we started it
        if self._connected:
            self._connect()
        self.own_node: str = ray.get_runtime_context().get_node_id()
        self._nodes: dict[str, Node] = {}
        self._poll()
        self._closed = threading.Event()
        for work in (self._follow, self._watch):
            threading.Thread(target=work, name="cluster", daemon=True).start()

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are alive, as last heard."""
        return list(self._nodes.values())

    def lives(self, node: str) -> bool:
        """Whether a node is alive, asked at once."""
        self._poll()
        return node in self._nodes

    def check(self) -> None:
        """Raises: InfrastructureLost when this machine's part of the cluster, or its head, is gone."""
        if self.own_node not in self._nodes:
            raise InfrastructureLost(self._died())
        if (silence := time.monotonic() - self._heard) > MOST_SILENCE:
            raise InfrastructureLost(f"the Ray cluster has not answered for {silence:.0f} seconds{self._remedy()}")

    def close(self) -> None:
        """Disconnect, and end the cluster if it is ours. A cluster that does not answer is waited for only briefly."""
        self._closed.set()
        if not self._connected:
            return
        ending = threading.Thread(target=ray.shutdown, name="shutdown", daemon=True)
        ending.start()
        ending.join(MOST_CLOSING)
        worker.print_to_stdstream = self._print
        if self._folder and not ending.is_alive():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self) -> None:
        options: dict = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is None:
            self._folder, self._lock = make_folder(os.environ.get("RAY_TMPDIR") or "/tmp")
            options |= {
                "address": "local",
                "num_cpus": usable_cpus(),
                "include_dashboard": False,
                "_node_ip_address": LOOPBACK,
                "_temp_dir": self._folder,  # short: the paths of sockets must be
            }
        else:
            _knock(self._address)
            options["address"] = self._address
        take_sigterm = utils.set_sigterm_handler
        utils.set_sigterm_handler = lambda handler: None  # the signal is the job's, from the beginning
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises this very class when it cannot start
            where = f"connect to a Ray cluster at {self._address}" if self._address else "start Ray on this machine"
            raise InfrastructureLost(f"cannot {where}: {str(error).rstrip('.')}{self._logs()}") from error
        finally:
            utils.set_sigterm_handler = take_sigterm
            _take_sigterm_back()
        self._print = worker.print_to_stdstream  # Ray has no setting for where it tells of processes that died
        worker.print_to_stdstream = _to_log
        log.info("connected to the Ray cluster %s", self._address or "of this job")

    def _follow(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            try:
                self._poll()
            except Exception as error:  # its silence tells
                log.info("the Ray cluster does not answer: %s", error)

    def _watch(self) -> None:
        """End this process when Ray's own on this machine dies: Ray would, at its next step, as if we had a bug."""
        with socket.socket(socket.AF_UNIX) as raylet:
            raylet.connect(self._raylet)
            raylet.settimeout(POLL_SECONDS)
            while not self._closed.is_set():
                try:
                    alive = raylet.recv(1)
                except TimeoutError:
                    continue
                except OSError:
                    alive = b""
                if not alive and not self._closed.is_set():
                    _end(self._died(), InfrastructureLost.exit_code)

    def _poll(self) -> None:
        begin = time.monotonic()
        nodes = {}
        for node in ray.nodes():
            if node["Alive"]:
                offers = node["Resources"]
                cpus, gpus = int(offers.get("CPU", 0)), offers.get("GPU", 0.0)
                if node["NodeID"] == self.own_node:
                    self._raylet = node["RayletSocketName"]
                nodes[node["NodeID"]] = Node(node["NodeID"], node["NodeManagerAddress"], cpus, gpus)
        self._nodes, self._heard = nodes, begin

    def _died(self) -> str:
        return f"Ray on this machine has died{self._remedy()}"

    def _remedy(self) -> str:
        return f"{self._logs()}. What is committed is kept; run the same line again"

    def _logs(self) -> str:
        return f"; its logs are in {self._folder}" if self._folder else ""


def _take_sigterm_back() -> None:
    """Put the handler of SIGTERM in the place of Ray's, which passes the signal on but aborts the process 3 s later."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def make_folder(place: str) -> tuple[str, IO[str]]:
    """A folder for Ray's files, and its lock, which is free once this process is gone.

    Of the folders that processes left behind when they were killed, all but the latest, with its logs, are removed.
    """
    left = []
    for path in glob.glob(f"{place}/{FOLDERS}*/{LOCK}"):
        with contextlib.suppress(OSError), open(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.append((os.path.getmtime(path), os.path.dirname(path)))
    for _, folder in sorted(left)[:-1]:
        shutil.rmtree(folder, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=FOLDERS, dir=place)
    lock = open(os.path.join(folder, LOCK), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def _knock(address: str) -> None:
    """See whether anything answers at HOST:PORT, as Ray tries for minutes. Raises: InfrastructureLost."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), MOST_CLOSING).close()
    except OSError as error:
        raise InfrastructureLost(
            f"nothing answers at {address}: {error.strerror or error}; --address or else RAY_ADDRESS says where the "
            "head of the cluster is, and without either a job has a cluster of its own"
        ) from error


def _end(error: str, code: int) -> NoReturn:
    """End this process at once; what it was doing cannot be told, so it is said here what `roivault` would say."""
    os.write(2, f"\nError: {error}\n".encode())
    if "--json" in sys.argv:
        os.write(1, json.dumps({"error": error, "exit_code": code}).encode() + b"\n")
    os._exit(code)


def _to_log(data: dict, **_: object) -> None:
    for line in data.get("lines", ()):
        log.info("Ray: %s", line)
