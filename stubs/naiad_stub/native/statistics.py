"""What a backend reports about its requests and batches, on its way to the server's statistics."""

from __future__ import annotations

import threading
from typing import List

from naiad_stub import wire
from naiad_stub.channel import Channel


class Reports:
    """Collects what the executing thread reports until the batch ends; what other threads report is sent at once.

    Attributes:
        thread: The thread that executes a batch; 0 while none does.
    """

    def __init__(self, channel: Channel) -> None:
        self.thread = 0
        self._channel = channel
        self._records: List[bytes] = []

    def add(
        self, kind: int, subject: int, exec_start: int, compute_start: int, compute_end: int, exec_end: int
    ) -> None:
        """Add a record, see `wire.REPORT`."""
        record = wire.REPORT.pack(kind, subject, exec_start, compute_start, compute_end, exec_end)
        if threading.get_ident() == self.thread:
            self._records.append(record)
        else:
            self._channel.post(wire.frame(wire.Kind.REPORTS, record))

    def take(self) -> List[bytes]:
        """The records collected so far, at most `wire.MAX_REPORTS`; others are sent now."""
        records, self._records = self._records, []
        if len(records) > wire.MAX_REPORTS:
            self._channel.post(wire.frame(wire.Kind.REPORTS, b"".join(records)))
            return []
        return records
