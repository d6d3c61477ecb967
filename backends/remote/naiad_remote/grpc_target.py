"""A target over gRPC, for one response or a stream of them, by grpcio and the messages of tritonclient."""

from __future__ import annotations

import errno
import math
import os
import re
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Tuple

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from naiad_remote import kserve_grpc
from naiad_remote.errors import CallError, Cause, too_long
from naiad_remote.settings import Settings, Target
from naiad_remote.watch import Limit
from naiad_remote.wire import Description, WireRequest, WireResponse

_SERVICE = "/inference.GRPCInferenceService"
_CODES = {
    "INVALID_ARGUMENT": "INVALID_ARG",
    "NOT_FOUND": "NOT_FOUND",
    "UNAVAILABLE": "UNAVAILABLE",
    "RESOURCE_EXHAUSTED": "UNAVAILABLE",
    "UNIMPLEMENTED": "UNSUPPORTED",
    "ALREADY_EXISTS": "ALREADY_EXISTS",
    "CANCELLED": "CANCELLED",
    "INTERNAL": "INTERNAL",
    "DEADLINE_EXCEEDED": "UNAVAILABLE",
}
_NO_CONNECTION = (
    *("failed to connect", "connection refused", "dns resolution failed", "name resolution"),
    *("no route to host", "network is unreachable"),
)
_LOST = ("socket closed", "connection reset", "broken pipe", "goaway", "stream removed", "connection closed")
_TLS = ("ssl", "handshake", "certificate", "peer name", "hostname verification")
_SYSTEM_ERRORS = tuple(
    os.strerror(each).lower()
    for each in (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.EHOSTUNREACH, errno.ENETUNREACH)
)
_PREFIXES = re.compile(r"(.*last error: )?([A-Z_]+: )?(ipv[46]:\S+: )?")
"""What gRPC's library writes before a cause: `failed to connect to all addresses; last error: UNKNOWN: ipv4:...: `."""
_TOO_LONG = "received message larger than max"
_LARGEST_MESSAGE = 2**31 - 1
_BACKOFF_MS = 100  # pause of a channel after a failed connection: the breaker decides about longer ones


class _Connection:
    """A channel that one call at a time uses. gRPC's library lets equal channels share one connection to the target.

    A blocking call runs on its own thread, without the thread that completes futures: a call took 505 us instead of
    688 us (small tensors, one client). Only closing its channel ends it from another thread.
    """

    def __init__(self, channel: Any) -> None:
        self.close = channel.close
        self._channel = channel
        self._methods: Dict[str, Any] = {}

    def method(self, name: str) -> Any:
        if name not in self._methods:
            self._methods[name] = self._channel.unary_unary(f"{_SERVICE}/{name}")
        return self._methods[name]


