"""An object store for tests: as much of S3's protocol as listing and reading need, and a log of what was read."""

from __future__ import annotations

import hashlib
import threading
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from xml.sax.saxutils import escape

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "eu"}
"""What a client must know."""


class Bucket:
    """A server with one bucket, named `bucket`.

    Attributes:
        objects: Contents by key.
        read: The keys of the objects that were read, in order.
        broken: Keys whose reading fails.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.read: list[str] = []
        self.broken: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def uri(self) -> str:
        return f"s3://127.0.0.1:{self._server.server_port}/bucket"

    def put_folder(self, folder: Path, prefix: str) -> None:
        """Put all files below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
            elif not any(path.iterdir()):
                self.objects[f"{prefix}/{path.relative_to(folder).as_posix()}/"] = b""  # as consoles mark folders

    def delete(self, prefix: str) -> None:
        for key in [key for key in self.objects if key.startswith(prefix)]:
            del self.objects[key]

    def __enter__(self) -> Bucket:  # noqa: PYI034 - typing.Self is 3.11+
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _listing(bucket: Bucket, query: Mapping[str, str]) -> bytes:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    files, folders = [], []
    for key, content in sorted(dict(bucket.objects).items()):
        if not key.startswith(prefix):
            continue
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            folders.append(prefix + rest.partition(delimiter)[0] + delimiter)
        else:
            files.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{escape(_etag(content))}</ETag><Size>{len(content)}</Size></Contents>"
            )
    common = [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in dict.fromkeys(folders)]
    count = len(files) + len(common)
    return (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
        f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>1000</MaxKeys>"
        f"<IsTruncated>false</IsTruncated>{''.join(files)}{''.join(common)}</ListBucketResult>"
    ).encode()


def _handler(bucket: Bucket) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            place = urllib.parse.urlsplit(self.path)
            key = urllib.parse.unquote(place.path).removeprefix("/bucket").lstrip("/")
            if f"Credential={KEYS['AWS_ACCESS_KEY_ID']}/" not in self.headers.get("Authorization", ""):
                self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
            elif not key:
                self._answer(200, _listing(bucket, dict(urllib.parse.parse_qsl(place.query))))
            elif key not in bucket.objects or key in bucket.broken:
                self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>")
            else:
                if self.command == "GET":
                    bucket.read.append(key)
                self._answer(200, bucket.objects[key])

        do_HEAD = do_GET

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Type", "application/xml")
            self.send_header("ETag", _etag(content))
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    return Handler
