"""Files of traces: arrays of JSON that grow while the server runs (SRV docs/user_guide/trace.md)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import orjson

logger = logging.getLogger("naiad.trace")

_TOGETHER = 64
"""Traces written at a time: more would be missed after a crash, fewer would cost a write each."""


class TraceFile:
    """One file for all traces, or one with a number behind its name for every few of them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_begun = False
        self._waiting: list[bytes] = []
        self._number = 0

    def add(self, events: list[dict[str, Any]]) -> None:
        """Take one trace into the one file."""
        self._waiting.append(orjson.dumps(events)[1:-1])
        if len(self._waiting) >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write the traces that wait."""
        if self._waiting:
            self._write(
                self._path, (b"," if self._is_begun else b"[") + b",".join(self._waiting), anew=not self._is_begun
            )
            self._is_begun = True
            self._waiting.clear()

    def write_numbered(self, traces: list[list[dict[str, Any]]]) -> None:
        """Write traces into a file of their own."""
        body = b",".join([orjson.dumps(events)[1:-1] for events in traces])
        self._write(f"{self._path}.{self._number}", b"[" + body + b"]", anew=True)
        self._number += 1

    def close(self) -> None:
        """Write what waits, and the end of the array."""
        self.flush()
        if self._is_begun:
            self._write(self._path, b"]", anew=False)
            self._is_begun = False

    @staticmethod
    def _write(path: str, data: bytes, *, anew: bool) -> None:
        try:
            with Path(path).open("wb" if anew else "ab") as file:
                file.write(data)
        except OSError as problem:
            logger.error("failed creating trace file: %s: %s", path, problem.strerror)  # noqa: TRY400 - no bug of ours
