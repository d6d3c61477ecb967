"""A target over HTTP/1.1, with connections that are kept open."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import ssl
from collections import deque
from typing import Any, Deque, Iterator, List, Mapping, Optional, Tuple
from urllib.parse import quote

from naiad_remote import kserve_json
from naiad_remote.errors import CallError, Cause, too_long
from naiad_remote.settings import Settings, Target
from naiad_remote.watch import Limit
from naiad_remote.wire import Buffer, Description, WireRequest, WireResponse

_JOINED_BYTES = 128 * 1024  # up to this size one copy is cheaper than a further system call and a second packet
_CODES = {
    400: "INVALID_ARG",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    499: "CANCELLED",
    501: "UNSUPPORTED",
    422: "INVALID_ARG",
    429: "UNAVAILABLE",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}
_UNAVAILABLE = frozenset({429, 502, 503, 504})
# X509_V_ERR_... of OpenSSL's x509_vfy.h for rules that only VERIFY_X509_STRICT checks, which Python 3.13 has set.
_STRICT_CERTIFICATE_ERRORS = range(78, 95)
_OK = 200
_DOCUMENT_BYTES = 16 << 20  # most bytes of a configuration, of metadata and of an error
_PIECE = 1 << 20


class _TooLongError(ValueError):
    """A response has more bytes than its argument."""


class HttpTarget:
    """Calls one target; used by many threads. ValueError if a file of `tls` cannot be used."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self._target = target
        self._connect_seconds = settings.connect_timeout
        self._max_idle = settings.max_in_flight
        self._max_response = settings.max_response
        self._idle: Deque[socket.socket] = deque()
        self._server_name = settings.tls.server_name or target.host
        self._context = _context(settings) if target.is_secure else None
        version = f"/versions/{quote(target.version, safe='')}" if target.version else ""
        self._path = f"{target.prefix}/v2/models/{quote(target.model, safe='')}{version}"

    def infer(self, request: WireRequest, limit: Limit) -> Iterator[WireResponse]:
        """The one response of a request; CallError without it."""
        document, buffers = kserve_json.encode_request(request)
        headers = [*request.headers, ("content-type", "application/octet-stream")]
        headers.append(("inference-header-content-length", str(len(document))))
        content, most = [document, *buffers], self._max_response
        status, received, body = self._exchange("POST", f"{self._path}/infer", headers, content, limit, most)
        if status != _OK:
            raise self._rejection(status, body)
        size = received.get("inference-header-content-length", "")
        try:
            response = kserve_json.decode_response(body, _header_size(size, len(body)))
        except (ValueError, OverflowError, RecursionError) as error:
            raise self._malformed(str(error)) from None
        if limit.rest() <= 0:  # reading it took the time
            raise limit.error(self._target)
        yield response

    def describe(self, headers: List[Tuple[str, str]], limit: Limit) -> Description:
        """The interface of the model; without Triton's extension for configurations that of its metadata."""
        status, _, body = self._exchange("GET", f"{self._path}/config", headers, [], limit, _DOCUMENT_BYTES)
        read = kserve_json.describe_config
        if status != _OK:  # a server without the extension has no such path, or none for the method
            status, _, body = self._exchange("GET", self._path, headers, [], limit, _DOCUMENT_BYTES)
            read = kserve_json.describe_metadata
        if status != _OK:
            raise self._rejection(status, body)
        try:
            return read(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._malformed(repr(error)) from None

    def close(self) -> None:
        """Close the connections that no call uses."""
        while self._idle:
            self._idle.pop().close()

    def _exchange(
        self, method: str, path: str, headers: List[Tuple[str, str]], buffers: List[Buffer], limit: Limit, most: int
    ) -> Tuple[int, Mapping[str, str], bytearray]:
        """Send one request and read its response of at most *most* bytes: status, headers and body."""
        size = sum(len(buffer) for buffer in buffers)
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._target.address}", f"content-length: {size}"]
        lines += [f"{name}: {value}" for name, value in headers]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        connection = self._take_idle() or self._connect(limit)
        keep = False
        failure: CallError
        try:
            # Not the method of TLS sockets: it drops the state that a thread in `recv` uses.
            limit.attach(lambda: _abort(connection))
            try:
                _send(connection, head, buffers, size)
                with contextlib.closing(http.client.HTTPResponse(connection, method=method)) as response:
                    response.begin()
                    body = _read_body(response, most if response.status == _OK else min(most, _DOCUMENT_BYTES), limit)
                    keep = not response.will_close
                    found = {name.lower(): value for name, value in response.getheaders()}
                    return response.status, found, body
            finally:
                limit.detach()
        except (OSError, http.client.HTTPException, ValueError) as error:
            keep = False
            failure = self._failure(error, limit)
        finally:
            if keep and limit.ended_by is None:
                self._give_back(connection)
            else:
                connection.close()
        try:
            # Outside of the handler: as the error's context, the cause would keep what was received so far.
            raise failure
        finally:
            del failure  # its traceback has this frame: a cycle

    def _take_idle(self) -> Optional[socket.socket]:
        """A connection that the target has not closed."""
        while self._idle:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()
                if not _is_readable(connection):
                    return connection
                connection.close()
        return None

    def _give_back(self, connection: socket.socket) -> None:
        if len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.close()

    def _connect(self, limit: Limit) -> socket.socket:
        seconds = min(self._connect_seconds, limit.rest())
        if seconds <= 0:
            raise limit.error(self._target)
        try:
            connection = socket.create_connection((self._target.host, self._target.port), seconds)
        except OSError as error:
            if isinstance(error, socket.timeout):
                if seconds < self._connect_seconds:  # the time of the call ended first
                    raise CallError(limit.cause, self._text(f"no connection within {limit.seconds:g} s")) from None
                raise CallError(Cause.CONNECT, self._text(f"no connection within {seconds:g} s")) from None
            raise CallError(Cause.CONNECT, self._text(_reason(error))) from None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_hostname=self._server_name)
            connection.settimeout(None)  # from here on the limit ends the call
        except (OSError, ValueError) as error:
            connection.close()
            text = self._text(f"TLS failed: {_reason(error)}; see tls_ca, tls_certificate and tls_server_name")
            raise CallError(Cause.TLS, text) from None
        return connection

    def _failure(self, error: Exception, limit: Limit) -> CallError:
        if limit.ended_by is not None or limit.rest() <= 0:
            return limit.error(self._target)
        if isinstance(error, _TooLongError):
            return too_long(self._target, *error.args)
        if isinstance(error, ssl.SSLError) and "ALERT" in str(error).upper():
            # With TLS 1.3 a server rejects the client's certificate after the handshake.
            return CallError(Cause.TLS, self._text(f"TLS failed: {_reason(error)}; see tls_certificate"))
        if isinstance(error, OSError):
            return CallError(Cause.LOST, self._text(f"the connection was lost: {_reason(error)}"))
        if isinstance(error, http.client.IncompleteRead):
            return CallError(Cause.LOST, self._text("the connection was lost in the middle of the response"))
        return self._malformed(repr(error))

    def _rejection(self, status: int, body: bytes) -> CallError:
        text = kserve_json.error_text(body) or f"HTTP status {status}"
        cause = Cause.UNAVAILABLE if status in _UNAVAILABLE else Cause.ERROR
        return CallError(cause, f"{text} (from {self._target})", _CODES.get(status, "INTERNAL"))

    def _malformed(self, problem: str) -> CallError:
        return CallError(Cause.MALFORMED, self._text(f"its response is malformed: {problem}"), "INTERNAL")

    def _text(self, problem: str) -> str:
        return f"cannot call {self._target}: {problem}"


