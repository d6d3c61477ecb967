"""A client for one repository of a registry: manifests, and blobs that are sent and received once.

Specification: https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md. Blobs of up to `CHUNK` bytes are
sent by POST and PUT, longer ones by POST, several PATCH and PUT; a chunk that fails is resumed at the offset that the
registry reports. Downloads are resumed by ranges. Every manifest and blob is verified by its digest.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import re
import shutil
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from naiad.core.errors import Code, RegistryError, without_frames
from naiad.sources.registry.authorization import TOKEN_SERVERS_VARIABLE
from naiad.sources.registry.credentials import find_credentials
from naiad.sources.registry.references import Reference
from naiad.sources.registry.transport import InterruptedTransferError, RegistryTransport, UploadBody

CHUNK = 16 << 20  # bytes of one PATCH; the specification's default for registries is to accept any size
_PIECE = 1 << 18
_LARGEST_MANIFEST = 4 << 20
_ACCEPTED = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_OK, _CREATED, _ACCEPTED_STATUS, _NO_CONTENT, _PARTIAL = 200, 201, 202, 204, 206
_NOT_FOUND, _RANGE_ERROR = 404, 416
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_SHOWN_TAGS = 8

Advance = Callable[[int], None]  # receives the number of transferred bytes


def open_registry(
    reference: Reference, environ: Mapping[str, str] | None = None, pauses: Sequence[float] | None = None
) -> RegistryClient:
    """A client for a reference's repository, with the credentials of Docker's configuration."""
    environ = os.environ if environ is None else environ
    credentials = find_credentials(reference, environ)
    given = environ.get(TOKEN_SERVERS_VARIABLE, "").lower().split(",")
    servers = [server.strip() for server in given if server.strip()]
    return RegistryClient(reference, RegistryTransport(reference, credentials, pauses, servers))


def sha256_of(data: bytes) -> str:
    """The digest of some bytes, as registries write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class RegistryClient:
    """One repository of a registry. Methods block and are thread-safe."""

    def __init__(self, reference: Reference, transport: RegistryTransport) -> None:
        self.reference = reference
        self._transport = transport

    # -- manifests --------------------------------------------------------------------------------------------------

    def read_manifest(self, target: str) -> tuple[str, bytes]:
        """Digest and content of the manifest of a tag or a digest; the content matches the digest."""
        headers = {"Accept": ", ".join(_ACCEPTED)}
        url = f"manifests/{target}"
        with self._transport.send("GET", url, headers=headers, expected=(_OK, _NOT_FOUND)) as reply:
            if reply.status == _NOT_FOUND:
                raise self._unknown(target)
            data = cast("IO[bytes]", reply).read(_LARGEST_MANIFEST + 1)
        if len(data) > _LARGEST_MANIFEST:
            raise RegistryError(f"the manifest of {self.reference} is longer than {_LARGEST_MANIFEST >> 20} MiB")
        digest = sha256_of(data)
        if ":" in target and digest != target:
            raise RegistryError(
                f"the manifest of {self.reference} does not match its digest: {target} was asked for, and the registry "
                f"sent {digest}; it is altered or damaged"
            )
        return digest, data

    def has_manifest(self, target: str, digest: str) -> bool:
        url, headers = f"manifests/{target}", {"Accept": ", ".join(_ACCEPTED)}
        with self._transport.send("HEAD", url, headers=headers, expected=(_OK, _NOT_FOUND)) as reply:
            return reply.status == _OK and reply.headers.get("Docker-Content-Digest") == digest

    def put_manifest(self, target: str, data: bytes, media_type: str) -> None:
        """Store a manifest under a tag or its digest; its blobs must be there."""
        body = UploadBody(len(data), lambda: [data])
        url, headers = f"manifests/{target}", {"Content-Type": media_type}
        self._transport.send("PUT", url, headers=headers, body=body, expected=(_CREATED, _OK)).close()

    def tags(self) -> list[str]:
        with self._transport.send("GET", "tags/list", expected=(_OK, _NOT_FOUND)) as reply:
            if reply.status == _NOT_FOUND:
                return []
            try:
                return sorted(map(str, json.load(reply)["tags"] or ()))
            except (ValueError, KeyError, TypeError):
                return []

    def _unknown(self, target: str) -> RegistryError:
        what = "manifest" if ":" in target else "tag"
        try:
            tags = self.tags()
        except RegistryError:
            tags = []
        named = ", ".join(tags[-_SHOWN_TAGS:])
        here = f"its tags are {named}" if named else "it lists no tags"
        return RegistryError(
            f"cannot find {self.reference}: the registry {self.reference.registry} has no {what} '{target}' of "
            f"'{self.reference.name}'; {here}",
            code=Code.NOT_FOUND,
        )

    # -- sending blobs ----------------------------------------------------------------------------------------------

    def has_blob(self, digest: str) -> bool:
        with self._transport.send("HEAD", f"blobs/{digest}", expected=(_OK, _NOT_FOUND)) as reply:
            return reply.status == _OK

    def mount_blob(self, digest: str, sources: Iterable[str]) -> bool:
        """Let the registry copy a blob from one of its other repositories; whether it did."""
        for name in sources:
            query = urllib.parse.urlencode({"mount": digest, "from": name})
            with self._transport.send(
                "POST",
                f"blobs/uploads/?{query}",
                headers={"Content-Length": "0"},
                expected=(_CREATED, _ACCEPTED_STATUS, _NOT_FOUND),
            ) as reply:
                if reply.status == _CREATED:
                    return True
                # It began an upload instead, which this client will not use.
                location = reply.headers.get("Location")
            if location:
                expected = (_OK, _ACCEPTED_STATUS, _NO_CONTENT, _NOT_FOUND, 405)
                self._transport.send("DELETE", location, expected=expected).close()
        return False

    def send_blob(self, content: Path | bytes, digest: str, advance: Advance) -> None:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        with self._transport.send(
            "POST", "blobs/uploads/", headers={"Content-Length": "0"}, expected=(_ACCEPTED_STATUS,)
        ) as reply:
            location = self._location(reply)
            least = reply.headers.get("OCI-Chunk-Min-Length", "")
            chunk = max(CHUNK, int(least) if least.isdecimal() else 0)
        start = 0
        if size > chunk:
            location = self._send_chunks(content, size, chunk, location, advance)
            start = size
        mark = "&" if "?" in location else "?"
        url = f"{location}{mark}{urllib.parse.urlencode({'digest': digest})}"
        rest = _body(content, start, size - start, advance)
        self._transport.send("PUT", url, body=rest, expected=(_CREATED,)).close()

    def _send_chunks(self, content: Path | bytes, size: int, chunk: int, location: str, advance: Advance) -> str:
        start, attempt = 0, 0
        while start < size:
            length = min(chunk, size - start)
            headers = {"Content-Range": f"{start}-{start + length - 1}"}
            try:
                with self._transport.send_once(
                    "PATCH",
                    location,
                    headers=headers,
                    body=_body(content, start, length, advance),
                    expected=(_ACCEPTED_STATUS, _RANGE_ERROR),
                ) as reply:
                    if reply.status == _ACCEPTED_STATUS:
                        location, start, attempt = self._location(reply), start + length, 0
                        continue
                failure = InterruptedTransferError("the registry expects another part of the blob")
            except InterruptedTransferError as error:
                failure = without_frames(error)
            attempt = self._transport.back_off(attempt, failure)
            with self._transport.send("GET", location, expected=(_NO_CONTENT, _OK)) as reply:
                location, start = self._location(reply, location), _received(reply.headers.get("Range", ""))
        return location

    def _location(self, reply: http.client.HTTPResponse, fallback: str = "") -> str:
        location = reply.headers.get("Location") or fallback
        if not location:
            raise RegistryError(f"the registry {self.reference.registry} does not say where to send a blob")
        return location

    # -- receiving blobs --------------------------------------------------------------------------------------------

    def check_blob(self, digest: str, size: int, what: str, advance: Advance) -> None:
        """Read a blob and compare its digest, without storing it."""
        actual = hashlib.sha256()
        for piece in self.stream_blob(digest, size, what):
            actual.update(piece)
            advance(len(piece))
        if f"sha256:{actual.hexdigest()}" != digest:
            raise self._mismatch(digest, f"sha256:{actual.hexdigest()}", what)

    def download_blob(self, digest: str, size: int, into: Path, what: str, advance: Advance) -> None:
        """Download a blob into a file, which has no other user; bytes of an earlier attempt in it are kept."""
        try:
            into.parent.mkdir(parents=True, exist_ok=True)
            resumed = _prepare(into, size)
            if shutil.disk_usage(into.parent).free < size - resumed:
                raise self._no_space(into, size - resumed, what)
            actual = self._download(digest, size, into, resumed, what, advance)
            if actual != digest and resumed:
                # The kept bytes may be damaged, for instance after a loss of power.
                into.unlink()
                actual = self._download(digest, size, into, 0, what, advance)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise self._no_space(into, size, what) from error
            raise RegistryError(
                f"cannot download {what} of {self.reference} into {into.parent}: {error.strerror or error}"
            ) from error
        if actual != digest:
            into.unlink(missing_ok=True)
            raise self._mismatch(digest, actual, what)

    def _download(self, digest: str, size: int, into: Path, start: int, what: str, advance: Advance) -> str:
        """Receive the rest of a blob; returns the digest of the whole file."""
        actual = hashlib.sha256()
        with into.open("ab+") as file:
            file.seek(0)
            while kept := file.read(_PIECE):
                actual.update(kept)
            advance(start)
            for piece in self.stream_blob(digest, size, what, start):
                file.write(piece)
                actual.update(piece)
                advance(len(piece))
            file.flush()
            os.fsync(file.fileno())
        return f"sha256:{actual.hexdigest()}"

    def stream_blob(self, digest: str, size: int, what: str, start: int = 0) -> Iterator[bytes]:
        """The bytes of a blob from *start* on; an interrupted transfer is resumed. The digest is not verified."""
        position, attempt = start, 0
        while position < size:
            before = position
            try:
                for piece in self._stream_once(digest, position, what):
                    position += len(piece)
                    if position > size:
                        raise RegistryError(
                            f"{what} of {self.reference} does not match its digest: the manifest has {size} bytes, and "
                            "the registry sends more; it is altered or damaged in the registry: push the repository "
                            "again"
                        )
                    yield piece
                if position == size:
                    return
                failure = InterruptedTransferError(f"the connection ended after {position} of {size} bytes")
            except InterruptedTransferError as error:
                failure = without_frames(error)
            attempt = self._transport.back_off(0 if position > before else attempt, failure)

    def _stream_once(self, digest: str, start: int, what: str) -> Iterator[bytes]:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        url = f"blobs/{digest}"
        with self._transport.send_once("GET", url, headers=headers, expected=(_OK, _PARTIAL, _NOT_FOUND)) as reply:
            if reply.status == _NOT_FOUND:
                raise RegistryError(
                    f"cannot find {what} of {self.reference}: the registry {self.reference.registry} has no blob "
                    f"{digest}; push the repository again",
                    code=Code.NOT_FOUND,
                )
            # A registry that ignores the range sends the bytes that are here already.
            unwanted = start if reply.status == _OK else 0
            while True:
                try:
                    piece = cast("IO[bytes]", reply).read(_PIECE)
                except (OSError, http.client.HTTPException) as error:
                    raise InterruptedTransferError(str(error) or type(error).__name__) from error
                if not piece:
                    return
                skipped = min(unwanted, len(piece))
                unwanted -= skipped
                if len(piece) > skipped:
                    yield piece[skipped:]

    def _no_space(self, into: Path, needed: int, what: str) -> RegistryError:
        free = shutil.disk_usage(into.parent).free
        return RegistryError(
            f"no space to download {what} of {self.reference}: {needed / 1e6:.1f} MB are needed, {free / 1e6:.1f} MB "
            f"are free on the disk of {into.parent}; make room there, or choose another folder with --env-store",
            code=Code.UNAVAILABLE,
        )

    def _mismatch(self, digest: str, actual: str, what: str) -> RegistryError:
        return RegistryError(
            f"{what} of {self.reference} does not match its digest: the manifest has {digest}, the received bytes have "
            f"{actual}; it is altered or damaged in the registry: push the repository again"
        )


def _prepare(into: Path, size: int) -> int:
    """The number of usable bytes in an earlier download; a file that is too long is removed."""
    kept = into.stat().st_size if into.exists() else 0
    if kept > size:
        into.unlink()
        kept = 0
    return kept


def _body(content: Path | bytes, start: int, length: int, advance: Advance) -> UploadBody:
    def pieces() -> Iterator[bytes]:
        if isinstance(content, bytes):
            yield content[start : start + length]
            advance(length)
            return
        left = length
        with content.open("rb") as file:
            file.seek(start)
            while left and (piece := file.read(min(_PIECE, left))):
                left -= len(piece)
                yield piece
                advance(len(piece))

    return UploadBody(length, pieces)


def _received(text: str) -> int:
    """The number of bytes that an upload has received, from the header `Range: 0-<last>`."""
    match = re.fullmatch(r"(?:bytes=)?0-(\d+)", text.strip())
    return int(match[1]) + 1 if match is not None and int(match[1]) else 0
