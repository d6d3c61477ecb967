"""Trace files: JSON arrays that grow while the server runs (SRV docs/user_guide/trace.md)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import orjson

logger = logging.getLogger("naiad.trace")

_BATCH = 64
"""Traces per write: a crash of the server loses at most this many, and opening the file costs little per trace."""


class TraceFile:
    """One file for all traces, or numbered files with a fixed number of traces each.

    The array in the one file is closed by `close`; until then the file ends within the array.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._has_begun = False
        self._pending: list[bytes] = []
        self._number = 0

    def add(self, events: list[dict[str, Any]]) -> None:
        """Append one trace to the one file; it is written with the next batch."""
        self._pending.append(orjson.dumps(events)[1:-1])
        if len(self._pending) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write the pending traces to the one file."""
        if self._pending:
            self._write(
                self._path, (b"," if self._has_begun else b"[") + b",".join(self._pending), truncate=not self._has_begun
            )
            self._has_begun = True
            self._pending.clear()

    def write_numbered(self, traces: list[list[dict[str, Any]]]) -> None:
        """Write traces to the next numbered file."""
        body = b",".join([orjson.dumps(events)[1:-1] for events in traces])
        self._write(f"{self._path}.{self._number}", b"[" + body + b"]", truncate=True)
        self._number += 1

    def close(self) -> None:
        """Write the pending traces and close the array."""
        self.flush()
        if self._has_begun:
            self._write(self._path, b"]", truncate=False)
            self._has_begun = False

    @staticmethod
    def _write(path: str, data: bytes, *, truncate: bool) -> None:
        try:
            with Path(path).open("wb" if truncate else "ab") as file:
                file.write(data)
        except OSError as problem:
            logger.error("failed creating trace file: %s: %s", path, problem.strerror)  # noqa: TRY400 - the traceback would say no more than the message
