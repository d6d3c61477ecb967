"""A registry for tests: the OCI distribution specification 1.1 on a loopback port, with faults that tests ask for.

Blobs by POST, PATCH, PUT, in one POST, and by mount; HEAD, GET with ranges, manifests, tags; status 401 with a basic or
bearer challenge and its own server of tokens. `tests/sources/registry/test_registry_conformance.py` applies the specification's
cases to it, because a wrong registry would make every other test worthless.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
import urllib.parse
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from support.waiting import until

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CODES = {
    400: "MANIFEST_INVALID",
    401: "UNAUTHORIZED",
    404: "MANIFEST_UNKNOWN",
    416: "RANGE_INVALID",
    500: "UNKNOWN",
    503: "UNAVAILABLE",
}


@dataclass
class Fault:
    """What goes wrong with the requests that match.

    Attributes:
        method: Method of the requests.
        path: Regular expression that matches somewhere in the path.
        status: Answer with this status; 0 for none.
        cut: Break the connection after so many bytes of the body of the answer, or, for uploads, of the request.
        times: How many requests it meets; then it is over.
        headers: Sent with the status.
    """

    method: str
    path: str
    status: int = 0
    cut: int | None = None
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    size: int
    authorization: str


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry:
    """A registry on a free port of the loopback interface.

    Attributes:
        blobs: Blobs by repository and digest.
        manifests: Media type and content of manifests, by repository and digest.
        tags: Digests by repository and tag.
        asked: All requests.
        faults: What is to go wrong.
        on_request: Called with the number of each request, before it is answered.
        login: Name and password that are required; None for none.
        scheme: How it authenticates: `basic` or `bearer`.
        is_public: Whether anonymous clients may pull.
        redirects: Whether downloads of blobs are sent to another address, which must not see credentials.
        mounts: Whether blobs can be mounted from other repositories.
    """

    def __init__(self, login: tuple[str, str] | None = None, scheme: str = "bearer") -> None:
        self.blobs: dict[str, dict[str, bytes]] = {}
        self.manifests: dict[str, dict[str, tuple[str, bytes]]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.uploads: dict[str, bytearray] = {}
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self.on_request: Callable[[int], None] = lambda _: None
        self.login, self.scheme = login, scheme
        self.is_public = False
        self.redirects = False
        self.mounts = True
        self.tokens: dict[str, set[str]] = {}
        self.identity_token = "refresh-me"
        self.lock = threading.RLock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def uri(self, name: str, tag: str = "") -> str:
        return f"oci://{self.host}/{name}" + (f":{tag}" if tag else "")

    def requests(self, method: str, path: str = "") -> list[Asked]:
        return [asked for asked in self.asked if asked.method == method and re.search(path, asked.path)]

    @property
    def received(self) -> int:
        """Bytes of blobs and manifests that were sent to it."""
        return sum(asked.size for asked in self.asked)

    def manifest(self, name: str, tag: str) -> dict[str, Any]:
        return json.loads(self.manifests[name][self.tags[name][tag]][1])

    def put(self, name: str, tag: str, manifest: dict[str, Any], *blobs: bytes) -> str:
        """Store a manifest and blobs as they are; returns the digest of the manifest."""
        for blob in blobs:
            self.blobs.setdefault(name, {})[sha256(blob)] = blob
        data = json.dumps(manifest).encode()
        self.manifests.setdefault(name, {})[sha256(data)] = (str(manifest["mediaType"]), data)
        self.tags.setdefault(name, {})[tag] = sha256(data)
        return sha256(data)

    def wait_until_idle(self) -> None:
        """Wait until all requests that were sent before are carried out, also those of clients that were killed."""
        # Connections are accepted one after the other: those before this one have been.
        with socket.create_connection(self._server.server_address[:2], timeout=60) as connection:
            connection.sendall(b"GET /v2/ HTTP/1.1\r\nHost: h\r\n\r\n")
            connection.recv(1)
        until(lambda: not self._server.running, "all requests to be carried out")

    def __enter__(self) -> Registry:  # noqa: PYI034 - typing.Self is 3.11+
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Server(ThreadingHTTPServer):
    """Counts connections, each of which has one request."""

    running = 0
    _lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self.running += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self.running -= 1


class _CutError(Exception):
    """The connection is to break."""


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            self.close_connection = True
            place = urllib.parse.urlsplit(self.path)
            self.query = dict(urllib.parse.parse_qsl(place.query))
            size = int(self.headers.get("Content-Length") or 0)
            with registry.lock:
                registry.asked.append(Asked(self.command, self.path, size, self.headers.get("Authorization", "")))
                number = len(registry.asked)
                fault = next(
                    (
                        each
                        for each in registry.faults
                        if each.times and each.method == self.command and re.search(each.path, self.path)
                    ),
                    None,
                )
                if fault is not None:
                    fault.times -= 1
            registry.on_request(number)
            self.cut = fault.cut if fault is not None else None
            try:
                if self.cut is not None and self.command in {"PATCH", "PUT"}:
                    self.rfile.read(self.cut)
                    return
                if fault is not None and fault.status:
                    self.rfile.read(size)
                    self._answer(fault.status, headers=fault.headers)
                elif place.path == "/token":
                    self._token(self.rfile.read(size))
                elif place.path.startswith("/storage/"):
                    self._blob(*place.path.removeprefix("/storage/").rsplit("/", 1))
                elif not self._is_authorized(place.path):
                    self.rfile.read(size)
                    self._challenge(place.path)
                else:
                    self._route(place.path, size)
            except (_CutError, ConnectionError):
                pass

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        # -- authorization

        def _scope(self, path: str) -> tuple[str, str]:
            name = re.fullmatch(r"/v2/(.+?)/(?:blobs|manifests|tags)/.*", path)
            action = "pull" if self.command in {"GET", "HEAD"} and "/uploads/" not in path else "push"
            return (name[1] if name else ""), action

        def _is_authorized(self, path: str) -> bool:
            if registry.login is None:
                return True
            given = self.headers.get("Authorization", "")
            if registry.scheme == "basic":
                return given == _basic(registry.login)
            name, action = self._scope(path)
            return f"{name}:{action}" in registry.tokens.get(given.removeprefix("Bearer "), set())

        def _challenge(self, path: str) -> None:
            name, action = self._scope(path)
            actions = "pull,push" if action == "push" else "pull"
            challenge = (
                f'Bearer realm="http://{registry.host}/token",service="tests",scope="repository:{name}:{actions}"'
            )
            if registry.scheme == "basic":
                challenge = 'Basic realm="tests"'
            self._answer(401, headers={"WWW-Authenticate": challenge})

        def _token(self, body: bytes) -> None:
            assert registry.login is not None
            asked = dict(urllib.parse.parse_qsl(body.decode())) if body else self.query
            given = self.headers.get("Authorization", "")
            is_known = given == _basic(registry.login) or asked.get("refresh_token") == registry.identity_token
            _, name, actions = asked["scope"].split(":")
            allowed = {f"{name}:{action}" for action in actions.split(",")} if is_known else set()
            if not is_known and (given or asked.get("refresh_token") or not registry.is_public):
                self._answer(401)
                return
            if not is_known:
                allowed = {f"{name}:pull"}
            token = uuid.uuid4().hex
            registry.tokens[token] = allowed
            self._answer(200, json.dumps({"token": token}).encode())

        # -- the API

        def _route(self, path: str, size: int) -> None:
            if path == "/v2/":
                self._answer(200)
            elif match := re.fullmatch(r"/v2/(.+)/tags/list", path):
                self._tags(match[1])
            elif match := re.fullmatch(r"/v2/(.+)/manifests/([^/]+)", path):
                self._manifest(match[1], match[2], self.rfile.read(size))
            elif match := re.fullmatch(r"/v2/(.+)/blobs/uploads/([^/]*)", path):
                self._upload(match[1], match[2], size)
            elif (match := re.fullmatch(r"/v2/(.+)/blobs/(sha256:[0-9a-f]+)", path)) and self.command in {
                "GET",
                "HEAD",
            }:
                if registry.redirects and self.command == "GET":
                    location = f"http://localhost:{registry.host.rpartition(':')[2]}/storage/{match[1]}/{match[2]}"
                    self._answer(307, headers={"Location": location})
                else:
                    self._blob(match[1], match[2])
            else:
                self._answer(404)

        def _tags(self, name: str) -> None:
            if name not in registry.tags:
                self._answer(404)
            else:
                listed = [tag for tag in sorted(registry.tags[name]) if tag > self.query.get("last", "")]
                part = listed[: int(self.query.get("n", len(listed)))]
                headers = {}
                if 0 < len(part) < len(listed):
                    headers["Link"] = f'</v2/{name}/tags/list?n={len(part)}&last={part[-1]}>; rel="next"'
                self._answer(200, json.dumps({"name": name, "tags": part}).encode(), headers)

        def _manifest(self, name: str, target: str, data: bytes) -> None:
            known = registry.manifests.setdefault(name, {})
            if self.command == "PUT":
                self._put_manifest(name, target, data)
                return
            digest = target if ":" in target else registry.tags.get(name, {}).get(target, "")
            if digest not in known:
                self._answer(404)
                return
            media_type, content = known[digest]
            self._answer(200, content, {"Content-Type": media_type, "Docker-Content-Digest": sha256(content)})

        def _put_manifest(self, name: str, target: str, data: bytes) -> None:
            try:
                content = json.loads(data)
                needed = [content["config"]["digest"], *(layer["digest"] for layer in content["layers"])]
            except (ValueError, KeyError, TypeError):
                self._answer(400)
                return
            if ":" in target and target != sha256(data):
                self._answer(400)
                return
            with registry.lock:
                if not set(needed) <= set(registry.blobs.get(name, {})):
                    self._answer(404, code="MANIFEST_BLOB_UNKNOWN")
                    return
                registry.manifests[name][sha256(data)] = (self.headers.get("Content-Type", ""), data)
                if ":" not in target:
                    registry.tags.setdefault(name, {})[target] = sha256(data)
            location = f"/v2/{name}/manifests/{sha256(data)}"
            self._answer(201, headers={"Location": location, "Docker-Content-Digest": sha256(data)})

        def _upload(self, name: str, session: str, size: int) -> None:
            blobs = registry.blobs.setdefault(name, {})
            if self.command == "POST":
                data = self.rfile.read(size)
                mounted = registry.blobs.get(self.query.get("from", ""), {}).get(self.query.get("mount", ""))
                if mounted is not None and registry.mounts:
                    blobs[self.query["mount"]] = mounted
                    self._created(name, self.query["mount"])
                elif self.query.get("digest"):
                    self._finish(name, "", data)
                else:
                    session = uuid.uuid4().hex
                    registry.uploads[session] = bytearray()
                    # A relative location, as the specification permits, and with a query of its own.
                    self._answer(
                        202, headers={"Location": f"/v2/{name}/blobs/uploads/{session}?state=1", "Range": "0-0"}
                    )
                return
            if session not in registry.uploads:
                self._answer(404, code="BLOB_UPLOAD_UNKNOWN")
                return
            received = registry.uploads[session]
            if self.command == "PATCH":
                asked = self.headers.get("Content-Range", "")
                data = self.rfile.read(size)
                start = int(asked.partition("-")[0]) if asked else len(received)
                if start != len(received) or len(data) != size:
                    self._progress(name, session, 416)
                    return
                received += data
                self._progress(name, session, 202)
            elif self.command == "GET":
                self._progress(name, session, 204)
            elif self.command == "DELETE":
                del registry.uploads[session]
                self._answer(204)
            else:
                data = self.rfile.read(size)
                if len(data) == size:
                    self._finish(name, session, bytes(received) + data)

        def _progress(self, name: str, session: str, status: int) -> None:
            last = max(len(registry.uploads[session]) - 1, 0)
            location = f"/v2/{name}/blobs/uploads/{session}?state=1"
            self._answer(status, headers={"Location": location, "Range": f"0-{last}"})

        def _finish(self, name: str, session: str, data: bytes) -> None:
            digest = self.query.get("digest", "")
            if sha256(data) != digest:
                self._answer(400, code="DIGEST_INVALID")
                return
            registry.blobs[name][digest] = data
            registry.uploads.pop(session, None)
            self._created(name, digest)

        def _created(self, name: str, digest: str) -> None:
            self._answer(201, headers={"Location": f"/v2/{name}/blobs/{digest}", "Docker-Content-Digest": digest})

        def _blob(self, name: str, digest: str) -> None:
            data = registry.blobs.get(name, {}).get(digest)
            if data is None:
                self._answer(404, code="BLOB_UNKNOWN")
                return
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(asked[1]) if asked else 0
            headers = {"Docker-Content-Digest": digest, "Content-Type": "application/octet-stream"}
            if start and start >= len(data):
                self._answer(416)
            elif start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self._answer(206, data[start:], headers)
            else:
                self._answer(200, data, headers)

        def _answer(
            self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, code: str = ""
        ) -> None:
            if status >= 400 and not body:
                code = code or _CODES.get(status, "UNKNOWN")
                body = json.dumps({"errors": [{"code": code, "message": "said by the registry"}]}).encode()
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body if self.cut is None else body[: self.cut])

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    return Handler


def _basic(login: tuple[str, str]) -> str:
    return "Basic " + base64.b64encode(":".join(login).encode()).decode()
