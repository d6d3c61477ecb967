"""Calls to other models (BLS), and what a backend may ask about the server."""

from __future__ import annotations

import ctypes
import json
from typing import Any, Dict, List, Optional, Tuple, Union

from naiad_stub.calls import HostCalls, PendingCall
from naiad_stub.exceptions import TritonModelException
from naiad_stub.native import memory
from naiad_stub.native.call_delivery import CallDelivery
from naiad_stub.native.core import Core
from naiad_stub.native.errors import ALREADY_EXISTS, INTERNAL, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ApiCallError
from naiad_stub.native.functions.model import check_config_version
from naiad_stub.native.functions.requests import HeldParameter
from naiad_stub.native.functions.values import ValueFunctions
from naiad_stub.native.handles import HandleTable
from naiad_stub.native.memory import CPU, CPU_PINNED, Shape, Text
from naiad_stub.queries import QueryError, ServerQueries
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.runtime import ModelControl
from naiad_stub.tensor import Tensor

_P, _U32 = ctypes.c_size_t, ctypes.c_uint32
_alloc_type = ctypes.CFUNCTYPE(_P, _P, ctypes.c_char_p, _P, ctypes.c_int32, ctypes.c_int64, _P, _P, _P, _P, _P)
_free_type = ctypes.CFUNCTYPE(_P, _P, _P, _P, _P, ctypes.c_int32, ctypes.c_int64)
_start_type = ctypes.CFUNCTYPE(_P, _P, _P)
_attributes_type = ctypes.CFUNCTYPE(_P, _P, ctypes.c_char_p, _P, _P, _P)
_release_type = ctypes.CFUNCTYPE(None, _P, _U32, _P)
_complete_type = ctypes.CFUNCTYPE(None, _P, _U32, _P)
_trace_release_type = ctypes.CFUNCTYPE(None, _P, _P)

_RELEASE_ALL = 1
_FINAL = 1
_ONE_TO_ONE, _DECOUPLED = 1, 2
_BATCH_UNKNOWN, _BATCH_FIRST_DIMENSION = 1, 2
_INDEX_READY = 1
_LATEST = -1


class Allocator:
    """A TRITONSERVER_ResponseAllocator.

    Attributes:
        alloc: Address of the function that allocates an output.
        release: Address of the function that frees one.
        start: Address of the function that is called before a response; 0 without one.
        attributes: Address of the function that sets buffer attributes; 0 without one.
    """

    __slots__ = ("alloc", "attributes", "release", "start")

    def __init__(self, alloc: int, release: int, start: int) -> None:
        self.alloc = alloc
        self.release = release
        self.start = start
        self.attributes = 0


class OutgoingInput:
    """An input of a request that a backend makes.

    Attributes:
        code: Number of its datatype.
        shape: Its shape.
        parts: Address and size of its buffers, in order.
    """

    __slots__ = ("code", "parts", "shape")

    def __init__(self, code: int, shape: Tuple[int, ...]) -> None:
        self.code = code
        self.shape = shape
        self.parts: List[Tuple[int, int]] = []

    def view(self) -> memoryview:
        """Its bytes: those of the backend's buffer if there is one."""
        parts = [(address, size) for address, size in self.parts if size]
        if len(parts) == 1:
            return memory.view_at(*parts[0])
        return memoryview(b"".join([memory.read_bytes(*part) for part in parts]))


class OutgoingRequest:
    """A TRITONSERVER_InferenceRequest."""

    __slots__ = (
        "allocator",
        "allocator_userp",
        "call",
        "complete",
        "complete_userp",
        "correlation",
        "flags",
        "id",
        "inputs",
        "is_cancelled",
        "kept",
        "model",
        "outputs",
        "parameters",
        "priority",
        "release",
        "release_userp",
        "timeout",
        "version",
    )

    def __init__(self, model: str, version: int) -> None:
        self.model = model
        self.version = version
        self.id = ""
        self.flags = 0
        self.correlation: Union[int, str] = 0
        self.priority = 0
        self.timeout = 0
        self.inputs: Dict[str, OutgoingInput] = {}
        self.outputs: List[str] = []
        self.parameters: Dict[str, Any] = {}
        self.allocator = self.allocator_userp = 0
        self.complete = self.complete_userp = 0
        self.release = self.release_userp = 0
        self.call: Optional[PendingCall] = None
        self.is_cancelled = False
        self.kept: List[Any] = []


