"""Received requests and their inputs."""

from __future__ import annotations

import ctypes
import json
from typing import Any, List, Optional

from naiad_stub.native import memory
from naiad_stub.native.core import Core, NativeInput, NativeRequest
from naiad_stub.native.errors import INVALID_ARG, UNSUPPORTED, ApiCallError
from naiad_stub.native.functions.values import BOOL, DOUBLE, INT, STRING
from naiad_stub.native.memory import Text
from naiad_stub.runtime import ResponseSenders

_RELEASE_ALL, _RELEASE_RESCHEDULE = 1, 2


class HeldParameter:
    """One parameter, at fixed addresses.

    Attributes:
        name: Its name.
        kind: Number of its type.
        address: Where its value is.
    """

    __slots__ = ("_value", "address", "kind", "name")

    def __init__(self, name: str, value: Any) -> None:
        self.name = Text(name)
        self._value: Any
        if isinstance(value, bool):
            self.kind, self._value = BOOL, ctypes.c_bool(value)
        elif isinstance(value, int):
            self.kind, self._value = INT, ctypes.c_int64(value)
        elif isinstance(value, float):
            self.kind, self._value = DOUBLE, ctypes.c_double(value)
        else:
            text = Text(str(value))
            self.kind, self._value = STRING, text
            self.address = text.address
            return
        self.address = ctypes.addressof(self._value)


def held_parameters(text: str) -> List[HeldParameter]:
    """The parameters of JSON text; empty without any."""
    return [HeldParameter(name, value) for name, value in json.loads(text).items()] if text else []


