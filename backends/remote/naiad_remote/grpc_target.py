"""A target over gRPC, by the package grpcio, for one response or a stream of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Iterator, List, Optional, Tuple

from naiad_remote import protobuf
from naiad_remote.errors import CallError, Cause
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
    "failed to connect",
    "connection refused",
    "dns resolution failed",
    "name resolution",
    "no route to host",
    "network is unreachable",
)
_LOST = ("socket closed", "connection reset", "broken pipe", "goaway", "stream removed", "connection closed")
_TLS = ("ssl", "handshake", "certificate", "peer name", "hostname verification")
_BACKOFF_MS = 100
"""Pause of a channel after a failed connection: the breaker decides about longer ones."""


class GrpcTarget:
    """Calls one target; used by many threads.

    Raises:
        ValueError: If grpcio is missing, or a file of `tls` cannot be used.
    """

    def __init__(self, target: Target, settings: Settings) -> None:
        try:
            import grpc
        except ImportError as error:
            raise ValueError(
                f"the target {target} needs the package grpcio in the model's environment ({error}); "
                "install it there, or use an address of HTTP"
            ) from None
        self._grpc = grpc
        self._target = target
        options: List[Tuple[str, Any]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", _BACKOFF_MS),
            # It also limits how long one attempt to connect may take.
            ("grpc.min_reconnect_backoff_ms", max(_BACKOFF_MS, int(settings.connect_timeout * 1000))),
            ("grpc.max_reconnect_backoff_ms", max(_BACKOFF_MS, int(settings.connect_timeout * 1000))),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        ]
        if target.is_secure:
            if settings.tls.server_name:
                options.append(("grpc.ssl_target_name_override", settings.tls.server_name))
            self._channel = grpc.secure_channel(target.address, _credentials(grpc, settings), options)
        else:
            self._channel = grpc.insecure_channel(target.address, options)
        self._infer = self._channel.unary_unary(f"{_SERVICE}/ModelInfer")
        self._stream = self._channel.stream_stream(f"{_SERVICE}/ModelStreamInfer")

    def infer(self, request: WireRequest, limit: Limit) -> Iterator[WireResponse]:
        """The one response of a request.

        Raises:
            CallError: If there is none, or it is an error.
        """
        message = protobuf.encode_request(request, self._target.model, self._target.version)
        yield self._decoded(protobuf.decode_response, self._call(self._infer, message, request.headers, limit))

    def stream(self, request: WireRequest, limit: Limit) -> Iterator[WireResponse]:
        """The responses of a request to a decoupled model, as they arrive.

        Raises:
            CallError: If the target fails, after any number of responses.
        """
        message = protobuf.encode_request(request, self._target.model, self._target.version)
        metadata = [*request.headers, ("triton_grpc_error", "true")]  # the first error ends the stream, with its code
        call = self._stream(iter([message]), metadata=metadata)
        try:
            limit.attach(call.cancel)
            for received in call:
                found = self._decoded(protobuf.decode_stream_response, received)
                if isinstance(found, str):  # by a server that does not know that header
                    raise CallError(Cause.ERROR, f"{found} (from {self._target})", "INTERNAL")
                yield found
        except self._grpc.RpcError as error:
            raise self._failure(error, limit) from None
        finally:
            limit.detach()
            call.cancel()  # without effect if it is over

    def describe(self, headers: List[Tuple[str, str]], limit: Limit) -> Description:
        """The interface of the model; without Triton's extension for configurations that of its metadata.

        Raises:
            CallError: If the target cannot be asked.
        """
        message = protobuf.encode_model(self._target.model, self._target.version)
        try:
            config = self._call(self._channel.unary_unary(f"{_SERVICE}/ModelConfig"), message, headers, limit)
        except CallError as error:
            if error.code != "UNSUPPORTED":
                raise
            metadata = self._call(self._channel.unary_unary(f"{_SERVICE}/ModelMetadata"), message, headers, limit)
            return self._decoded(protobuf.decode_metadata, metadata)
        return self._decoded(protobuf.decode_config, config)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _call(self, method: Any, message: bytes, headers: List[Tuple[str, str]], limit: Limit) -> Any:
        rest = limit.rest()
        call = method.future(message, timeout=None if rest == math.inf else rest, metadata=headers)
        try:
            limit.attach(call.cancel)
            return call.result()
        except self._grpc.RpcError as error:
            raise self._failure(error, limit) from None
        except self._grpc.FutureCancelledError:
            raise self._ended(limit) from None
        finally:
            limit.detach()

    def _decoded(self, decode: Any, message: bytes) -> Any:
        try:
            return decode(message)
        except ValueError as error:
            text = f"cannot call {self._target}: its response is malformed: {error}"
            raise CallError(Cause.MALFORMED, text, "INTERNAL") from None

    def _failure(self, error: Any, limit: Limit) -> CallError:
        code: str = error.code().name
        details: str = error.details() or ""
        if limit.ended_by is not None or (code == "DEADLINE_EXCEEDED" and limit.rest() <= 0):
            return self._ended(limit)
        if code == "UNAVAILABLE":
            cause = classify_unavailable(details, is_secure=self._target.is_secure)
            if cause is not None:
                what = {Cause.CONNECT: "no connection", Cause.TLS: "TLS failed", Cause.LOST: "the connection was lost"}
                hint = "; see tls_ca, tls_certificate and tls_server_name" if cause is Cause.TLS else ""
                return CallError(cause, f"cannot call {self._target}: {what[cause]}: {details}{hint}")
        cause = Cause.UNAVAILABLE if _CODES.get(code) == "UNAVAILABLE" else Cause.ERROR
        text = details or f"gRPC status {code}"
        return CallError(cause, f"{text} (from {self._target})", _CODES.get(code, "UNKNOWN"))

    def _ended(self, limit: Limit) -> CallError:
        if limit.ended_by is Cause.CANCELLED:
            return CallError(Cause.CANCELLED, "Request was cancelled", "CANCELLED")
        return CallError(limit.cause, f"cannot call {self._target}: no response within {limit.seconds:g} s")


def classify_unavailable(details: str, *, is_secure: bool) -> Optional[Cause]:
    """What a status UNAVAILABLE means: gRPC's library uses it for its own failures, too; None if the server sent it."""
    text = details.lower()
    if is_secure and any(each in text for each in _TLS):
        return Cause.TLS
    if any(each in text for each in _NO_CONNECTION):
        return Cause.CONNECT
    return Cause.LOST if any(each in text for each in _LOST) else None


def _credentials(grpc: Any, settings: Settings) -> Any:
    tls = settings.tls

    def content(path: str) -> Optional[bytes]:
        return Path(path).read_bytes() if path else None

    try:
        return grpc.ssl_channel_credentials(
            content(tls.ca), content(tls.key or tls.certificate), content(tls.certificate)
        )
    except OSError as error:
        raise ValueError(f"cannot use the files of TLS: {error}") from None
