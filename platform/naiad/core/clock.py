"""The clock of the engine and of its guests: in one place, so that a simulation of both has a clock of its own.

Timers have the event loop's clock, `loop.time()`: both must agree, as `time.monotonic` and asyncio's own loops do.
The functions are those of `time`, read from this module at each call. That costs what a call of `time` does, 80 ns;
an attribute of an object costs 8 ns more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

monotonic: Callable[[], float] = time.monotonic  # seconds
monotonic_ns: Callable[[], int] = time.monotonic_ns
perf_counter: Callable[[], float] = time.perf_counter  # for what may last only so long in a turn of the loop
