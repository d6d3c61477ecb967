"""Downloading one file; an interrupted download is resumed, also by another process.

HTTP uses the standard library, because resuming needs the status and headers, which fsspec's driver does not expose:
they tell a broken connection, a server without range requests, and a file that changed. Other schemes use fsspec.

A JSON file beside the download contains the URI and version (such as an ETag) of its bytes. The download is resumed
only if both match; otherwise it starts at byte 0.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import logging
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from naiad.config.model.environment_source import redact
from naiad.core import blocking, json_cache
from naiad.core.errors import Code, ExecutionEnvironmentError, NaiadError, certificate_remedy
from naiad.environments.progress import ProgressMeter, ProgressReporter
from naiad.sources.storage.opening import Storage, open_storage, translate_storage_errors

_log = logging.getLogger("naiad.environments")
_CHUNK = 1024 * 1024
_TIME_LIMIT = 60.0
_SMALL = 1 << 20
# Seconds to wait after each attempt in a row that received no bytes; then the download fails.
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)

_TEMPORARY_ERRORS = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_FOUND = (404, 410)
_RANGE_NOT_SATISFIABLE = 416
_PARTIAL = 206


class _InterruptedError(Exception):
    """An attempt failed temporarily; the next one may resume it."""


@dataclass(slots=True)
class _OpenFile:
    """A remote file, opened at *offset*; *total* is None, and *version* (such as an ETag) empty, if unknown."""

    stream: IO[bytes]
    offset: int
    total: int | None
    version: str


def download(
    uri: str, into: Path, *, reporter: ProgressReporter, label: str = "", pauses: Sequence[float] | None = None
) -> None:
    """Download a file. Concurrent calls must not have the same *into*.

    Args:
        into: The file to write. An earlier attempt in it is resumed if the remote file is unchanged.

    Raises:
        ExecutionEnvironmentError: If it cannot be downloaded; the received bytes stay for the next attempt.
    """
    into.parent.mkdir(parents=True, exist_ok=True)
    pauses = PAUSES if pauses is None else pauses
    fruitless = 0
    while True:
        before = _size(into)
        try:
            _attempt(uri, into, reporter, label)
            return
        except _InterruptedError as error:
            fruitless = 0 if _size(into) > before else fruitless + 1
            if fruitless > len(pauses):
                raise ExecutionEnvironmentError(
                    f"cannot download {redact(uri)}: {error}; gave up after {fruitless} "
                    f"attempts without progress at byte {before}; the next load resumes there"
                ) from error
            pause = pauses[fruitless - 1] if fruitless else 0.0
            received = _size(into)
            where = (
                f" was interrupted at byte {received}: {error}; resuming" if received else f" failed: {error}; again"
            )
            _log.warning("downloading %s%s in %.0f s", redact(uri), where, pause)
            blocking.pause(pause)


def read_small_file(uri: str) -> bytes | None:
    """The content of a small remote file, None if it does not exist."""
    try:
        with _open(uri, 0, "") as opened:
            return opened.stream.read(_SMALL)
    except _InterruptedError as error:
        raise ExecutionEnvironmentError(f"cannot read {redact(uri)}: {error}") from error
    except ExecutionEnvironmentError as error:
        if error.code is Code.NOT_FOUND:
            return None
        raise


def read_version(uri: str, *, or_size: bool = False) -> str:
    """What changes with a remote file, such as an ETag, or its size if *or_size*; empty if unknown."""
    try:
        if not _is_http(uri):  # the metadata suffices; no need to open the file
            return _version(_stored(uri)[1])
        with _open(uri, 0, "") as opened:
            return version_or_size(opened.version, opened.total if or_size else None)
    except _InterruptedError as error:
        raise ExecutionEnvironmentError(f"cannot reach {redact(uri)}: {error}") from error


def version_or_size(version: str, size: int | None) -> str:
    """A file's version; its size if it has none, empty if that is unknown, too."""
    return version or ("" if size is None else f"{size} bytes")


def _attempt(uri: str, into: Path, reporter: ProgressReporter, label: str) -> None:
    metadata = metadata_path(into)
    known = json_cache.read(metadata) or {}
    offset = _size(into) if known.get("uri") == redact(uri) and known.get("version") else 0
    with _open(uri, offset, str(known.get("version", ""))) as opened:
        _check_space(uri, into, opened)
        json_cache.write(metadata, {"uri": redact(uri), "version": opened.version})
        total = opened.total or 0
        meter = ProgressMeter(
            reporter, step="downloading", label=label, path=Path(PurePosixPath(urlsplit(uri).path).name), total=total
        )
        with meter, into.open("r+b" if into.exists() else "wb") as file:
            file.truncate(opened.offset)
            file.seek(opened.offset)
            meter.advance(opened.offset)
            _copy(opened, file, meter)


def metadata_path(part: Path) -> Path:
    """The JSON file beside a download, with the URI and version of its bytes."""
    return part.with_name(part.name + ".json")


def _copy(opened: _OpenFile, file: BinaryIO, meter: ProgressMeter) -> None:
    while data := _read(opened.stream):
        file.write(data)
        meter.advance(len(data))
    if opened.total is not None and file.tell() != opened.total:
        raise _InterruptedError(f"the connection ended after {file.tell()} of {opened.total} bytes")


def _read(stream: IO[bytes]) -> bytes:
    try:
        return stream.read(_CHUNK)
    except Exception as error:  # each driver of fsspec has its own exceptions
        raise _InterruptedError(f"{type(error).__name__}: {error}") from error