def _context(settings: Settings) -> ssl.SSLContext:
    tls = settings.tls
    try:
        context = ssl.create_default_context(cafile=tls.ca or None)
        if tls.certificate:
            context.load_cert_chain(tls.certificate, tls.key or None)
    except (OSError, ValueError) as error:
        files = ", ".join(f"'{path}'" for path in (tls.ca, tls.certificate, tls.key) if path)
        raise ValueError(f"cannot use the files of TLS ({files}): {_reason(error)}") from None
    return context


def _send(connection: socket.socket, head: bytes, buffers: List[Buffer], size: int) -> None:
    if size <= _JOINED_BYTES:
        connection.sendall(b"".join([head, *buffers]))
        return
    connection.sendall(head)
    for buffer in buffers:
        connection.sendall(buffer)


def _read_body(response: http.client.HTTPResponse, most: int, limit: Limit) -> bytearray:
    """The body of a response, in one piece of memory; a short one ends with `IncompleteRead`."""
    announced = response.length
    if announced is not None and announced > most:
        raise _TooLongError(most)
    body = bytearray(announced or 0)
    size = 0
    while announced is None or size < announced:
        if size == len(body):
            body += bytes(_PIECE)
        with memoryview(body) as view:
            count = response.readinto(view[size : size + _PIECE])
        if not count:
            break
        size += count
        if size > most:
            raise _TooLongError(most)
        if limit.rest() <= 0:  # a target that never ends a response is not ended by a pause between two pieces
            raise TimeoutError
    if announced is not None and size < announced:
        raise http.client.IncompleteRead(b"", announced - size)
    del body[size:]
    return body


def _header_size(text: str, size: int) -> int:
    """Bytes of JSON at the beginning of a body of *size* bytes, by the text of the response's header."""
    if not text:
        return size
    if not (text.isascii() and text.isdigit()) or int(text) > size:
        raise ValueError(f"its header inference-header-content-length is {text!r}, and its body has {size} bytes")
    return int(text)


def _abort(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _is_readable(connection: socket.socket) -> bool:
    """Whether something has arrived: between two calls that is the end of the connection, or garbage."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _reason(error: Any) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = ""
        if error.verify_code in _STRICT_CERTIFICATE_ERRORS:
            hint = " (issue the certificate again as RFC 5280 requires, which Python 3.13 and newer check)"
        return f"certificate verify failed: {error.verify_message}{hint}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).lower().replace("_", " ")
    if isinstance(error, http.client.RemoteDisconnected):
        return "the target closed it without a response"
    if isinstance(error, OSError):
        return (error.strerror or str(error) or type(error).__name__).lower()
    return str(error)
