"""Calls of the targets of one model: choice, time limit, retries, and what they mean for breakers and metrics."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Collection, Iterator, List, Optional, Sequence, Set, Tuple, Union

from naiad_remote.breaker import Breaker
from naiad_remote.errors import CallError, Cause, may_retry
from naiad_remote.http_target import HttpTarget
from naiad_remote.metrics import Metrics, TargetMetrics
from naiad_remote.router import Router
from naiad_remote.settings import Settings, Target
from naiad_remote.watch import Limit, Watch
from naiad_remote.wire import WireRequest, WireResponse

_FIRST_PAUSE = 0.02
_LAST_PAUSE = 0.5


def connect(target: Target, settings: Settings) -> Any:
    """What calls a target by its protocol, connecting at the first call; ValueError for unusable files of `tls`."""
    if target.is_grpc:
        # Over HTTP, a Python with numpy alone does as the environment.
        from naiad_remote.grpc_target import GrpcTarget

        return GrpcTarget(target, settings)
    return HttpTarget(target, settings)


def time_limit(configured: float, timeout_us: int) -> Tuple[float, Cause]:
    """Seconds that a call may take, and what it means if they pass: of the configured time and the request's own."""
    own = timeout_us / 1e6 if timeout_us else math.inf
    limit = configured or math.inf
    return (own, Cause.REQUEST_TIMEOUT) if own < limit else (limit, Cause.TIMEOUT)


class Caller:
    """Calls some targets of one model, chosen by their weights."""

    def __init__(
        self,
        settings: Settings,
        targets: Sequence[Target],
        weights: Sequence[float] = (),  # equal ones if empty
        *,
        watch: Watch,
        metrics: Metrics,
        kind: str,  # `primary` or `shadow`
        is_decoupled: bool,  # whether a request has a stream of responses
        random: Callable[[], float],  # at least 0 and less than 1
        near: Collection[int] = (),  # indices of the targets that are called before all others
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._is_decoupled = is_decoupled
        self._targets = [connect(target, settings) for target in targets]
        self.metrics: List[TargetMetrics] = [metrics.target(str(target), kind) for target in targets]
        breakers = [Breaker(settings.breaker_failures, settings.breaker_seconds) for _ in targets]
        names, weights = [str(target) for target in targets], weights or (1.0,) * len(targets)
        self._router = Router(names, weights, breakers, time.monotonic, random, near)

    def is_ready(self) -> bool:
        return self._router.is_ready()

    def call(
        self,
        request: WireRequest,
        clients: List[Callable[[], bool]],  # whether each client has gone; the call is cancelled when all have
        timeout_us: int = 0,  # the request's own in microseconds; 0 for none
        sequence: Union[int, str, None] = None,  # correlation id of its sequence; None if it has none
        began: Optional[float] = None,  # when the time limit begins; now unless given
    ) -> Iterator[WireResponse]:
        """The responses of a request, from the first target that gives one; CallError after any number of responses."""
        seconds, cause = time_limit(self._settings.timeout, timeout_us)
        limit = Limit(seconds, cause, clients, time.monotonic() if began is None else began)
        idempotent = self._settings.idempotent and sequence is None
        self._watch.add(limit)
        try:
            tried: Set[int] = set()
            for attempt in range(self._settings.retries + 1):
                index, is_probe = self._router.pick(tried, sequence)
                has_responded = False
                try:
                    for response in self._attempt(index, request, limit, is_probe=is_probe):
                        has_responded = True
                        yield response
                    return
                except CallError as error:
                    is_last = attempt == self._settings.retries
                    if is_last or not may_retry(error, idempotent=idempotent, has_responded=has_responded):
                        raise
                    self.metrics[index].on_retry()
                    if index in tried or len(self._targets) == 1:  # no other target is left
                        _pause(attempt, limit)
                    tried.add(index)
        finally:
            self._watch.remove(limit)

    def close(self) -> None:
        for target in self._targets:
            target.close()

    def _attempt(self, index: int, request: WireRequest, limit: Limit, *, is_probe: bool) -> Iterator[WireResponse]:
        target, metrics = self._targets[index], self.metrics[index]
        metrics.on_call()
        if is_probe:
            metrics.set_state(self._router.state(index))
        began = time.monotonic()
        error: Optional[CallError] = CallError(Cause.CANCELLED, "")  # if the iterator is dropped
        try:
            if not self._is_decoupled:
                yield from target.infer(request, limit)
            else:
                for response in target.stream(request, limit):
                    limit.pause()  # the client may take its time to read
                    yield response
                    limit.resume()
            error = None
        except CallError as failure:
            error = failure
            metrics.on_failure(failure.cause)
            raise
        finally:
            metrics.set_state(self._router.on_end(index, error, is_probe=is_probe))
            if error is None:
                metrics.on_end(time.monotonic() - began)
            error = None  # it refers to this frame, and so to the request


def _pause(attempt: int, limit: Limit) -> None:
    """Give a single target time to come back; the limit of the call ends it earlier."""
    end = time.monotonic() + min(_LAST_PAUSE, _FIRST_PAUSE * 2**attempt, limit.rest())
    while limit.ended_by is None and time.monotonic() < end:
        time.sleep(min(_FIRST_PAUSE, max(0.0, end - time.monotonic())))