def _check_space(uri: str, into: Path, opened: _OpenFile) -> None:
    needed = (opened.total or 0) - opened.offset
    free = shutil.disk_usage(into.parent).free
    if needed > free:
        raise ExecutionEnvironmentError(
            f"no space to download {redact(uri)}: {needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free on "
            f"the disk of {into.parent}; make room there, or choose another folder for the store of environments"
        )


@contextmanager
def _open(uri: str, offset: int, version: str) -> Iterator[_OpenFile]:
    opened = _open_http(uri, offset, version) if _is_http(uri) else _open_stored(uri, offset, version)
    with contextlib.closing(opened.stream), blocking.on_cancel(partial(_disconnect, opened.stream)):
        yield opened


def _disconnect(stream: IO[bytes]) -> None:
    """End a read in another thread. A close would wait for it."""
    raw = getattr(getattr(stream, "fp", None), "raw", None)
    connection: socket.socket | None = getattr(raw, "_sock", None)  # of `http.client`; drivers of fsspec have none
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _is_http(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _open_http(uri: str, offset: int, version: str) -> _OpenFile:
    # With a content encoding, ranges would count bytes of the compressed form.
    headers = {"Accept-Encoding": "identity", "User-Agent": "naiad"}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": version}
    address, authorization = split_login(uri)
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - http and https alone come here
    if authorization:
        request.add_unredirected_header("Authorization", authorization)  # not for the server of a redirect
    try:
        reply = urllib.request.urlopen(request, timeout=_TIME_LIMIT)  # noqa: S310 - closed by the caller
    except urllib.error.HTTPError as error:
        with error:
            if error.code == _RANGE_NOT_SATISFIABLE and offset:
                # The download is complete already, or longer than the file; then it starts again.
                if error.headers.get("Content-Range", "").endswith(f"*/{offset}"):
                    return _OpenFile(io.BytesIO(), offset, offset, version)
                return _open_http(uri, 0, "")
            raise _http_error(uri, error) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if _is_final(reason):
            code = getattr(reason, "verify_code", 0)
            remedy = certificate_remedy(code, "check the address, and the certificates and the network of this machine")
            raise ExecutionEnvironmentError(f"cannot download {redact(uri)}: {reason}; {remedy}") from error
        raise _InterruptedError(str(getattr(error, "reason", error)) or type(error).__name__) from error
    start = offset if reply.status == _PARTIAL else 0
    length = reply.headers.get("Content-Length")
    # A weak ETag does not guarantee equal bytes (RFC 9110, 8.8.1), so it cannot be used in If-Range.
    tag = reply.headers.get("ETag", "")
    version = tag if tag and not tag.startswith("W/") else reply.headers.get("Last-Modified", "")
    return _OpenFile(cast("IO[bytes]", reply), start, int(length) + start if length else None, version)


def split_login(uri: str) -> tuple[str, str]:
    """A URI of HTTP without its user and password, and the Authorization header that they make; empty without any."""
    parts = urlsplit(uri)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return uri, ""
    user, _, password = login.partition(":")
    given = f"{unquote(user)}:{unquote(password)}".encode()
    return urlunsplit(parts._replace(netloc=host)), f"Basic {base64.b64encode(given).decode()}"


def _is_final(reason: object) -> bool:
    """Whether another attempt would fail, too: the name does not exist, or the TLS handshake was refused."""
    if isinstance(reason, ssl.SSLError):
        # These are connections that broke during the handshake.
        return not isinstance(reason, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError))
    return isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME


def _http_error(uri: str, error: urllib.error.HTTPError) -> Exception:
    status = f"the server answered {error.code} {error.reason}"
    if error.code in _TEMPORARY_ERRORS:
        return _InterruptedError(status)
    return ExecutionEnvironmentError(
        f"cannot download {redact(uri)}: {status}; check the address and the permissions of this server",
        code=Code.NOT_FOUND if error.code in _NOT_FOUND else None,
    )


def _open_stored(uri: str, offset: int, version: str) -> _OpenFile:
    storage, info = _stored(uri)
    now, total = _version(info), info.get("size")
    # A download longer than the file is not a part of it, so it starts again.
    start = offset if now == version and (total is None or offset <= total) else 0
    return _OpenFile(_open_at(storage, start), start, total, now)


def _stored(uri: str) -> tuple[Storage, dict[str, Any]]:
    shown = redact(uri)
    try:
        storage = open_storage(uri)
        with translate_storage_errors(f"cannot read {shown}"):
            info = storage.filesystem.info(storage.path)
    except NaiadError as error:
        raise ExecutionEnvironmentError(f"cannot download {shown}: {error.message}", code=error.code) from error
    if info.get("type") == "directory":
        raise ExecutionEnvironmentError(
            f"cannot use the execution environment {shown}: it is a folder, and only archives can be "
            "downloaded; pack it with `naiad env pack`"
        )
    return storage, info


def _open_at(storage: Storage, start: int) -> IO[bytes]:
    try:
        stream: IO[bytes] = storage.filesystem.open(storage.path, "rb")
        stream.seek(start)
    except Exception as error:  # each driver has its own exceptions
        raise _InterruptedError(f"{type(error).__name__}: {error}") from error
    return stream


def _version(info: dict[str, Any]) -> str:
    """The metadata that changes with the file: tags, generation, times and size."""
    names = (
        "ETag",
        "etag",
        "generation",
        "content_settings",
        "LastModified",
        "last_modified",
        "mtime",
        "created",
        "ino",
    )
    return "|".join(f"{name}={info[name]}" for name in (*names, "size") if info.get(name) is not None)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
