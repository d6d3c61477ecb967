"""Versions, names of enumerators, errors, messages, the log, parameters and buffer attributes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Optional

from naiad_stub.datatypes import ITEM_SIZES
from naiad_stub.native import memory
from naiad_stub.native.core import BufferAttributes, Core, NativeError, NativeMessage
from naiad_stub.native.errors import CODE_NAMES, INVALID_ARG, ApiCallError
from naiad_stub.native.handles import HandleTable
from naiad_stub.native.signatures import API_VERSION, SERVER_API_VERSION
from naiad_stub.primitives import allocate_lock

if TYPE_CHECKING:
    from naiad_stub.native.device_memory import DeviceHeap

DATATYPE_NAMES = (
    "<invalid>",
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
    "BF16",
)
KIND_NAMES = ("AUTO", "CPU", "GPU", "MODEL")
STRING, INT, BOOL, DOUBLE, BYTES = range(5)
PARAMETER_NAMES = ("STRING", "INT", "BOOL", "DOUBLE", "BYTES")
VERBOSE = 3


class NativeParameter:
    """A TRITONSERVER_Parameter.

    Attributes:
        name: Its name.
        kind: Number of its type.
        value: Its value.
    """

    __slots__ = ("kind", "name", "value")

    def __init__(self, name: str, kind: int, value: Any) -> None:
        self.name = name
        self.kind = kind
        self.value = value


class ValueFunctions:
    """Functions on plain values."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = allocate_lock()
        self._devices: Optional[DeviceHeap] = None
        self.parameters: HandleTable[NativeParameter] = HandleTable("TRITONSERVER_Parameter")

    def backend_api_version(self, major: int, minor: int) -> int:
        memory.set_uint32(major, API_VERSION[0])
        memory.set_uint32(minor, API_VERSION[1])
        return 0

    def server_api_version(self, major: int, minor: int) -> int:
        memory.set_uint32(major, SERVER_API_VERSION[0])
        memory.set_uint32(minor, SERVER_API_VERSION[1])
        return 0

    # -- names ----------------------------------------------------------------------------------------------------

    def server_data_type_string(self, datatype: int) -> int:
        return self._name(DATATYPE_NAMES, datatype, DATATYPE_NAMES[0])

    def server_string_to_data_type(self, name: Optional[bytes]) -> int:
        text = (name or b"").decode("utf-8", "replace")
        return DATATYPE_NAMES.index(text) if text in DATATYPE_NAMES else 0

    def server_data_type_byte_size(self, datatype: int) -> int:
        return ITEM_SIZES[datatype] if 0 <= datatype < len(ITEM_SIZES) else 0

    def server_memory_type_string(self, memory_type: int) -> int:
        return self._name(memory.MEMORY_NAMES, memory_type, "<invalid>")

    def server_instance_group_kind_string(self, kind: int) -> int:
        return self._name(KIND_NAMES, kind, "<invalid>")

    def server_parameter_type_string(self, kind: int) -> int:
        return self._name(PARAMETER_NAMES, kind, "<invalid>")

    def _name(self, names: Any, number: int, other: str) -> int:
        return self._core.static_text(names[number] if 0 <= number < len(names) else other)

    # -- errors ---------------------------------------------------------------------------------------------------

    def server_error_new(self, code: int, message: Optional[bytes]) -> int:
        return self._core.new_error(
            code if 0 <= code < len(CODE_NAMES) else 0, (message or b"").decode(errors="replace")
        )

    def server_error_delete(self, error: int) -> int:
        self._core.errors.pop(error, None)
        return 0

    def server_error_code(self, error: int) -> int:
        return self._error(error).code

    def server_error_code_string(self, error: int) -> int:
        return self._core.static_text(CODE_NAMES[self._error(error).code])

    def server_error_message(self, error: int) -> int:
        return self._error(error).text.address

    def _error(self, handle: int) -> NativeError:
        # These functions cannot fail, so a handle that is not of an error must not raise: a null text would crash most
        # backends, far from the cause.
        error = self._core.errors.get(handle)
        if error is None:
            error = NativeError(INVALID_ARG, "this TRITONSERVER_Error was deleted before, or never existed")
            self._core.static_text("")
            self._core.errors[handle] = error
        return error

    # -- messages -------------------------------------------------------------------------------------------------

    def server_message_new_from_serialized_json(self, message: int, base: int, size: int) -> int:
        data = memory.read_bytes(base, size)
        try:
            json.loads(data)
        except ValueError as error:
            raise ApiCallError(INVALID_ARG, f"failed to parse the message into JSON: {error}") from None
        memory.set_uint64(message, self._core.messages.add(NativeMessage(data, is_owned=True)))
        return 0

    def server_message_delete(self, message: int) -> int:
        if not self._core.messages[message].is_owned:
            raise ApiCallError(INVALID_ARG, "the message belongs to the server, and a backend must not delete it")
        self._core.messages.remove(message)
        return 0

    def server_message_serialize_to_json(self, message: int, base: int, size: int) -> int:
        text = self._core.messages[message].text
        memory.set_uint64(base, text.address)
        memory.set_uint64(size, text.size)
        return 0

    # -- the log --------------------------------------------------------------------------------------------------

    def server_log_is_enabled(self, level: int) -> int:
        return int(0 <= level <= VERBOSE and bool(self._core.log_levels >> level & 1))

    def server_log_message(self, level: int, filename: Optional[bytes], line: int, message: Optional[bytes]) -> int:
        if not 0 <= level <= VERBOSE:
            raise ApiCallError(INVALID_ARG, f"unknown logging level '{level}'")
        if self._core.log_levels >> level & 1:
            file = (filename or b"").decode(errors="replace")
            self._core.log(level, file, max(line, 0), (message or b"").decode(errors="replace"))
        return 0

    # -- parameters -----------------------------------------------------------------------------------------------

    def server_parameter_new(self, name: Optional[bytes], kind: int, value: int) -> int:
        if not value and kind != STRING:
            return 0
        if kind == STRING:
            found: Any = memory.read_text(value)
        elif kind == INT:
            found = memory.read_int64(value)
        elif kind == BOOL:
            found = memory.read_bool(value)
        elif kind == DOUBLE:
            found = memory.read_double(value)
        else:
            return 0  # as the header says for BYTES
        return self.parameters.add(NativeParameter((name or b"").decode(errors="replace"), kind, found))

    def server_parameter_bytes_new(self, name: Optional[bytes], data: int, size: int) -> int:
        value = memory.read_bytes(data, size)
        return self.parameters.add(NativeParameter((name or b"").decode(errors="replace"), BYTES, value))

    def server_parameter_delete(self, parameter: int) -> int:
        self.parameters.pop(parameter, None)
        return 0

    # -- buffer attributes ----------------------------------------------------------------------------------------

    def server_buffer_attributes_new(self, attributes: int) -> int:
        memory.set_uint64(attributes, self._core.buffer_attributes.add(BufferAttributes()))
        return 0

    def server_buffer_attributes_delete(self, attributes: int) -> int:
        if not self._core.buffer_attributes[attributes].is_owned:
            raise ApiCallError(
                INVALID_ARG, "these buffer attributes belong to the server, and a backend must not delete them"
            )
        self._core.buffer_attributes.remove(attributes)
        return 0

    def server_buffer_attributes_set_memory_type_id(self, attributes: int, memory_type_id: int) -> int:
        self._core.buffer_attributes[attributes].memory_type_id = memory_type_id
        return 0

    def server_buffer_attributes_set_memory_type(self, attributes: int, memory_type: int) -> int:
        self._core.buffer_attributes[attributes].memory_type = memory_type
        return 0

    def server_buffer_attributes_set_cuda_ipc_handle(self, attributes: int, handle: int) -> int:
        self._core.buffer_attributes[attributes].cuda_ipc_handle = handle
        return 0

    def server_buffer_attributes_set_byte_size(self, attributes: int, size: int) -> int:
        self._core.buffer_attributes[attributes].byte_size = size
        return 0

    def server_buffer_attributes_memory_type_id(self, attributes: int, memory_type_id: int) -> int:
        memory.set_int64(memory_type_id, self._core.buffer_attributes[attributes].memory_type_id)
        return 0

    def server_buffer_attributes_memory_type(self, attributes: int, memory_type: int) -> int:
        memory.set_uint32(memory_type, self._core.buffer_attributes[attributes].memory_type)
        return 0

    def server_buffer_attributes_cuda_ipc_handle(self, attributes: int, handle: int) -> int:
        memory.set_uint64(handle, self._core.buffer_attributes[attributes].cuda_ipc_handle)
        return 0

    def server_buffer_attributes_byte_size(self, attributes: int, size: int) -> int:
        memory.set_uint64(size, self._core.buffer_attributes[attributes].byte_size)
        return 0

    # -- memory ---------------------------------------------------------------------------------------------------

    def backend_memory_manager_allocate(
        self, manager: int, buffer: int, memory_type: int, memory_type_id: int, size: int
    ) -> int:
        heap = self._core.memory_managers[manager]
        if memory_type == memory.CPU:
            address = heap.allocate(size)
            if not address:
                raise ApiCallError(4, f"{size} bytes of memory cannot be allocated")
        else:
            address = self._device_heap(heap, memory_type).allocate(memory_type, memory_type_id, size)
        memory.set_uint64(buffer, address)
        return 0

    def backend_memory_manager_free(self, manager: int, buffer: int, memory_type: int, memory_type_id: int) -> int:
        heap = self._core.memory_managers[manager]
        if memory_type == memory.CPU:
            is_free = heap.free(buffer)
        else:
            is_free = self._device_heap(heap, memory_type).free(memory_type, buffer)
        if not is_free:
            raise ApiCallError(
                INVALID_ARG, f"no buffer at {buffer:#x} was allocated by this memory manager, or it was freed"
            )
        return 0

    def _device_heap(self, heap: memory.Heap, memory_type: int) -> DeviceHeap:
        if memory_type not in (memory.CPU_PINNED, memory.GPU):
            raise ApiCallError(INVALID_ARG, f"{memory_type} is not a type of memory")
        with self._lock:  # instances that share the process allocate at the same time
            if self._devices is None:
                from naiad_stub.native.device_memory import DeviceHeap

                self._devices = DeviceHeap(heap)
            return self._devices
