"""Memory that backend and guest both see: values behind pointers, texts and arrays that the guest lends, and buffers.

A backend passes addresses. Null pointers for results that it does not need are skipped. Everything that the guest lends
must stay where it is: the `Text` or `Shape` is kept by the object that the backend got it from.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence, Tuple, Union

from naiad_stub.memo import Memo
from naiad_stub.native.errors import INVALID_ARG, ApiCallError

_u64 = ctypes.c_uint64.from_address
_u32 = ctypes.c_uint32.from_address
_double = ctypes.c_double.from_address
# All addresses of a process, as arrays of numbers: an item costs a fifth of an object of ctypes at its address.
_bytes = memoryview((ctypes.c_char * (1 << 62)).from_address(0)).cast("B")
_words = _bytes.cast("Q")
_signed_words = _bytes.cast("q")
_half_words = _bytes.cast("I")
_U64 = (1 << 64) - 1
_U32 = (1 << 32) - 1
_address_in = ctypes.c_void_p.from_buffer
_byte = ctypes.c_char.from_buffer
_address_of = ctypes.addressof

CPU, CPU_PINNED, GPU = 0, 1, 2
MEMORY_NAMES = ("CPU", "CPU_PINNED", "GPU")

_KEPT_TEXTS = 4096


def set_uint64(address: int, value: int) -> None:
    """Write a 64-bit number or a pointer, unless *address* is null."""
    if address & 7:  # in a packed structure
        _u64(address).value = value
    elif address:
        _words[address >> 3] = value & _U64


def set_int64(address: int, value: int) -> None:
    """Write a signed 64-bit number, unless *address* is null."""
    set_uint64(address, value)


def set_uint32(address: int, value: int) -> None:
    """Write a 32-bit number or an enumerator, unless *address* is null."""
    if address & 3:
        _u32(address).value = value
    elif address:
        _half_words[address >> 2] = value & _U32


def set_bool(address: int, value: bool) -> None:  # noqa: FBT001 - the value to write
    """Write a bool, unless *address* is null."""
    if address:
        _bytes[address] = bool(value)


def set_double(address: int, value: float) -> None:
    """Write a double, unless *address* is null."""
    if address:
        _double(address).value = value


def set_cpu(memory_type: int, memory_type_id: int) -> None:
    """Write that a buffer is in the memory of the CPU."""
    set_uint32(memory_type, CPU)
    set_uint64(memory_type_id, 0)


def read_int64(address: int) -> int:
    """The signed 64-bit number at *address*."""
    return read_int64s(address, 1)[0]


def read_bool(address: int) -> bool:
    """The bool at *address*."""
    return _bytes[address] != 0


def read_double(address: int) -> float:
    """The double at *address*."""
    return float(_double(address).value)


def read_bytes(address: int, size: int) -> bytes:
    """*size* bytes at *address*."""
    return ctypes.string_at(address, size) if size else b""


def read_text(address: int) -> str:
    """The null-terminated text at *address*."""
    return ctypes.string_at(address).decode("utf-8", "replace") if address else ""


def read_int64s(address: int, count: int) -> Tuple[int, ...]:
    """*count* signed 64-bit numbers at *address*."""
    if address & 7:
        return tuple((ctypes.c_int64 * count).from_address(address))
    first = address >> 3
    return tuple(_signed_words[first : first + count])


def read_doubles(address: int, count: int) -> Tuple[float, ...]:
    """*count* doubles at *address*."""
    return tuple((ctypes.c_double * count).from_address(address)) if count else ()


def read_pointers(address: int, count: int) -> Tuple[int, ...]:
    """*count* pointers at *address*."""
    return tuple((ctypes.c_size_t * count).from_address(address)) if count else ()


def text_of(value: Optional[bytes], what: str) -> str:
    """The text of a string argument.

    Raises:
        ApiCallError: If it is a null pointer.
    """
    if value is None:
        raise ApiCallError(INVALID_ARG, f"{what} is a null pointer")
    return value.decode("utf-8", "replace")


class Text:
    """A null-terminated text at a fixed address, for as long as this object lives.

    Attributes:
        address: Where it is.
        size: Its bytes, without the terminator.
    """

    __slots__ = ("_bytes", "_pointer", "address", "size")

    def __init__(self, value: Union[str, bytes]) -> None:
        self._bytes = value.encode("utf-8", "replace") if isinstance(value, str) else value
        self._pointer = ctypes.c_char_p(self._bytes)  # of a bytes object, which never moves
        self.address: int = _address_in(self._pointer).value or 0
        self.size = len(self._bytes)


class Shape:
    """The sizes of a tensor's dimensions at a fixed address, for as long as this object lives.

    Attributes:
        address: Where they are.
    """

    __slots__ = ("_array", "address")

    def __init__(self, sizes: Sequence[int]) -> None:
        self._array = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        self.address = _address_of(self._array)


class Lent:
    """Texts and shapes that repeat from request to request: made once, and found by their value.

    What it returns must be kept by the object that it was lent for, since a full memo forgets everything.
    """

    __slots__ = ("_shapes", "_texts")

    def __init__(self) -> None:
        self._texts: Memo[str, Text] = Memo(_KEPT_TEXTS)
        self._shapes: Memo[Tuple[int, ...], Shape] = Memo(_KEPT_TEXTS)

    def text(self, value: str) -> Text:
        """The text of a name."""
        text = self._texts.get(value)
        if text is None:
            text = self._texts[value] = Text(value)
        return text

    def shape(self, sizes: Tuple[int, ...]) -> Shape:
        """A tensor's shape."""
        shape = self._shapes.get(sizes)
        if shape is None:
            shape = self._shapes[sizes] = Shape(sizes)
        return shape


