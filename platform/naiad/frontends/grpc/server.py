"""The gRPC transport: grpcio's asyncio server around the service and the streams."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from naiad.config.tls import TlsFiles
from naiad.engine.door import EngineDoor
from naiad.errors import Code, NaiadError, NotReadyError, OptionError
from naiad.frontends.access import PROPAGATED, Access, HeaderForwarder
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc import service_pb2 as pb
from naiad.frontends.grpc.gate import SHUTTING_DOWN, Gate
from naiad.frontends.grpc.restricted import Handler, guarded
from naiad.frontends.grpc.service import InferenceService
from naiad.frontends.grpc.settings import GrpcSettings
from naiad.frontends.grpc.stream import InferStream
from naiad.frontends.status import GRPC_STATUS
from naiad.frontends.tls import grpc_credentials
from naiad.protocol.inference import InferRequest

_WIRE_NAMES = {"GRPCInferenceService": "inference.GRPCInferenceService", "Health": "grpc.health.v1.Health"}
"""Names of the services on the wire, by their names in service.proto."""

_MAX_DETAILS = 6_000
"""Bytes of an error text as it travels. It goes into a header, clients refuse 8 KB of headers, and a longer text (a
traceback) would reach them as RESOURCE_EXHAUSTED without a word of what happened."""

_CUT_MARK = " [...] "


class GrpcFrontend:
    """Serves KServe v2 with Triton's extensions over gRPC."""

    def __init__(
        self,
        engine: EngineDoor,
        *,
        address: str,
        port: int,
        reuse_port: bool = False,
        settings: GrpcSettings | None = None,
        extensions: Extensions | None = None,
        access: Access | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Make a frontend; it listens once started.

        Args:
            engine: Who answers.
            address: Address to listen at, such as `0.0.0.0` or `::`.
            port: Port to listen at; 0 for any free one.
            reuse_port: Whether other servers may listen at the same port.
            settings: Settings of the transport.
            extensions: What is shared with other frontends.
            access: What is restricted, and which headers are forwarded.
            tls: Certificates; without them there is no TLS.
        """
        self._engine = engine
        self._tls = tls
        self._address = address
        self._port = port
        self._reuse_port = reuse_port
        self._settings = settings or GrpcSettings()
        self._gate = Gate()
        self._extensions = extensions or Extensions()
        access = access or Access()
        self._restrictions = access.restrictions
        self._forwarder = HeaderForwarder(access.forward) if access.forward is not None else None
        self._service = InferenceService(engine, self._gate, self._extensions)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Begin to listen.

        Returns:
            The port.

        Raises:
            OptionError: The address or port cannot be used.
        """
        server = grpc.aio.server(options=self._settings.channel_options(reuse_port=self._reuse_port))
        server.add_generic_rpc_handlers(tuple(self._handlers()))
        host = f"[{self._address}]" if ":" in self._address else self._address
        credentials = None if self._tls is None else grpc_credentials(self._tls)
        place = f"{host}:{self._port}"
        try:
            port = (
                server.add_insecure_port(place) if credentials is None else server.add_secure_port(place, credentials)
            )
        except RuntimeError as error:
            raise OptionError(
                f"cannot serve gRPC at {host}:{self._port}: {_why_not(self._address, self._port)}; "
                "set another address or port with --grpc-address or --grpc-port"
            ) from error
        await server.start()
        self._server = server
        return port

    async def stop(self, grace: float) -> None:
        """Refuse new inferences, wait at most *grace* seconds for those in flight, then close."""
        if self._server is None:
            return
        clock = asyncio.get_running_loop().time
        end = clock() + grace
        await self._gate.close(grace)
        # Calls that have their answer are still being written: never less than a moment for these.
        await self._server.stop(max(end - clock(), 0.1))
        self._server = None

    def _handlers(self) -> list[grpc.GenericRpcHandler[Any, Any]]:
        by_service: list[grpc.GenericRpcHandler[Any, Any]] = []
        for name, wire_name in _WIRE_NAMES.items():
            methods = pb.DESCRIPTOR.services_by_name[name].methods
            handlers = {method.name: self._handler(method.name, method.input_type.name) for method in methods}
            by_service.append(grpc.method_handlers_generic_handler(wire_name, handlers))
        return by_service

    def _handler(self, method: str, request_type: str) -> grpc.RpcMethodHandler[Any, Any]:
        if method == "ModelInfer":
            return grpc.unary_unary_rpc_method_handler(guarded(method, self._model_infer, self._restrictions, _abort))
        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(
                guarded(method, self._model_stream_infer, self._restrictions, _abort)
            )
        call = getattr(self._service, re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower())
        handler = _unary(getattr(pb, request_type), call)
        return grpc.unary_unary_rpc_method_handler(guarded(method, handler, self._restrictions, _abort))

    async def _model_infer(self, data: bytes, context: Any) -> bytes:
        try:
            if self._forwarder is None and not self._extensions.tracer.is_on:
                return await self._service.infer(data)
            headers = propagated(context)
            return await self._service.infer(data, lambda request: self._forward(request, context), headers)
        except NaiadError as error:
            await _abort(context, error)

    def _forward(self, request: InferRequest, context: Any) -> None:
        if self._forwarder is not None:
            self._forwarder.forward(request, _metadata(context))

    async def _model_stream_infer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        changed = asyncio.Event()
        metadata = dict(context.invocation_metadata() or ())
        stream = InferStream(
            self._engine,
            self._gate,
            changed.set,
            self._extensions,
            lambda request: self._forward(request, context),
            headers=propagated(context),
            errors_end_stream=metadata.get("triton_grpc_error") == "true",
        )
        self._gate.watch(changed.set)
        reader = asyncio.create_task(_read(stream, requests))
        try:
            while not stream.is_finished:
                await changed.wait()
                changed.clear()
                while stream.outgoing:
                    message, ticket = stream.outgoing.popleft()
                    try:
                        await context.write(message)
                    except grpc.aio.InternalError:  # the client went while it was written; grpcio would log this
                        return
                    stream.sent(ticket)
                if stream.failure is not None:
                    await _abort(context, stream.failure)
                if self._gate.closed and stream.is_idle and not stream.is_finished:
                    await _abort(context, NotReadyError(SHUTTING_DOWN))
            await reader  # for its exception, had it one
        finally:
            self._gate.unwatch(changed.set)
            reader.cancel()
            stream.cancel()


def _metadata(context: Any) -> list[tuple[str, str]]:
    found = context.invocation_metadata() or ()
    return [(key, value if isinstance(value, str) else value.decode("latin-1")) for key, value in found]


def propagated(context: Any) -> dict[str, str]:
    """The metadata of a call that say to which trace it belongs."""
    return {key: value for key, value in _metadata(context) if key in PROPAGATED}


async def _read(stream: InferStream, requests: AsyncIterator[bytes]) -> None:
    try:
        async for data in requests:
            stream.feed(data)
    finally:
        stream.end_of_requests()


def _unary(request_type: type[Message], call: Callable[[Any], Awaitable[Message]]) -> Handler:
    async def handle(data: bytes, context: Any) -> bytes:
        try:
            response = await call(request_type.FromString(data))
        except NaiadError as error:
            await _abort(context, error)
        except DecodeError:
            await _abort(context, NaiadError("Unable to parse request", code=Code.INTERNAL))
        return response.SerializeToString()

    return handle


async def _abort(context: Any, error: NaiadError) -> NoReturn:
    await context.abort(GRPC_STATUS[error.code], fit_details(error.message))
    raise AssertionError("abort returned")  # it raises; its stub does not say so


def fit_details(text: str, limit: int = _MAX_DETAILS) -> str:
    """Cut the middle out of a text that is longer than *limit* bytes once percent-encoded.

    The beginning says what failed; the end of a traceback says why.
    """
    if len(text) * 3 <= limit or len(quote(text)) <= limit:
        return text
    half = (limit - len(quote(_CUT_MARK))) // 2
    head = _longest(text, half, from_end=False)
    tail = _longest(text, half, from_end=True)
    return head + _CUT_MARK + tail


def _longest(text: str, limit: int, *, from_end: bool) -> str:
    size = 0
    for count in range(len(text)):
        size += len(quote(text[-1 - count] if from_end else text[count]))
        if size > limit:
            return text[len(text) - count :] if from_end else text[:count]
    return text


def _why_not(address: str, port: int) -> str:
    """What the system says to listening there: grpcio tells only its log."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
            probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return "grpcio refuses the address"
