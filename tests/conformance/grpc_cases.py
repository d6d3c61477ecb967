"""gRPC calls with messages built field by field, so that any field can be invalid."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2, service_pb2_grpc

from naiad.frontends.kserve_grpc import service_pb2 as health

TIMEOUT = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrpcCase:
    """One call.

    Attributes:
        method: The method's name.
        message: Makes its message.
        more: Make further messages of a stream. Each is sent after the response to the previous one.
        metadata: Sent with the call.
        unordered: Names of which the reference mentions any, by the order of a hash table.
    """

    name: str
    method: str
    message: Callable[[], Message]
    more: Sequence[Callable[[], Message]] = ()
    metadata: Sequence[tuple[str, str]] = ()
    unordered: Sequence[str] = ()


def call(address: str, case: GrpcCase, repository: str) -> dict[str, Any]:
    """Make the call; return its response or status in a form that can be stored."""
    try:
        with contextlib.closing(grpc.insecure_channel(address)) as channel:
            content = _streamed(channel, case) if case.method == "ModelStreamInfer" else _answered(channel, case)
    except grpc.RpcError as error:
        return {"code": error.code().name, "details": (error.details() or "").replace(repository, "<repository>")}
    return {"code": "OK", "message": json.loads(json.dumps(content).replace(repository, "<repository>"))}


def _answered(channel: grpc.Channel, case: GrpcCase) -> dict[str, Any]:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    if case.method == "Check":
        method = channel.unary_unary("/grpc.health.v1.Health/Check", None, health.HealthCheckResponse.FromString)
        return _readable(method(case.message().SerializeToString(), timeout=TIMEOUT, metadata=case.metadata))
    return _readable(getattr(stub, case.method)(case.message(), timeout=TIMEOUT, metadata=case.metadata))


def _streamed(channel: grpc.Channel, case: GrpcCase) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    answered = threading.Semaphore(0)

    def messages() -> Iterator[Message]:
        yield case.message()
        for build in case.more:
            answered.acquire(timeout=TIMEOUT)
            yield build()

    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    for answer in stub.ModelStreamInfer(messages(), timeout=TIMEOUT, metadata=case.metadata):
        answers.append(_readable(answer))
        answered.release()
    return {"answers": answers}


def _readable(answer: Message) -> dict[str, Any]:
    content: dict[str, Any] = MessageToDict(answer, preserving_proto_field_name=True)
    return _sorted(content)


def _sorted(value: Any) -> Any:
    """Maps of messages have no order."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def infer(
    *tensors: Mapping[str, Any],
    model: str = "add_sub",
    version: str = "",
    raw: tuple[bytes, ...] = (),
    outputs: tuple[str, ...] = (),
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    request_id: str = "",
) -> Callable[[], Message]:
    """A ModelInfer message; a tensor's `contents` go into the field their datatype has."""

    def build() -> Message:
        message: Any = service_pb2.ModelInferRequest(model_name=model, model_version=version, id=request_id)
        for tensor in tensors:
            message.inputs.append(service_pb2.ModelInferRequest.InferInputTensor(**tensor))
        for name in outputs:
            message.outputs.append(service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name))
        message.raw_input_contents.extend(raw)
        for key, value in (parameters or {}).items():
            message.parameters[key].CopyFrom(service_pb2.InferParameter(**value))
        built: Message = message
        return built

    return build


def of(name: str, *shape: int, datatype: str = "FP32", **contents: Any) -> dict[str, Any]:
    """An input; keywords are fields of InferTensorContents."""
    filled = {"contents": service_pb2.InferTensorContents(**contents)} if contents else {}
    return {"name": name, "datatype": datatype, "shape": shape or (4,), **filled}


FLOATS = struct.pack("<4f", 1, 2, 3, 4)
LEFT, RIGHT = of("INPUT0"), of("INPUT1")
TYPED = (of("INPUT0", fp32_contents=[1, 2, 3, 4]), of("INPUT1", fp32_contents=[4, 3, 2, 1]))
BOTH_RAW = (FLOATS, FLOATS)


def named(kind: str, **fields: Any) -> Callable[[], Message]:
    return lambda: getattr(service_pb2, kind)(**fields)


def _infer(name: str, message: Callable[[], Message]) -> GrpcCase:
    return GrpcCase(name=name, method="ModelInfer", message=message)


def _misbehave(mode: str) -> GrpcCase:
    contents = of("MODE", 1, datatype="BYTES", bytes_contents=[mode.encode()])
    return _infer(f"a model that does {mode}", infer(contents, model="misbehaves"))


GOOD = [
    _infer("raw tensors", infer(LEFT, RIGHT, raw=BOTH_RAW, request_id="seven")),
    _infer("typed tensors", infer(*TYPED)),
    _infer("one output asked for", infer(*TYPED, outputs=("OUTPUT1",))),
    _infer("strings", infer(of("INPUT0", 2, datatype="BYTES", bytes_contents=[b"a", b""]), model="identity_bytes")),
    _infer(
        "parameters reach the model",
        infer(
            of("INPUT0", 1, datatype="INT32", int_contents=[0]),
            model="echo_parameters",
            outputs=("SEEN",),
            parameters={"i": {"int64_param": 7}, "b": {"bool_param": True}, "s": {"string_param": "t"}},
        ),
    ),
    GrpcCase(name="live", method="ServerLive", message=named("ServerLiveRequest")),
    GrpcCase(name="ready", method="ServerReady", message=named("ServerReadyRequest")),
    GrpcCase(name="model ready", method="ModelReady", message=named("ModelReadyRequest", name="add_sub")),
    GrpcCase(name="failed model ready", method="ModelReady", message=named("ModelReadyRequest", name="fails_to_load")),
    GrpcCase(name="metadata", method="ModelMetadata", message=named("ModelMetadataRequest", name="batched")),
    GrpcCase(name="config", method="ModelConfig", message=named("ModelConfigRequest", name="batched")),
    GrpcCase(name="index", method="RepositoryIndex", message=named("RepositoryIndexRequest")),
]

