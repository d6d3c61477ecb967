"""A web server with one folder that honours ranges, and drops connections or changes its mind when a test says so."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Web:
    """What it serves and how.

    Attributes:
        folder: Its files.
        drops: Byte counts after which connections break, one a request; then none does.
        ranges: Whether ranges are honoured.
        tags: Whether it says which state of a file it sends.
        statuses: Answers with these, one a request, before anything else.
        requests: Paths and ranges that were asked for.
        login: The Authorization header that is required; empty for none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drops: list[int] = []
        self.ranges = True
        self.tags = True
        self.statuses: list[int] = []
        self.requests: list[tuple[str, str]] = []
        self.login = ""
        self.address = ""

    def uri(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextmanager
def serving(folder: Path) -> Iterator[Web]:
    """Serve a folder while the context lasts."""
    web = Web(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.partition("?")[0].lstrip("/")
            asked = self.headers.get("Range", "")
            web.requests.append((name, asked))
            if web.login and self.headers.get("Authorization") != web.login:
                self._answer(401, b"", {})
                return
            path = web.folder / name
            if web.statuses or not path.is_file():
                self._answer(web.statuses.pop(0) if web.statuses else 404, b"", {})
                return
            data = path.read_bytes()
            tag = f'"{hashlib.sha256(data).hexdigest()[:8]}"'
            headers = {"ETag": tag} if web.tags else {}
            start = self._start(asked, tag) if web.ranges else 0
            if start >= len(data) and start:
                self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            elif start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self._answer(206, data[start:], headers)
            else:
                self._answer(200, data, headers)

        def _start(self, asked: str, tag: str) -> int:
            if not asked or self.headers.get("If-Range", tag) != tag:
                return 0
            return int(asked.removeprefix("bytes=").rstrip("-"))

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            kept = web.drops.pop(0) if web.drops and body else len(body)
            self.wfile.write(body[:kept])
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
