"""Loads a backend's library, with the functions it imports defined by callbacks of this process.

The order matters: the object with the trampolines must be loaded before the backend, with RTLD_GLOBAL, and under the
name by which the backend needs it. Then the loader takes it for the server's own library and looks for no other.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional

from naiad_stub.native.elf import TABLE_SYMBOL, ElfError, read_shared_object, write_library
from naiad_stub.native.errors import NOT_FOUND, UNSUPPORTED, ApiCallError
from naiad_stub.native.signatures import ENTRY_POINTS, REQUIRED_ENTRY_POINT, Function, functions

SERVER_LIBRARY = re.compile(r"libtritonserver(-[0-9a-f]+)?\.so")
"""Names under which backends need the server's library; wheels add a digest to it."""
_DEFAULT_SONAME = "libtritonserver.so"

Implementation = Callable[..., int]


class BackendLibrary:
    """A loaded backend, and what keeps its imported functions alive.

    Attributes:
        path: Its file.
        entry_points: Those of ENTRY_POINTS that it exports, as callables that return a TRITONSERVER_Error's handle.
    """

    def __init__(
        self,
        path: str,
        implementations: Mapping[str, Implementation],
        guard: Callable[[Function, Implementation], Implementation],
        fallback: Callable[[str, str], int],
    ) -> None:
        """Load the library in *path*.

        Args:
            path: Its file.
            implementations: Functions by their names in the API.
            guard: Wraps each so that it never raises.
            fallback: Called with name and reason if the backend calls a function that is not implemented; returns the
                handle of an error.

        Raises:
            ApiCallError: If it cannot be loaded, or is not a backend.
        """
        self.path = path
        self._keep: List[Any] = []
        table = functions()
        self._load_server(_sonames(path), table, implementations, guard, fallback)
        try:
            # As the reference: every function that the backend imports must be there now, and its names are not
            # visible to other libraries.
            self._library = ctypes.CDLL(path, ctypes.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            raise ApiCallError(NOT_FOUND, f"unable to load shared library: {error}") from None
        self.entry_points: Dict[str, Any] = {}
        for name in ENTRY_POINTS:
            function = getattr(self._library, name, None)
            if function is not None:
                function.restype = ctypes.c_size_t
                self.entry_points[name] = function
        if REQUIRED_ENTRY_POINT not in self.entry_points:
            raise ApiCallError(
                NOT_FOUND, f"unable to find required entrypoint '{REQUIRED_ENTRY_POINT}' in shared library: {path}"
            )

    def call(self, name: str, *arguments: Any) -> int:
        """Call an entry point; return the handle of its error, 0 if it succeeds or the backend does not export it."""
        function = self.entry_points.get(name)
        return 0 if function is None else int(function(*arguments))

    def _load_server(
        self,
        sonames: List[str],
        table: List[Function],
        implementations: Mapping[str, Implementation],
        guard: Callable[[Function, Implementation], Implementation],
        fallback: Callable[[str, str], int],
    ) -> None:
        addresses: List[Optional[int]] = []
        for function in table:
            implementation = implementations.get(function.name)
            if implementation is None or function.unsupported:
                addresses.append(None)
            else:
                callback = function.prototype()(guard(function, implementation))
                self._keep.append(callback)
                addresses.append(ctypes.cast(callback, ctypes.c_void_p).value)
        reject = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_uint32)(
            lambda number: fallback(table[number].name, table[number].unsupported)
        )
        self._keep.append(reject)
        for soname in sonames:
            try:
                data = write_library([function.name for function in table], soname)
            except ElfError as error:
                raise ApiCallError(UNSUPPORTED, str(error)) from None
            library = _load_bytes(data, soname)
            self._keep.append(library)
            entries = (ctypes.c_size_t * (len(table) + 1)).in_dll(library, TABLE_SYMBOL)
            for number, address in enumerate(addresses):
                if address is not None:
                    entries[number] = address
            entries[len(table)] = ctypes.cast(reject, ctypes.c_void_p).value or 0


def _sonames(path: str) -> List[str]:
    try:
        with open(path, "rb") as file:
            needed = read_shared_object(file.read()).needed
    except (OSError, ElfError):
        return [_DEFAULT_SONAME]  # the loader says what is wrong with the file
    return [name for name in needed if SERVER_LIBRARY.fullmatch(name)] or [_DEFAULT_SONAME]


def _load_bytes(data: bytes, name: str) -> Any:
    """Load a shared object from memory; from a temporary file where the system has no memfd."""
    mode = ctypes.RTLD_GLOBAL | os.RTLD_NOW
    if hasattr(os, "memfd_create"):
        try:
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        except OSError:
            pass  # a sandbox that forbids it
        else:
            os.write(descriptor, data)
            # Never closed: the loader recognises a library that it has loaded by this path, and the number of a closed
            # descriptor is used again. Not /proc/self: a debugger opens the path as well, and would find its own
            # descriptor there, possibly a pipe on which it blocks forever.
            return ctypes.CDLL(f"/proc/{os.getpid()}/fd/{descriptor}", mode)
    import tempfile

    with tempfile.NamedTemporaryFile(prefix=name) as file:
        file.write(data)
        file.flush()
        return ctypes.CDLL(file.name, mode)