WRONG = [
    _infer("an unknown model", infer(*TYPED, model="nothing_of_that_name")),
    _infer("a model whose load failed", infer(*TYPED, model="fails_to_load")),
    _infer("an unknown version", infer(*TYPED, version="9")),
    _infer("a version that is no number", infer(*TYPED, version="one")),
    _infer("an input missing", infer(TYPED[0])),
    _infer("an input too many", infer(*TYPED, of("INPUT2", fp32_contents=[1, 2, 3, 4]))),
    _infer("an unknown input for a known one", infer(TYPED[0], of("INPUT9", fp32_contents=[1, 2, 3, 4]))),
    _infer("an input twice", infer(TYPED[0], TYPED[0])),
    _infer("typed and raw tensors", infer(*TYPED, raw=BOTH_RAW)),
    _infer("no data at all", infer(LEFT, RIGHT)),
    _infer("too few raw tensors", infer(LEFT, RIGHT, raw=(FLOATS,))),
    _infer("too many raw tensors", infer(LEFT, RIGHT, raw=(*BOTH_RAW, FLOATS))),
    _infer("a raw tensor too short", infer(LEFT, RIGHT, raw=(FLOATS[:-1], FLOATS))),
    _infer("a raw tensor too long", infer(LEFT, RIGHT, raw=(FLOATS + b"x", FLOATS))),
    _infer("too few typed elements", infer(of("INPUT0", fp32_contents=[1, 2]), TYPED[1])),
    _infer("elements of another type", infer(of("INPUT0", int_contents=[1, 2, 3, 4]), TYPED[1])),
    _infer("typed FP16", infer(of("INPUT0", 1, datatype="FP16", fp32_contents=[1]), model="identity_fp16")),
    _infer("another datatype", infer(of("INPUT0", datatype="INT32", int_contents=[1, 2, 3, 4]), TYPED[1])),
    _infer("an unknown datatype", infer(of("INPUT0", datatype="FP33"), RIGHT, raw=BOTH_RAW)),
    _infer("another shape", infer(of("INPUT0", 3), RIGHT, raw=(FLOATS[:12], FLOATS))),
    _infer("a negative shape", infer(of("INPUT0", -4), RIGHT, raw=BOTH_RAW)),
    _infer(
        "a negative shape where any fits",
        infer(of("INPUT0", -1, datatype="BYTES"), model="identity_bytes", raw=(b"\x01\0\0\0a",)),
    ),
    _infer(
        "a batch of fewer than none",
        infer(of("INPUT0", -1, 4), of("INPUT1", -1, 4), model="batched", raw=BOTH_RAW),
    ),
    _infer("a batch too large", infer(of("INPUT0", 9, 4), of("INPUT1", 9, 4), model="batched", raw=(FLOATS * 9,) * 2)),
    _infer("an unknown output", infer(*TYPED, outputs=("OUTPUT9",))),
    _infer("an output twice", infer(*TYPED, outputs=("OUTPUT0", "OUTPUT0"))),
    _infer("a reserved parameter", infer(*TYPED, parameters={"triton_secret": {"int64_param": 1}})),
    _infer("priority that is text", infer(*TYPED, parameters={"priority": {"string_param": "high"}})),
    _infer("timeout that is text", infer(*TYPED, parameters={"timeout": {"string_param": "long"}})),
    _infer("sequence_id of 129 characters", infer(*TYPED, parameters={"sequence_id": {"string_param": "x" * 129}})),
    _infer("sequence_id that is a bool", infer(*TYPED, parameters={"sequence_id": {"bool_param": True}})),
    _infer("sequence_start that is a number", infer(*TYPED, parameters={"sequence_start": {"int64_param": 1}})),
    _infer("a decoupled model", infer(of("COUNT", 1, datatype="INT32", int_contents=[1]), model="decoupled")),
    _misbehave("raise_value_error:on purpose"),
    *(
        _misbehave(f"error_with_code:{code}")
        for code in ("UNKNOWN", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")
    ),
    GrpcCase(name="unknown metadata", method="ModelMetadata", message=named("ModelMetadataRequest", name="unknown")),
    GrpcCase(name="unknown config", method="ModelConfig", message=named("ModelConfigRequest", name="unknown")),
    GrpcCase(name="unknown ready", method="ModelReady", message=named("ModelReadyRequest", name="unknown")),
    GrpcCase(name="unknown stats", method="ModelStatistics", message=named("ModelStatisticsRequest", name="unknown")),
    GrpcCase(
        name="a load that is not allowed",
        method="RepositoryModelLoad",
        message=named("RepositoryModelLoadRequest", model_name="add_sub"),
    ),
    GrpcCase(
        name="an unload that is not allowed",
        method="RepositoryModelUnload",
        message=named("RepositoryModelUnloadRequest", model_name="add_sub"),
    ),
]

CASES = [*GOOD, *WRONG]
