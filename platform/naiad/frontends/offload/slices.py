"""Long work on the event loop, a slice of it in each turn of the loop.

The work is a generator that yields about once a millisecond. All such work of a server shares one slice per turn, so
that the loop is never held for longer than one slice, however many clients cause such work.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_SLICE_SECONDS = 0.002  # How long one turn of the loop works. A step of the work may exceed that by its own length.


@dataclass(slots=True, eq=False)
class SlicedJob:
    """Work that was started, until it is done or cancelled."""

    _steps: Generator[None, None, Any] | None
    _on_done: Callable[[Any], None]
    _on_failed: Callable[[Exception], None]

    def cancel(self) -> None:
        """End the work; neither callback is called any more."""
        self._steps = None

    def advance(self, until: float) -> bool:
        """Work until a time of `time.monotonic`; return whether the work has ended."""
        try:
            while self._steps is not None:
                next(self._steps)
                if time.monotonic() >= until:
                    return self._steps is None
        except StopIteration as end:
            self._steps = None
            self._on_done(end.value)
        except Exception as error:  # noqa: BLE001 - the caller reports it to the client
            self._steps = None
            self._on_failed(error)
        return True


class SliceScheduler:
    """Runs generators on the event loop, each for a slice in turn."""

    def __init__(self) -> None:
        self._jobs: deque[SlicedJob] = deque()
        self._is_scheduled = False

    def __repr__(self) -> str:
        return f"<SliceScheduler jobs={len(self._jobs)}>"

    def start(
        self,
        steps: Generator[None, None, T],  # yields about once a millisecond, and returns the result
        on_done: Callable[[T], None],
        on_failed: Callable[[Exception], None],  # called with the exception that *steps* raised
    ) -> SlicedJob:
        """Run *steps* to their end, beginning with the next turn of the loop."""
        job = SlicedJob(steps, on_done, on_failed)
        self._jobs.append(job)
        self._schedule()
        return job

    def close(self) -> None:
        while self._jobs:
            self._jobs.popleft().cancel()

    def _schedule(self) -> None:
        if self._jobs and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_slice)

    def _run_slice(self) -> None:
        self._is_scheduled = False
        until = time.monotonic() + _SLICE_SECONDS
        try:
            while self._jobs:
                job = self._jobs.popleft()
                if not job.advance(until):
                    self._jobs.append(job)
                if time.monotonic() >= until:
                    break
        finally:  # also if a callback raises: the jobs of other clients must not wait for the next one to be started
            self._schedule()
