"""Trace files: JSON arrays that grow while the server runs (SRV docs/user_guide/trace.md)."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

logger = logging.getLogger("naiad.trace")

_BATCH = 64
"""Traces per write: a crash of the server loses at most this many, and opening the file costs little per trace."""


class TraceFile:
    """One file for all traces, or numbered files with a fixed number of traces each.

    The array in the one file is closed by `close` or `reopen`; until then the file ends within the array.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pending: list[bytes] = []
        self._number = 0
        self._descriptor = -1  # of the one file, once its array has begun

    def add(self, events: list[dict[str, Any]]) -> None:
        """Append one trace to the one file; it is written with the next batch."""
        self._pending.append(orjson.dumps(events)[1:-1])
        if len(self._pending) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write the pending traces to the one file."""
        if not self._pending:
            return
        data = b",".join(self._pending)
        self._pending.clear()
        with _failures_logged(self._path):
            if self._descriptor < 0:
                self._descriptor = _create(self._path)
                _write_all(self._descriptor, b"[" + data)
            else:
                _write_all(self._descriptor, b"," + data)

    def write_numbered(self, traces: list[list[dict[str, Any]]]) -> None:
        """Write traces to the next numbered file."""
        body = b",".join([orjson.dumps(events)[1:-1] for events in traces])
        path = f"{self._path}.{self._number}"
        with _failures_logged(path):
            descriptor = _create(path)
            try:
                _write_all(descriptor, b"[" + body + b"]")
            finally:
                os.close(descriptor)
        self._number += 1

    def reopen(self) -> None:
        """Close the array in a file that was renamed or removed meanwhile; the next trace begins a new file."""
        if self._descriptor >= 0 and not self._is_in_place():
            self.close()

    def close(self) -> None:
        """Write the pending traces and close the array."""
        self.flush()
        if self._descriptor >= 0:
            with _failures_logged(self._path):
                _write_all(self._descriptor, b"]")
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), Path(self._path).stat())
        except OSError:
            return False


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _failures_logged(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        logger.error("failed creating trace file: %s: %s", path, problem.strerror)  # noqa: TRY400 - the traceback would say no more than the message
