"""A web server of a folder, on 127.0.0.1, that knows byte ranges and misbehaves on request."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Web:
    """What the server does, and was asked for.

    Attributes:
        url: of the folder.
        asked: (file, first byte, last byte) of each request, in order; None for a request without a range.
        ranges: whether byte ranges are answered as such.
        answer: called with each answer's file and bytes, returns the bytes to send, or a status to send instead.
    """

    def __init__(self, url: str):
        self.url = url
        self.asked: list[tuple[str, int | None, int | None]] = []
        self.ranges = True
        self.answer: Callable[[str, bytes], bytes | int] = lambda name, data: data

    def requests(self) -> Counter[str]:
        """How often each file was asked for."""
        return Counter(name for name, _, _ in self.asked)


@contextmanager
def serving(folder: Path) -> Iterator[Web]:
    """Serve a folder until the context ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.partition("?")[0].lstrip("/")
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(match[1]), int(match[2])) if match else (None, None)
            web.asked.append((name, first, last))
            file = folder / name
            data = file.read_bytes() if file.is_file() else None
            status = 404 if data is None else 200
            if data is not None and match and web.ranges:
                status = 206 if first < len(data) else 416
                data = data[first : last + 1]
            answer = web.answer(name, data) if status in (200, 206) else status
            if isinstance(answer, int):
                status, answer = answer, b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web = Web(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