class IncomingOutput:
    """An output of a response to a backend's request, in memory that the backend's allocator returned."""

    __slots__ = ("address", "code", "memory_id", "memory_type", "name", "shape", "size", "sizes", "userp")

    def __init__(self, tensor: Tensor, size: int) -> None:
        self.name = Text(tensor._name)
        self.code = tensor._code
        self.shape = Shape(tensor._shape)
        self.sizes = tensor._shape
        self.size = size
        self.address = self.userp = 0
        self.memory_type, self.memory_id = CPU, 0


class IncomingResponse:
    """A TRITONSERVER_InferenceResponse."""

    __slots__ = ("allocator", "error", "id", "model", "outputs", "parameters", "version")

    def __init__(self, request: OutgoingRequest, version: int) -> None:
        self.model = Text(request.model)
        self.version = request.version if version == _LATEST else version
        self.id = Text(request.id)
        self.allocator = request.allocator
        self.error = 0
        self.outputs: List[IncomingOutput] = []
        self.parameters: List[HeldParameter] = []


class CallFunctions:
    """Functions on requests that a backend makes, on their responses, and on the server."""

    def __init__(
        self,
        core: Core,
        values: ValueFunctions,
        control: ModelControl,
        queries: Optional[ServerQueries],
        calls: Optional[HostCalls],
    ) -> None:
        self._core = core
        self._values = values
        self._control = control
        self._queries = queries
        self._calls = calls
        self._delivery = None if calls is None or queries is None else CallDelivery(queries.channel, calls)
        self._requests: HandleTable[OutgoingRequest] = HandleTable("TRITONSERVER_InferenceRequest")
        self._responses: HandleTable[IncomingResponse] = HandleTable("TRITONSERVER_InferenceResponse")
        self._allocators: HandleTable[Allocator] = HandleTable("TRITONSERVER_ResponseAllocator")

    # -- allocators -----------------------------------------------------------------------------------------------

    def server_response_allocator_new(self, allocator: int, alloc: int, release: int, start: int) -> int:
        memory.set_uint64(allocator, self._allocators.add(Allocator(alloc, release, start)))
        return 0

    def server_response_allocator_set_buffer_attributes_function(self, allocator: int, attributes: int) -> int:
        self._allocators[allocator].attributes = attributes
        return 0

    def server_response_allocator_set_query_function(self, allocator: int, query: int) -> int:
        self._allocators[allocator]  # there is one kind of memory, so nothing needs to be asked
        return 0

    def server_response_allocator_delete(self, allocator: int) -> int:
        self._allocators.remove(allocator)
        return 0

    # -- requests -------------------------------------------------------------------------------------------------

    def server_inference_request_new(self, request: int, server: int, model: Optional[bytes], version: int) -> int:
        self._core.servers[server]
        made = OutgoingRequest(memory.text_of(model, "the model's name"), version)
        memory.set_uint64(request, self._requests.add(made))
        return 0

    def server_inference_request_delete(self, request: int) -> int:
        if self._requests[request].call is not None:
            raise ApiCallError(INTERNAL, "a request must not be deleted before its release callback was called")
        self._requests.remove(request)
        return 0

    def server_inference_request_id(self, request: int, id_: int) -> int:
        self._lend(request, id_, self._requests[request].id)
        return 0

    def server_inference_request_set_id(self, request: int, id_: Optional[bytes]) -> int:
        self._requests[request].id = memory.text_of(id_, "the request's id")
        return 0

    def server_inference_request_flags(self, request: int, flags: int) -> int:
        memory.set_uint32(flags, self._requests[request].flags)
        return 0

    def server_inference_request_set_flags(self, request: int, flags: int) -> int:
        self._requests[request].flags = flags
        return 0

    def server_inference_request_correlation_id(self, request: int, id_: int) -> int:
        correlation = self._requests[request].correlation
        if isinstance(correlation, str):
            raise ApiCallError(INVALID_ARG, "given request's correlation id is not an unsigned int")
        memory.set_uint64(id_, correlation)
        return 0

    def server_inference_request_correlation_id_string(self, request: int, id_: int) -> int:
        correlation = self._requests[request].correlation
        if not isinstance(correlation, str):
            raise ApiCallError(INVALID_ARG, "given request's correlation id is not a string")
        self._lend(request, id_, correlation)
        return 0

    def server_inference_request_set_correlation_id(self, request: int, id_: int) -> int:
        self._requests[request].correlation = id_
        return 0

    def server_inference_request_set_correlation_id_string(self, request: int, id_: Optional[bytes]) -> int:
        self._requests[request].correlation = memory.text_of(id_, "the correlation id")
        return 0

    def server_inference_request_cancel(self, request: int) -> int:
        found = self._requests[request]
        found.is_cancelled = True
        if found.call is not None and self._calls is not None:
            self._calls.cancel(found.call)
        return 0

    def server_inference_request_is_cancelled(self, request: int, cancelled: int) -> int:
        memory.set_bool(cancelled, self._requests[request].is_cancelled)
        return 0

    def server_inference_request_priority(self, request: int, priority: int) -> int:
        memory.set_uint32(priority, self._requests[request].priority & 0xFFFFFFFF)
        return 0

    def server_inference_request_priority_uint64(self, request: int, priority: int) -> int:
        memory.set_uint64(priority, self._requests[request].priority)
        return 0

    def server_inference_request_set_priority(self, request: int, priority: int) -> int:
        self._requests[request].priority = priority
        return 0

    def server_inference_request_set_priority_uint64(self, request: int, priority: int) -> int:
        return self.server_inference_request_set_priority(request, priority)

    def server_inference_request_timeout_microseconds(self, request: int, timeout: int) -> int:
        memory.set_uint64(timeout, self._requests[request].timeout)
        return 0

    def server_inference_request_set_timeout_microseconds(self, request: int, timeout: int) -> int:
        self._requests[request].timeout = timeout
        return 0

    def server_inference_request_add_input(
        self, request: int, name: Optional[bytes], datatype: int, shape: int, dims: int
    ) -> int:
        found = self._requests[request]
        text = memory.text_of(name, "the input's name")
        if text in found.inputs:
            about = f"[request id: {found.id or '<id_unknown>'}] "
            raise ApiCallError(INVALID_ARG, f"{about}input '{text}' already exists in request")
        found.inputs[text] = OutgoingInput(datatype, memory.read_int64s(shape, dims))
        return 0

    def server_inference_request_remove_input(self, request: int, name: Optional[bytes]) -> int:
        self._input(request, name)
        del self._requests[request].inputs[memory.text_of(name, "the input's name")]
        return 0

    def server_inference_request_remove_all_inputs(self, request: int) -> int:
        self._requests[request].inputs.clear()
        return 0

    def server_inference_request_append_input_data(
        self, request: int, name: Optional[bytes], base: int, size: int, memory_type: int, memory_type_id: int
    ) -> int:
        found = self._input(request, name)
        if memory_type not in {CPU, CPU_PINNED}:
            raise ApiCallError(UNSUPPORTED, "inputs of calls in GPU memory are not supported: copy them to the CPU")
        found.parts.append((base, size))
        return 0

    def server_inference_request_append_input_data_with_host_policy(
        self,
        request: int,
        name: Optional[bytes],
        base: int,
        size: int,
        memory_type: int,
        memory_type_id: int,
        policy: Optional[bytes],
    ) -> int:
        return self.server_inference_request_append_input_data(request, name, base, size, memory_type, memory_type_id)

    def server_inference_request_append_input_data_with_buffer_attributes(
        self, request: int, name: Optional[bytes], base: int, attributes: int
    ) -> int:
        found = self._core.buffer_attributes[attributes]
        return self.server_inference_request_append_input_data(
            request, name, base, found.byte_size, found.memory_type, found.memory_type_id
        )

    def server_inference_request_remove_all_input_data(self, request: int, name: Optional[bytes]) -> int:
        self._input(request, name).parts.clear()
        return 0

    def _input(self, request: int, name: Optional[bytes]) -> OutgoingInput:
        text = memory.text_of(name, "the input's name")
        found = self._requests[request].inputs.get(text)
        if found is None:
            raise ApiCallError(INVALID_ARG, f"input '{text}' does not exist in request")
        return found

    def server_inference_request_add_requested_output(self, request: int, name: Optional[bytes]) -> int:
        self._requests[request].outputs.append(memory.text_of(name, "the output's name"))
        return 0

    def server_inference_request_remove_requested_output(self, request: int, name: Optional[bytes]) -> int:
        text = memory.text_of(name, "the output's name")
        outputs = self._requests[request].outputs
        if text in outputs:
            outputs.remove(text)
        return 0

    def server_inference_request_remove_all_requested_outputs(self, request: int) -> int:
        self._requests[request].outputs.clear()
        return 0

    def server_inference_request_set_release_callback(self, request: int, release: int, userp: int) -> int:
        found = self._requests[request]
        found.release, found.release_userp = release, userp
        return 0

    def server_inference_request_set_response_callback(
        self, request: int, allocator: int, allocator_userp: int, complete: int, userp: int
    ) -> int:
        found = self._requests[request]
        self._allocators[allocator]
        found.allocator, found.allocator_userp = allocator, allocator_userp
        found.complete, found.complete_userp = complete, userp
        return 0

    def server_inference_request_set_string_parameter(
        self, request: int, key: Optional[bytes], value: Optional[bytes]
    ) -> int:
        return self._set_parameter(request, key, memory.text_of(value, "the parameter's value"))

    def server_inference_request_set_int_parameter(self, request: int, key: Optional[bytes], value: int) -> int:
        return self._set_parameter(request, key, value)

    def server_inference_request_set_bool_parameter(self, request: int, key: Optional[bytes], value: bool) -> int:
        return self._set_parameter(request, key, value)

    def server_inference_request_set_double_parameter(self, request: int, key: Optional[bytes], value: float) -> int:
        return self._set_parameter(request, key, value)

    def _set_parameter(self, request: int, key: Optional[bytes], value: Any) -> int:
        self._requests[request].parameters[memory.text_of(key, "the parameter's name")] = value
        return 0

    def _lend(self, request: int, address: int, value: str) -> None:
        text = Text(value)
        self._requests[request].kept.append(text)
        memory.set_uint64(address, text.address)

    # -- calls ----------------------------------------------------------------------------------------------------

    def server_server_infer_async(self, server: int, request: int, trace: int) -> int:
        self._core.servers[server]
        found = self._requests[request]
        if self._calls is None or self._delivery is None:
            raise ApiCallError(UNAVAILABLE, "no other model can be called while a configuration is completed")
        if found.call is not None:
            raise ApiCallError(ALREADY_EXISTS, "the request is in progress")
        if not found.complete or not found.release:
            raise ApiCallError(INVALID_ARG, "the request has no response callback or no release callback")
        held = self._core.traces.get(trace)

        def on_result(response: Optional[InferenceResponse], version: int, is_last: bool) -> None:
            self._on_result(request, found, response, version, is_last)
            if is_last and held is not None and held.release:
                _trace_release_type(held.release)(trace, held.userp)

        def on_start(call: PendingCall) -> None:
            found.call, found.is_cancelled = call, False

        try:
            self._delivery.start(self._made(found, trace), on_start, on_result)
        except BaseException as error:
            found.call = None
            if isinstance(error, TritonModelException):
                raise ApiCallError(UNAVAILABLE, str(error)) from None
            raise
        return 0

    def _made(self, found: OutgoingRequest, trace: int) -> InferenceRequest:
        inputs = [Tensor._received(name, each.code, each.shape, each.view()) for name, each in found.inputs.items()]
        parameters = dict(found.parameters)
        if found.priority:
            parameters["priority"] = found.priority
        made = InferenceRequest._received(
            found.id,
            found.correlation,
            found.flags,
            found.timeout,
            inputs,
            tuple(found.outputs),
            json.dumps(parameters) if parameters else "",
            None,
        )
        made._model_name, made._model_version = found.model, found.version
        held = self._core.traces.get(trace)
        made._trace = None if held is None else held.trace
        return made

    def _on_result(
        self,
        handle: int,
        request: OutgoingRequest,
        response: Optional[InferenceResponse],
        version: int,
        is_last: bool,
    ) -> None:
        """Hand a result to the backend; called on a thread that delivers."""
        incoming = 0 if response is None else self._responses.add(self._incoming(request, response, version))
        if is_last:
            request.call = None
        _complete_type(request.complete)(incoming, _FINAL if is_last else 0, request.complete_userp)
        if is_last:
            # After the response, as the reference does: until now the inputs might have been in use.
            _release_type(request.release)(handle, _RELEASE_ALL, request.release_userp)

    def _incoming(self, request: OutgoingRequest, response: InferenceResponse, version: int) -> IncomingResponse:
        made = IncomingResponse(request, version)
        error = response._error
        if error is not None:
            # The host's text is for `pb_utils`; the API's text has no such prefix.
            prefix = f"Model {request.model} - Error when running inference: "
            made.error = self._core.new_error(int(error.code()), error.message().replace(prefix, "", 1))
            return made
        made.parameters = [
            HeldParameter(name, value) for name, value in json.loads(response._parameters or "{}").items()
        ]
        try:
            self._allocate(made, request, response._outputs)
        except ApiCallError as failure:
            self._free(made)
            made.error = self._core.new_error(failure.code, failure.message)
        return made

    def _allocate(self, made: IncomingResponse, request: OutgoingRequest, tensors: List[Tensor]) -> None:
        allocator = self._allocators[request.allocator]
        if allocator.start:
            self._check(_start_type(allocator.start)(request.allocator, request.allocator_userp))
        for tensor in tensors:
            view = tensor._payload()[2]
            output = IncomingOutput(tensor, len(view))
            buffer, userp, kind, number = _P(), _P(), ctypes.c_int32(CPU), ctypes.c_int64()
            self._check(
                _alloc_type(allocator.alloc)(
                    request.allocator,
                    tensor._name.encode(),
                    len(view),
                    CPU,
                    0,
                    request.allocator_userp,
                    ctypes.addressof(buffer),
                    ctypes.addressof(userp),
                    ctypes.addressof(kind),
                    ctypes.addressof(number),
                )
            )
            output.address, output.userp = buffer.value, userp.value
            output.memory_type, output.memory_id = kind.value, number.value
            made.outputs.append(output)
            if kind.value not in {CPU, CPU_PINNED}:
                raise ApiCallError(UNSUPPORTED, f"the allocator put output '{tensor._name}' into GPU memory")
            if len(view):
                memory.view_at(buffer.value, len(view))[:] = view

    def _check(self, error: int) -> None:
        if error:
            raise self._core.take_error(error)

    # -- responses ------------------------------------------------------------------------------------------------

    def server_inference_response_delete(self, response: int) -> int:
        found = self._responses.remove(response)
        self._free(found)
        if found.error:
            self._core.errors.pop(found.error, None)
        return 0

    def _free(self, response: IncomingResponse) -> None:
        allocator = self._allocators.get(response.allocator)
        outputs, response.outputs = response.outputs, []
        if allocator is None or not allocator.release:
            return
        for each in outputs:
            error = _free_type(allocator.release)(
                response.allocator, each.address, each.userp, each.size, each.memory_type, each.memory_id
            )
            if error:
                self._core.errors.pop(error, None)

    def server_inference_response_error(self, response: int) -> int:
        return self._responses[response].error

    def server_inference_response_model(self, response: int, name: int, version: int) -> int:
        found = self._responses[response]
        memory.set_uint64(name, found.model.address)
        memory.set_int64(version, found.version)
        return 0

    def server_inference_response_id(self, response: int, id_: int) -> int:
        memory.set_uint64(id_, self._responses[response].id.address)
        return 0

    def server_inference_response_parameter_count(self, response: int, count: int) -> int:
        memory.set_uint32(count, len(self._responses[response].parameters))
        return 0

    def server_inference_response_parameter(self, response: int, index: int, name: int, kind: int, value: int) -> int:
        parameters = self._responses[response].parameters
        if index >= len(parameters):
            raise ApiCallError(INVALID_ARG, f"out of bounds index {index}, response has {len(parameters)} parameters")
        memory.set_uint64(name, parameters[index].name.address)
        memory.set_uint32(kind, parameters[index].kind)
        memory.set_uint64(value, parameters[index].address)
        return 0

    def server_inference_response_output_count(self, response: int, count: int) -> int:
        memory.set_uint32(count, len(self._responses[response].outputs))
        return 0

    def server_inference_response_output(
        self,
        response: int,
        index: int,
        name: int,
        datatype: int,
        shape: int,
        dims: int,
        base: int,
        size: int,
        memory_type: int,
        memory_type_id: int,
        userp: int,
    ) -> int:
        outputs = self._responses[response].outputs
        if index >= len(outputs):
            raise ApiCallError(INVALID_ARG, f"out of bounds index {index}, response has {len(outputs)} outputs")
        found = outputs[index]
        memory.set_uint64(name, found.name.address)
        memory.set_uint32(datatype, found.code)
        memory.set_uint64(shape, found.shape.address)
        memory.set_uint64(dims, len(found.sizes))
        memory.set_uint64(base, found.address)
        memory.set_uint64(size, found.size)
        memory.set_uint32(memory_type, found.memory_type)
        memory.set_int64(memory_type_id, found.memory_id)
        memory.set_uint64(userp, found.userp)
        return 0

    # -- the server -----------------------------------------------------------------------------------------------

    def server_server_is_live(self, server: int, live: int) -> int:
        self._core.servers[server]
        memory.set_bool(live, True)
        return 0

    def server_server_is_ready(self, server: int, ready: int) -> int:
        self._core.servers[server]
        is_ready = self._queries is not None and self._ask("server.ready") == "1"
        memory.set_bool(ready, is_ready)
        return 0

    def server_server_model_is_ready(self, server: int, model: Optional[bytes], version: int, ready: int) -> int:
        self._core.servers[server]
        name = memory.text_of(model, "the model's name")
        text = "" if version == _LATEST else str(version)
        try:
            memory.set_bool(ready, self._control.is_model_ready(name, text))
        except TritonModelException:  # as the reference: a model that is not there is not ready
            memory.set_bool(ready, False)
        return 0

    def server_server_model_config(
        self, server: int, model: Optional[bytes], version: int, config_version: int, config: int
    ) -> int:
        self._core.servers[server]
        check_config_version(config_version)
        memory.set_uint64(config, self._core.new_message(self._config(model, version).encode()))
        return 0

    def server_server_model_transaction_properties(
        self, server: int, model: Optional[bytes], version: int, flags: int, voidp: int
    ) -> int:
        self._core.servers[server]
        policy = json.loads(self._config(model, version)).get("model_transaction_policy", {})
        memory.set_uint32(flags, _DECOUPLED if policy.get("decoupled") else _ONE_TO_ONE)
        memory.set_uint64(voidp, 0)
        return 0

    def server_server_model_batch_properties(
        self, server: int, model: Optional[bytes], version: int, flags: int, voidp: int
    ) -> int:
        self._core.servers[server]
        batches = json.loads(self._config(model, version)).get("max_batch_size", 0) > 0
        memory.set_uint32(flags, _BATCH_FIRST_DIMENSION if batches else _BATCH_UNKNOWN)
        memory.set_uint64(voidp, 0)
        return 0

    def server_server_metadata(self, server: int, metadata: int) -> int:
        self._core.servers[server]
        memory.set_uint64(metadata, self._core.new_message(self._ask("server.metadata").encode()))
        return 0

    def server_server_model_metadata(self, server: int, model: Optional[bytes], version: int, metadata: int) -> int:
        self._core.servers[server]
        text = self._ask("model.metadata", **_version_of(model, version))
        memory.set_uint64(metadata, self._core.new_message(text.encode()))
        return 0

    def server_server_model_statistics(self, server: int, model: Optional[bytes], version: int, statistics: int) -> int:
        self._core.servers[server]
        # As in the reference, an empty name asks for all models.
        text = self._ask("model.statistics", **_version_of(model or b"", version))
        memory.set_uint64(statistics, self._core.new_message(text.encode()))
        return 0

    def server_server_model_index(self, server: int, flags: int, index: int) -> int:
        self._core.servers[server]
        if flags & ~_INDEX_READY:
            raise ApiCallError(INVALID_ARG, f"unsupported flags {flags} of the model index")
        text = self._ask("model.index", ready=str(flags))
        memory.set_uint64(index, self._core.new_message(text.encode()))
        return 0

    def _config(self, model: Optional[bytes], version: int) -> str:
        return self._ask("model.config", **_version_of(model, version))

    def _ask(self, subject: str, **fields: str) -> str:
        if self._queries is None:
            raise ApiCallError(UNAVAILABLE, "the server cannot be asked while a configuration is completed")
        try:
            return self._queries.send(subject, fields)
        except QueryError as error:
            raise ApiCallError(error.code, _own_text(error.message)) from None

    def server_server_load_model(self, server: int, model: Optional[bytes]) -> int:
        self._core.servers[server]
        self._control_model(self._control.load_model, memory.text_of(model, "the model's name"), "", None)
        return 0

    def server_server_load_model_with_parameters(
        self, server: int, model: Optional[bytes], parameters: int, count: int
    ) -> int:
        self._core.servers[server]
        config, files = "", {}
        for handle in memory.read_pointers(parameters, count):
            parameter = self._values.parameters[handle]
            if parameter.name == "config":
                config = str(parameter.value)
            else:
                value = parameter.value
                files[parameter.name] = value if isinstance(value, bytes) else str(value).encode()
        name = memory.text_of(model, "the model's name")
        self._control_model(self._control.load_model, name, config, files or None)
        return 0

    def server_server_unload_model(self, server: int, model: Optional[bytes]) -> int:
        self._core.servers[server]
        self._control_model(self._control.unload_model, memory.text_of(model, "the model's name"), False)
        return 0

    def server_server_unload_model_and_dependents(self, server: int, model: Optional[bytes]) -> int:
        self._core.servers[server]
        self._control_model(self._control.unload_model, memory.text_of(model, "the model's name"), True)
        return 0

    def _control_model(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except TritonModelException as error:
            raise ApiCallError(INTERNAL, _own_text(str(error))) from None


def _version_of(model: Optional[bytes], version: int) -> Dict[str, str]:
    """The fields of a query about a version of a model."""
    return {"name": memory.text_of(model, "the model's name"), "version": "" if version == _LATEST else str(version)}


def _own_text(message: str) -> str:
    """The server's own text, without what `pb_utils` puts before it."""
    return message.rpartition("', message: ")[2] if "', message: " in message else message
