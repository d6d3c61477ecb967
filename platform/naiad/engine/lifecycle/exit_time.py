"""How long a server that exits waits for requests and for models. Pure: the clock is given."""

from __future__ import annotations

from collections.abc import Callable

FINALIZE_SECONDS = 5.0  # half of what `naiad deploy` leaves between the exit timeout and the end by force


class ExitTime:
    """The exit timeout (`--exit-timeout-secs`), which all steps of an exit share.

    Sequences, requests of each port and models are waited for one after the other. If each had the whole timeout, one
    request that hangs would keep the server for a multiple of it, until the service manager kills it.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._end: float | None = None

    def for_requests(self) -> float:
        """The seconds that are left for requests in flight; the timeout begins with the first call."""
        if self._end is None:
            self._end = self._clock() + self._seconds
        return max(self._end - self._clock(), 0.0)

    def for_models(self) -> float:
        """The seconds that are left for the `finalize` of models.

        At least five, or the timeout if it is shorter: a request of one model may have used up the time, and the other
        models must not be killed for it.
        """
        return max(self.for_requests(), min(self._seconds, FINALIZE_SECONDS))