_BYTES_AT = bytes.__basicsize__ - 1  # of the terminator
_SHARED_BYTES = 1  # CPython has one object for each `bytes` of up to so many


def new_bytes(size: int) -> Union[bytes, memoryview]:
    """*size* bytes that a backend may write to at their `address_in`, until they are used.

    Nothing else refers to the object, and a `bytes` needs no copy to become part of a message.
    """
    return bytes(size) if size > _SHARED_BYTES else memoryview(bytearray(size))


def address_in(data: Union[bytes, memoryview]) -> int:
    """The address of what `new_bytes` returned."""
    return id(data) + _BYTES_AT if type(data) is bytes else address_of(data)


_empty = bytearray(64)


def address_of(view: Any) -> int:
    """The address of a writable buffer's first byte; of some other byte if it has none."""
    if _POINTER_AT and len(view) and type(view) is memoryview:
        return _words[id(view) + _POINTER_AT >> 3]
    return _address_of(_byte(view if len(view) else _empty))


def _find_pointer() -> int:
    """Where in a view's own memory the address of its first byte is: reading it costs a third of asking ctypes.

    0 if that is not found, so that ctypes is asked.
    """
    data = bytearray(64)
    view = memoryview(data)[24:40]
    wanted = _address_of(_byte(view))
    found = [at for at in range(0, type(view).__basicsize__, 8) if _words[id(view) + at >> 3] == wanted]
    return found[0] if len(found) == 1 else 0


_POINTER_AT = _find_pointer()


def view_at(address: int, size: int) -> memoryview:
    """The *size* bytes at *address*, which must stay valid while the view is used."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class Heap:
    """Memory of the C library, for backends that allocate through the server.

    A buffer that is freed twice, or was never allocated here, is an error and not a corrupted heap.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._malloc, self._free = library.malloc, library.free
        self._malloc.argtypes, self._malloc.restype = [ctypes.c_size_t], ctypes.c_size_t
        self._free.argtypes, self._free.restype = [ctypes.c_size_t], None
        self._sizes: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        """The address of *size* bytes; 0 if memory is exhausted."""
        address: int = self._malloc(max(size, 1))
        if address:
            self._sizes[address] = size
        return address

    def free(self, address: int) -> bool:
        """Free the buffer at *address*; False without one."""
        if self._sizes.pop(address, None) is None:
            return False
        self._free(address)
        return True
