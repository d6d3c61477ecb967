"""gRPC calls to the protocol's extensions, to streams and to the health service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.grpc_cases import FLOATS, LEFT, RIGHT, TYPED, GrpcCase, infer, named, of
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2

from naiad.frontends.kserve_grpc import service_pb2 as health

_BOTH_RAW = (FLOATS, FLOATS)


def _case(name: str, method: str, message: Callable[[], Message]) -> GrpcCase:
    return GrpcCase(name=name, method=method, message=message)


def _asked(name: str, *, of_output: dict[str, Any] | None = None, of_input: dict[str, Any] | None = None) -> GrpcCase:
    """An inference with parameters of an output, or of the first input (which then contains no data)."""

    def build() -> Message:
        raw = _BOTH_RAW if of_input is None else (FLOATS,)
        message: Any = infer(LEFT, RIGHT, raw=raw, outputs=("OUTPUT0",))()
        for holder, given in ((message.outputs[0], of_output), (message.inputs[0], of_input)):
            for key, value in (given or {}).items():
                holder.parameters[key].CopyFrom(service_pb2.InferParameter(**value))
        built: Message = message
        return built

    return GrpcCase(name=name, method="ModelInfer", message=build)


def _classes(name: str, **value: Any) -> GrpcCase:
    return _asked(name, of_output={"classification": value})


def _log(name: str, **settings: dict[str, Any]) -> GrpcCase:
    def build() -> Message:
        message = service_pb2.LogSettingsRequest()
        for key, value in settings.items():
            message.settings[key].CopyFrom(service_pb2.LogSettingsRequest.SettingValue(**value))
        return message

    return GrpcCase(name=name, method="LogSettings", message=build)


def _trace(name: str, *, model: str = "", **settings: list[str]) -> GrpcCase:
    def build() -> Message:
        message = service_pb2.TraceSettingRequest(model_name=model)
        for key, values in settings.items():
            message.settings[key].value.extend(values)
        return message

    return GrpcCase(name=name, method="TraceSetting", message=build)


def _load(name: str, **parameters: dict[str, Any]) -> GrpcCase:
    def build() -> Message:
        message = service_pb2.RepositoryModelLoadRequest(model_name="add_sub")
        for key, value in parameters.items():
            message.parameters[key].CopyFrom(service_pb2.ModelRepositoryParameter(**value))
        return message

    return GrpcCase(name=name, method="RepositoryModelLoad", message=build)


def _stream(name: str, *messages: Callable[[], Message], metadata: tuple[tuple[str, str], ...] = ()) -> GrpcCase:
    first, *more = messages
    return GrpcCase(name=name, method="ModelStreamInfer", message=first, more=more, metadata=metadata)


def _repeat(count: int, **given: Any) -> Callable[[], Message]:
    return infer(of("COUNT", 1, datatype="INT32", int_contents=[count]), model="decoupled", **given)


_REGION = {"shared_memory_region": {"string_param": "r"}, "shared_memory_byte_size": {"int64_param": 16}}
_EMPTY_FINAL = {"triton_enable_empty_final_response": {"bool_param": True}}

CASES = [
    _case("health", "Check", health.HealthCheckRequest),
    _case("health of a service by name", "Check", lambda: health.HealthCheckRequest(service="nothing")),
    _classes("the two best classes", int64_param=2),
    _classes("more classes than there are", int64_param=9),
    _classes("no classes at all", int64_param=0),
    _classes("classes less than none", int64_param=-1),
    _classes("classes that are text", string_param="two"),
    _log("log settings"),
    _log("an unknown log setting", what={"uint32_param": 1}),
    _log("a log file", log_file={"string_param": "/tmp/log"}),
    _log("a log format that is none", log_format={"string_param": "loud"}),
    _log("a log level that is text", log_verbose_level={"string_param": "1"}),
    _log("a log switch that is a number", log_info={"uint32_param": 1}),
    _trace("trace settings"),
    _trace("trace settings of a model", model="add_sub"),
    _trace("trace settings of no model", model="nothing"),
    _trace("a trace file", trace_file=["x"]),
    _trace("trace levels with OFF among them", trace_level=["OFF", "TIMESTAMPS"]),
    _trace("a trace rate that is none", trace_rate=["x"]),
    _trace("two trace rates", trace_rate=["1", "2"]),
    _trace("a trace count below any", trace_count=["-2"]),
    _trace("a level without a file", trace_level=["TIMESTAMPS"]),
    _case("regions", "SystemSharedMemoryStatus", named("SystemSharedMemoryStatusRequest")),
    _case("an unknown region", "SystemSharedMemoryStatus", named("SystemSharedMemoryStatusRequest", name="r")),
    _case("forgetting an unknown region", "SystemSharedMemoryUnregister", named("SystemSharedMemoryUnregisterRequest", name="r")),
    _case("forgetting all regions", "SystemSharedMemoryUnregister", named("SystemSharedMemoryUnregisterRequest")),
    _case("a region", "SystemSharedMemoryRegister", named("SystemSharedMemoryRegisterRequest", name="r", key="/none", byte_size=8)),
    _case("CUDA regions", "CudaSharedMemoryStatus", named("CudaSharedMemoryStatusRequest")),
    _case("an unknown CUDA region", "CudaSharedMemoryStatus", named("CudaSharedMemoryStatusRequest", name="r")),
    _case("forgetting all CUDA regions", "CudaSharedMemoryUnregister", named("CudaSharedMemoryUnregisterRequest")),
    _case("a CUDA region", "CudaSharedMemoryRegister", named("CudaSharedMemoryRegisterRequest", name="r", device_id=0, byte_size=8)),
    _asked("an input in an unknown region", of_input=_REGION),
    _asked("an output in an unknown region", of_output=_REGION),
    _case("an index of ready models", "RepositoryIndex", named("RepositoryIndexRequest", ready=True)),
    _case("an index of a repository", "RepositoryIndex", named("RepositoryIndexRequest", repository_name="r")),
    _load("a load with a setting nobody knows", what={"string_param": "x"}),
    _load("a load with a configuration that is a number", config={"int64_param": 1}),
    _load("a load with a file that is text", **{"file:1/model.py": {"string_param": "x"}}),
    _stream("a stream", infer(*TYPED, request_id="one"), infer(*TYPED, request_id="two")),
    _stream("a stream with an unknown model in it", infer(*TYPED, model="nothing", request_id="one"), infer(*TYPED)),
    _stream("a stream with a wrong input", infer(TYPED[0], request_id="one"), infer(*TYPED)),
    _stream("a stream of a decoupled model", _repeat(3, request_id="one")),
    _stream("a stream of a decoupled model with its end", _repeat(2, request_id="one", parameters=_EMPTY_FINAL)),
    _stream("a stream of a decoupled model that says nothing", _repeat(0, parameters=_EMPTY_FINAL)),
    _stream(
        "a stream that an error ends",
        infer(*TYPED, model="nothing"),
        metadata=(("triton_grpc_error", "true"),),
    ),
]  # fmt: skip