class RequestFunctions:
    """Functions on requests and inputs."""

    def __init__(self, core: Core, senders: Optional[ResponseSenders]) -> None:
        self._core = core
        self._requests = core.requests
        self._inputs = core.inputs
        self._senders = senders

    # -- request --------------------------------------------------------------------------------------------------

    def backend_request_id(self, request: int, id_: int) -> int:
        found = self._requests[request]
        text = Text(found.request._id)
        found.keep(text)
        memory.set_uint64(id_, text.address)
        return 0

    def backend_request_is_cancelled(self, request: int, cancelled: int) -> int:
        record = self._requests[request].recipient.record
        memory.set_bool(cancelled, self._senders is not None and self._senders.is_cancelled(record))
        return 0

    def backend_request_correlation_id(self, request: int, id_: int) -> int:
        found = self._requests[request]
        correlation = found.request._correlation
        if isinstance(correlation, str):
            raise ApiCallError(INVALID_ARG, f"{_about(found)}correlation ID in request is not an unsigned int")
        memory.set_uint64(id_, correlation)
        return 0

    def backend_request_correlation_id_string(self, request: int, id_: int) -> int:
        found = self._requests[request]
        correlation = found.request._correlation
        if not isinstance(correlation, str):
            raise ApiCallError(INVALID_ARG, f"{_about(found)}correlation ID in request is not a string")
        text = Text(correlation)
        found.keep(text)
        memory.set_uint64(id_, text.address)
        return 0

    def backend_inference_request_timeout_microseconds(self, request: int, timeout: int) -> int:
        memory.set_uint64(timeout, self._requests[request].request._timeout)
        return 0

    def backend_request_flags(self, request: int, flags: int) -> int:
        memory.set_uint32(flags, self._requests[request].request._flags & 0xFFFFFFFF)
        return 0

    def backend_request_parameter_count(self, request: int, count: int) -> int:
        memory.set_uint32(count, len(self._parameters(request)))
        return 0

    def backend_request_parameter(self, request: int, index: int, key: int, kind: int, value: int) -> int:
        parameters = self._parameters(request)
        if index >= len(parameters):
            raise ApiCallError(INVALID_ARG, f"out of bounds index {index}: request has {len(parameters)} parameters")
        held = parameters[index]
        memory.set_uint64(key, held.name.address)
        memory.set_uint32(kind, held.kind)
        memory.set_uint64(value, held.address)
        return 0

    def _parameters(self, request: int) -> List[HeldParameter]:
        found = self._requests[request]
        if found.parameters is None:
            found.parameters = held_parameters(found.request._parameters)
        return found.parameters

    def backend_request_input_count(self, request: int, count: int) -> int:
        memory.set_uint32(count, len(self._requests[request].request._inputs))
        return 0

    def backend_request_input_name(self, request: int, index: int, name: int) -> int:
        found = self._requests[request]
        tensors = found.request._inputs
        if index >= len(tensors):
            raise ApiCallError(
                INVALID_ARG, f"{_about(found)}out of bounds index {index}: request has {len(tensors)} inputs"
            )
        self._lend(found, tensors[index]._name, name)
        return 0

    def backend_request_input(self, request: int, name: Optional[bytes], input_: int) -> int:
        found = self._requests[request]
        wanted = memory.text_of(name, "the input's name")
        for index, tensor in enumerate(found.request._inputs):
            if tensor._name == wanted:
                memory.set_uint64(input_, self._input(found, index))
                return 0
        memory.set_uint64(input_, 0)
        raise ApiCallError(INVALID_ARG, f"{_about(found)}unknown request input name {wanted}")

    def backend_request_input_by_index(self, request: int, index: int, input_: int) -> int:
        found = self._requests[request]
        inputs = found.request._inputs
        if index >= len(inputs):
            memory.set_uint64(input_, 0)
            raise ApiCallError(
                INVALID_ARG, f"{_about(found)}out of bounds index {index}: request has {len(inputs)} inputs"
            )
        memory.set_uint64(input_, self._input(found, index))
        return 0

    def _input(self, request: NativeRequest, index: int) -> int:
        inputs, handles = request.request._inputs, request.inputs
        if handles is None:
            handles = request.inputs = [0] * len(inputs)
        handle = handles[index]
        if not handle:
            handle = handles[index] = self._inputs.add(NativeInput(inputs[index]))
        return handle

    def backend_request_output_count(self, request: int, count: int) -> int:
        memory.set_uint32(count, len(_names(self._requests[request])))
        return 0

    def backend_request_output_name(self, request: int, index: int, name: int) -> int:
        found = self._requests[request]
        names = _names(found)
        if index >= len(names):
            memory.set_uint64(name, 0)
            raise ApiCallError(
                INVALID_ARG, f"{_about(found)}out of bounds index {index}: request has {len(names)} requested outputs"
            )
        self._lend(found, names[index], name)
        return 0

    def backend_request_output_buffer_properties(
        self, request: int, name: Optional[bytes], size: int, memory_type: int, memory_type_id: int
    ) -> int:
        self._requests[request]
        memory.set_cpu(memory_type, memory_type_id)
        return 0

    def backend_request_release(self, request: int, flags: int) -> int:
        found = self._requests[request]
        if flags == _RELEASE_RESCHEDULE:
            if not found.thread:
                raise ApiCallError(INVALID_ARG, "a request can be rescheduled only while it is executed")
            found.request._release_flags = _RELEASE_RESCHEDULE
        elif flags != _RELEASE_ALL:
            raise ApiCallError(UNSUPPORTED, f"unsupported request release flags {flags}")
        self.revoke(found)
        return 0

    def revoke(self, request: NativeRequest) -> None:
        """End the life of a request's handle, and of what belongs to it."""
        self._requests.pop(request.handle, None)
        if request.inputs is not None:
            for handle in request.inputs:
                found = self._inputs.pop(handle, None)
                if found is not None and found.attributes:
                    self._core.drop_attributes(found)
        if request.attached is not None:
            for table, handle in request.attached:
                table.pop(handle, None)

    def _lend(self, found: NativeRequest, value: str, address: int) -> None:
        text = self._core.lent.text(value)
        found.keep(text)
        memory.set_uint64(address, text.address)

    # -- input ----------------------------------------------------------------------------------------------------

    def backend_input_properties(
        self, input_: int, name: int, datatype: int, shape: int, dims: int, size: int, buffers: int
    ) -> int:
        found = self._inputs[input_]
        tensor = found.tensor
        lent = self._core.lent
        if name:
            found.name = text = lent.text(tensor._name)
            memory.set_uint64(name, text.address)
        memory.set_uint32(datatype, tensor._code)
        if shape:
            found.shape = sizes = lent.shape(tensor._shape)
            memory.set_uint64(shape, sizes.address)
        memory.set_uint32(dims, len(tensor._shape))
        if size:
            memory.set_uint64(size, len(tensor._view))  # type: ignore[arg-type] # a received tensor has bytes
        memory.set_uint32(buffers, 1)
        return 0

    def backend_input_properties_for_host_policy(self, input_: int, policy: Optional[bytes], *rest: int) -> int:
        return self.backend_input_properties(input_, *rest)

    def backend_input_buffer(
        self, input_: int, index: int, buffer: int, size: int, memory_type: int, memory_type_id: int
    ) -> int:
        found = self._inputs[input_]
        address = self._address(found, index, buffer) if index or not found.address else found.address
        memory.set_uint64(buffer, address)
        memory.set_uint64(size, len(found.tensor._view))  # type: ignore[arg-type] # a received tensor has bytes
        memory.set_uint32(memory_type, memory.CPU)
        memory.set_uint64(memory_type_id, 0)
        return 0

    def backend_input_buffer_for_host_policy(
        self, input_: int, policy: Optional[bytes], index: int, buffer: int, *rest: int
    ) -> int:
        return self.backend_input_buffer(input_, index, buffer, *rest)

    def backend_input_buffer_attributes(self, input_: int, index: int, buffer: int, attributes: int) -> int:
        found = self._inputs[input_]
        memory.set_uint64(buffer, self._address(found, index, buffer))
        size = len(found.tensor._view)  # type: ignore[arg-type] # a received tensor has bytes
        handle = self._core.lend_attributes(found, size)
        memory.set_uint64(attributes, handle)
        return 0

    def _address(self, found: NativeInput, index: int, buffer: int) -> int:
        if index:
            memory.set_uint64(buffer, 0)
            raise ApiCallError(INVALID_ARG, f"out of bounds buffer index {index}, input has 1 buffers")
        if not found.address:
            found.address = memory.address_of(found.tensor._view)
        return found.address


def _names(request: NativeRequest) -> Any:
    names = request.request._outputs
    return names if isinstance(names, (list, tuple)) else list(names)


def _about(request: NativeRequest) -> str:
    """How the reference's texts about a request begin."""
    return f"[request id: {request.request._id or '<id_unknown>'}] "
