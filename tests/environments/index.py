"""Package indexes on loopback: one folder for each, with the digests of files in their pages (PEP 503)."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit


@dataclass
class Indexes:
    """Indexes that are served.

    Attributes:
        folder: A folder for each.
        address: Where they are.
        requests: The paths that were asked for; with the address, if this was asked as a proxy.
        locked: The indexes that refuse access.
        passwords: User and password of those that need them.
        failures: How many of the next requests fail as of a server that is too busy.
    """

    folder: Path
    address: str = ""
    requests: list[str] = field(default_factory=list)
    locked: set[str] = field(default_factory=set)
    passwords: dict[str, tuple[str, str]] = field(default_factory=dict)
    failures: int = 0


def add_to_index(index: Path, wheel: Path) -> None:
    """Move a wheel into an index."""
    folder = index / wheel.name.split("-")[0].replace("_", "-")
    folder.mkdir(parents=True, exist_ok=True)
    wheel.rename(folder / wheel.name)
    links = [
        f'<a href="{quote(one.name)}#sha256={hashlib.sha256(one.read_bytes()).hexdigest()}">{one.name}</a>'
        for one in sorted(folder.glob("*.whl"))
    ]
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>")


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@contextlib.contextmanager
def serving_indexes(folder: Path) -> Iterator[Indexes]:
    """Serve the indexes in a folder while the context lasts."""
    indexes = Indexes(folder)

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if indexes.failures:
                indexes.failures -= 1
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
                return
            name = path.split("/")[1]
            login = indexes.passwords.get(name)
            if name in indexes.locked or (login and self.headers["Authorization"] != _basic(*login)):
                self.send_error(HTTPStatus.UNAUTHORIZED)
                return
            indexes.requests.append(self.path)
            self.path = path
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    indexes.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield indexes
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
