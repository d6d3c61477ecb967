"""Statistics of single responses of a decoupled model, by their position in the request (extension_statistics).

Only decoupled models have these: with one response per request they would repeat the request statistics. The
reference's Python backend reports none; what is counted follows the description of the extension.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from naiad.core.errors import Code
from naiad.protocol.inference import InferResponse
from naiad.protocol.metadata import Duration, ResponseStatistics

POSITION_LIMIT = 1024
"""Responses at later positions are not counted: a stream of a million must not yield a million lines of statistics."""


class ResponseProgress:
    """Progress of the responses to one request of a decoupled model.

    Attributes:
        position: Position of the next response.
        since: When the model sent the one before, or `execute` began (monotonic ns).
        sizes: Bytes of each response that was not sent to the client yet.
    """

    __slots__ = ("position", "since", "sizes")

    def __init__(self, since: int) -> None:
        self.position = 0
        self.since = since
        self.sizes: deque[int] = deque()


class _Position:
    """Counts and nanoseconds of the responses at one position."""

    __slots__ = ("cancel", "cancel_ns", "empty", "empty_ns", "fail", "fail_ns", "infer_ns", "output_ns", "success")

    def __init__(self) -> None:
        self.success = self.fail = self.empty = self.cancel = 0
        self.infer_ns = self.output_ns = self.fail_ns = self.empty_ns = self.cancel_ns = 0

    def value(self) -> ResponseStatistics:
        with_outputs = self.success + self.fail
        whole_ns = self.infer_ns + self.output_ns
        return ResponseStatistics(
            compute_infer=Duration(with_outputs + self.empty, self.infer_ns + self.empty_ns),
            compute_output=Duration(with_outputs, self.output_ns),
            success=Duration(self.success, whole_ns - self.fail_ns),
            fail=Duration(self.fail, self.fail_ns),
            empty_response=Duration(self.empty, self.empty_ns),
            cancel=Duration(self.cancel, self.cancel_ns),
        )


class ResponseTimes:
    """The sums of one decoupled model version. Iterating yields their values; making these costs nothing before."""

    def __init__(self) -> None:
        """No responses yet."""
        self._positions: list[_Position] = []

    def __iter__(self) -> Iterator[tuple[int, ResponseStatistics]]:
        """The positions with their values as they are now."""
        return ((number, position.value()) for number, position in enumerate(tuple(self._positions)))

    def on_response(self, progress: ResponseProgress, response: InferResponse, sent: int, taken: int) -> None:
        """Count a response: when the model sent it, and when its outputs were read."""
        position = self._next(progress)
        infer, output = sent - progress.since, taken - sent
        progress.since = sent
        if position is None:
            return
        if response.error is None and not response.outputs:
            position.empty += 1
            position.empty_ns += infer
        elif response.error is not None and response.error.code is Code.CANCELLED:
            position.cancel += 1
            position.cancel_ns += infer + output
        else:
            position.infer_ns += infer
            position.output_ns += output
            if response.error is None:
                position.success += 1
            else:
                position.fail += 1
                position.fail_ns += infer + output

    def on_end(self, progress: ResponseProgress, sent: int, *, is_cancelled: bool) -> None:
        """Count the end of a request without a further response: it was cancelled, or had no response at all."""
        if not is_cancelled and progress.position:
            return
        position = self._next(progress)
        if position is None:
            return
        if is_cancelled:
            position.cancel += 1
            position.cancel_ns += sent - progress.since
        else:
            position.empty += 1
            position.empty_ns += sent - progress.since

    def _next(self, progress: ResponseProgress) -> _Position | None:
        number = progress.position
        progress.position = number + 1
        if number < len(self._positions):
            return self._positions[number]
        if number >= POSITION_LIMIT:
            return None
        # Positions appear in order: a request's second response comes before its third.
        position = _Position()
        self._positions.append(position)
        return position
