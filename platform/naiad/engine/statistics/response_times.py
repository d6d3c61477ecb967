"""What became of the responses of a decoupled model, by their place among those to one request (extension_statistics).

Only decoupled models keep this: for others it would say again what is said of their requests. The reference's Python
backend reports nothing here; what is counted follows the description of the extension.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from naiad.errors import Code
from naiad.protocol.inference import InferResponse
from naiad.protocol.metadata import Duration, ResponseStatistics

_MOST_PLACES = 1024
"""Later responses are not told apart from none: a stream of a million must not make statistics of a million lines."""


class ResponseProgress:
    """How far the responses to one request of a decoupled model are.

    Attributes:
        place: The place of the next.
        since: When the model sent the one before, or began (monotonic ns).
        sizes: Bytes of those that are on their way to the client.
    """

    __slots__ = ("place", "since", "sizes")

    def __init__(self, since: int) -> None:
        self.place = 0
        self.since = since
        self.sizes: deque[int] = deque()


class _Place:
    """Sums of nanoseconds and counts of the responses of one place."""

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
    """The sums of one decoupled model version; iterating gives their values, which nobody pays for who does not."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._places: list[_Place] = []

    def __iter__(self) -> Iterator[ResponseStatistics]:
        """The values as they are now, by place."""
        return (place.value() for place in tuple(self._places))

    def on_response(self, progress: ResponseProgress, response: InferResponse, sent: int, taken: int) -> None:
        """A response: when the model sent it, and when its outputs were taken over."""
        place = self._next(progress)
        infer, output = sent - progress.since, taken - sent
        progress.since = sent
        if place is None:
            return
        if response.error is None and not response.outputs:
            place.empty += 1
            place.empty_ns += infer
        elif response.error is not None and response.error.code is Code.CANCELLED:
            place.cancel += 1
            place.cancel_ns += infer + output
        else:
            place.infer_ns += infer
            place.output_ns += output
            if response.error is None:
                place.success += 1
            else:
                place.fail += 1
                place.fail_ns += infer + output

    def on_end(self, progress: ResponseProgress, sent: int, *, is_cancelled: bool) -> None:
        """The end of a request came without a response: it was cancelled, or had none at all, or all it was to have."""
        if not is_cancelled and progress.place:
            return
        place = self._next(progress)
        if place is None:
            return
        if is_cancelled:
            place.cancel += 1
            place.cancel_ns += sent - progress.since
        else:
            place.empty += 1
            place.empty_ns += sent - progress.since

    def _next(self, progress: ResponseProgress) -> _Place | None:
        number = progress.place
        progress.place = number + 1
        if number < len(self._places):
            return self._places[number]
        if number >= _MOST_PLACES:
            return None
        # Places fill up in order: before a request's third response there was its second.
        place = _Place()
        self._places.append(place)
        return place