class GrpcTarget:
    """Calls one target; used by many threads. ValueError if a file of `tls` cannot be used."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self._target = target
        self._max_idle = settings.max_in_flight
        self._max_response = settings.max_response
        self._idle: Deque[_Connection] = deque()
        self._options: List[Tuple[str, Any]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", min(settings.max_response, _LARGEST_MESSAGE)),
            ("grpc.initial_reconnect_backoff_ms", _BACKOFF_MS),
            # It also limits how long one attempt to connect may take.
            ("grpc.min_reconnect_backoff_ms", max(_BACKOFF_MS, int(settings.connect_timeout * 1000))),
            ("grpc.max_reconnect_backoff_ms", max(_BACKOFF_MS, int(settings.connect_timeout * 1000))),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        ]
        self._credentials: Any = None
        if target.is_secure:
            if settings.tls.server_name:
                self._options.append(("grpc.ssl_target_name_override", settings.tls.server_name))
            # Channels share a connection only if they share the credentials.
            self._credentials = _credentials(settings)
        self._channel = self._new_channel()
        self._stream = self._channel.stream_stream(f"{_SERVICE}/ModelStreamInfer")

    def infer(self, request: WireRequest, limit: Limit) -> Iterator[WireResponse]:
        """The one response of a request; CallError without it."""
        message = kserve_grpc.encode_request(request, self._target.model, self._target.version)
        received = self._call("ModelInfer", message, request.headers, limit)
        yield self._read(received, service_pb2.ModelInferResponse, kserve_grpc.decode_response)

    def stream(self, request: WireRequest, limit: Limit) -> Iterator[WireResponse]:
        """The responses of a request to a decoupled model, as they arrive; CallError after any number of them."""
        message = kserve_grpc.encode_request(request, self._target.model, self._target.version)
        metadata = [*request.headers, ("triton_grpc_error", "true")]  # the first error ends the stream, with its code
        call = self._stream(iter([message]), metadata=metadata)
        try:
            limit.attach(call.cancel)
            for received in call:
                found = self._read(received, service_pb2.ModelStreamInferResponse, kserve_grpc.decode_stream_response)
                if isinstance(found, str):  # by a server that does not know that header
                    raise CallError(Cause.ERROR, f"{found} (from {self._target})", "INTERNAL")
                yield found
        except grpc.RpcError as error:
            raise self._failure(error, limit) from None
        finally:
            limit.detach()
            call.cancel()  # without effect if it is over

    def describe(self, headers: List[Tuple[str, str]], limit: Limit) -> Description:
        """The interface of the model; without Triton's extension for configurations that of its metadata."""
        name, version = self._target.model, self._target.version
        message = service_pb2.ModelConfigRequest(name=name, version=version).SerializeToString()
        try:
            received = self._call("ModelConfig", message, headers, limit)
        except CallError as error:
            if error.code != "UNSUPPORTED":
                raise
            received = self._call("ModelMetadata", message, headers, limit)  # its request has the same fields
            return self._read(received, service_pb2.ModelMetadataResponse, kserve_grpc.decode_metadata)
        return self._read(received, service_pb2.ModelConfigResponse, kserve_grpc.decode_config)

    def close(self) -> None:
        """Close the connections that no call uses."""
        self._channel.close()
        while self._idle:
            self._idle.pop().close()

    def _new_channel(self) -> Any:
        if self._credentials is not None:
            return grpc.secure_channel(self._target.address, self._credentials, self._options)
        return grpc.insecure_channel(self._target.address, self._options)

    def _call(self, name: str, message: bytes, headers: List[Tuple[str, str]], limit: Limit) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = _Connection(self._new_channel())
        rest = limit.rest()
        try:
            limit.attach(connection.close)
            return connection.method(name)(message, timeout=None if rest == math.inf else rest, metadata=headers)
        except grpc.RpcError as error:
            raise self._failure(error, limit) from None
        except ValueError:
            if limit.ended_by is None:
                raise
            raise limit.error(self._target) from None  # the channel was closed before the call began
        finally:
            limit.detach()
            if limit.ended_by is None and len(self._idle) < self._max_idle:
                self._idle.append(connection)
            else:
                connection.close()

    def _read(self, content: bytes, kind: Any, decode: Callable[[Any], Any]) -> Any:
        """What *decode* makes of a message; if grpcio read it, a malformed one would be an error of the call."""
        try:
            return decode(kind.FromString(content))
        except (DecodeError, ValueError) as error:
            text = f"cannot call {self._target}: its response is malformed: {error}"
            raise CallError(Cause.MALFORMED, text, "INTERNAL") from None

    def _failure(self, error: Any, limit: Limit) -> CallError:
        code: str = error.code().name
        details: str = error.details() or ""
        if limit.ended_by is not None or (code == "DEADLINE_EXCEEDED" and limit.rest() <= 0):
            return limit.error(self._target)
        if code == "UNAVAILABLE":
            cause = classify_unavailable(details, is_secure=self._target.is_secure)
            if cause is not None:
                what = {Cause.TLS: "TLS failed: ", Cause.LOST: "the connection was lost: "}.get(cause, "")
                hint = "; see tls_ca, tls_certificate and tls_server_name" if cause is Cause.TLS else ""
                return CallError(cause, f"cannot call {self._target}: {what}{shorten(details)}{hint}")
        if code == "RESOURCE_EXHAUSTED" and _TOO_LONG in details.lower():
            return too_long(self._target, self._max_response)
        cause = Cause.UNAVAILABLE if _CODES.get(code) == "UNAVAILABLE" else Cause.ERROR
        text = details or f"gRPC status {code}"
        return CallError(cause, f"{text} (from {self._target})", _CODES.get(code, "UNKNOWN"))


def classify_unavailable(details: str, *, is_secure: bool) -> Optional[Cause]:
    """What a status UNAVAILABLE means: gRPC's library uses it for its own failures, too; None if the server sent it."""
    text = details.lower()
    if is_secure and any(each in text for each in _TLS):
        return Cause.TLS
    if any(each in text for each in _NO_CONNECTION):
        return Cause.CONNECT
    return Cause.LOST if any(each in text for each in _LOST) else None


def shorten(details: str) -> str:
    """The cause of a failure of gRPC's library: the system's error if there is one, in the words used for HTTP."""
    text = details.lower()
    for each in _SYSTEM_ERRORS:
        if each in text:
            return each
    return _PREFIXES.sub("", details, count=1) or details


def _credentials(settings: Settings) -> Any:
    tls = settings.tls

    def content(path: str) -> Optional[bytes]:
        return Path(path).read_bytes() if path else None

    try:
        return grpc.ssl_channel_credentials(
            content(tls.ca), content(tls.key or tls.certificate), content(tls.certificate)
        )
    except OSError as error:
        raise ValueError(f"cannot use the files of TLS: {error}") from None
