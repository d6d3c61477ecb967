"""Counting what models do (extension_statistics): plain sums on the request path, values when asked."""

from __future__ import annotations

import time

from naiad.protocol.metadata import BatchStatistics, Duration, ModelStatistics


class _Sum:
    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += max(ns, 0)

    def value(self) -> Duration:
        return Duration(self.count, self.ns)


class Statistics:
    """The sums of one model version. All times are nanoseconds of the monotonic clock."""

    def __init__(self) -> None:
        self._last_inference = 0
        self._inferences = 0
        self._executions = 0
        self._success = _Sum()
        self._fail = _Sum()
        self._queue = _Sum()
        self._input = _Sum()
        self._infer = _Sum()
        self._output = _Sum()
        self._batches: dict[int, tuple[_Sum, _Sum, _Sum]] = {}

    def executed(self, batch_size: int, laid_out: int, started: int, ended: int, sent: int) -> None:
        """One execute call: when laying out began, when execute started and ended, when its answers were sent on."""
        self._executions += 1
        sums = self._batches.get(batch_size)
        if sums is None:
            sums = self._batches[batch_size] = (_Sum(), _Sum(), _Sum())
        sums[0].add(started - laid_out)
        sums[1].add(ended - started)
        sums[2].add(sent - ended)

    def succeeded(self, batch_size: int, moments: tuple[int, int, int, int, int]) -> None:
        """One request: when it was queued, laid out, started, ended, answered."""
        queued, laid_out, started, ended, answered = moments
        self._last_inference = time.time_ns() // 1_000_000
        self._inferences += batch_size
        self._success.add(answered - queued)
        self._queue.add(laid_out - queued)
        self._input.add(started - laid_out)
        self._infer.add(ended - started)
        self._output.add(answered - ended)

    def failed(self, ns: int) -> None:
        """One request that ended in an error *ns* after it came."""
        self._fail.add(ns)

    def value(self, name: str, version: str) -> ModelStatistics:
        """The sums as they are now."""
        return ModelStatistics(
            name=name,
            version=version,
            last_inference=self._last_inference,
            inference_count=self._inferences,
            execution_count=self._executions,
            success=self._success.value(),
            fail=self._fail.value(),
            queue=self._queue.value(),
            compute_input=self._input.value(),
            compute_infer=self._infer.value(),
            compute_output=self._output.value(),
            batch_stats=tuple(
                BatchStatistics(
                    batch_size=size,
                    compute_input=sums[0].value(),
                    compute_infer=sums[1].value(),
                    compute_output=sums[2].value(),
                )
                for size, sums in sorted(self._batches.items())
            ),
        )
