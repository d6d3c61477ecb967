"""A version of a model that is loaded on demand, while it has no guests.

It answers questions about the model from its configuration. A request wakes the model: it waits here until the version
is loaded, and is then submitted to that. So the callers (clients, ensembles, models that call models) need
not know whether a model is loaded: the registry finds this version, or the loaded one, under the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from naiad.config.model.model_config import ModelConfig
from naiad.core import clock
from naiad.core.errors import Code, NaiadError, NotReadyError, fresh
from naiad.engine.open_request import Events, OpenRequest
from naiad.engine.served import Target, metadata_of, version_numbers
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.serving.device_use import device_use
from naiad.engine.serving.instance import Instance
from naiad.engine.statistics.counters import FailureReason, Statistics
from naiad.protocol.metadata import ModelCondition, ModelMetadata, ModelStatistics
from naiad.protocol.request_plan import RequestPlan, error_prefix

_MICROSECONDS = 1e6


class OnWake(Protocol):
    """Called when a request needs a model to be loaded."""

    def __call__(self, *, is_urgent: bool) -> None:
        """Start to load the model, unless that is in progress.

        With *is_urgent* a model waits for this one: its load must not wait for loads of other models.
        """


class DormantVersion:
    """Implements `ServedVersion` without a guest."""

    direct = None
    instances: Sequence[Instance] = ()
    open_sequences = 0
    is_lost = False  # the next request may load it

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        on_wake: OnWake,
        *,
        timeout: float,
        is_known: bool,
        metadata: ModelMetadata | None = None,
        totals: Statistics | None = None,
    ) -> None:
        """*timeout*: seconds that a request waits. *metadata*: with labels; by default the configuration's."""
        self.config = config  # as far as it is known without loading the model
        self.version = version
        self.number = next(version_numbers)  # of this object among all loads of all versions
        # Whether a load cannot change the configuration: then requests are checked before they wake the model.
        self.is_known = is_known
        self.metadata = metadata or metadata_of(config, version)  # inputs and outputs, as far as they are known
        # What was counted of its requests, also by earlier loads.
        self.totals = totals or Statistics(
            dict(config.message.metric_tags), is_cached=config.message.response_cache.enable
        )
        self.hindrance = (
            ""  # why its load has not begun, for the error of requests that time out meanwhile; empty for none
        )
        self._on_wake = on_wake
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[OpenRequest, asyncio.TimerHandle] = {}  # with the timer of its timeout, oldest first
        self._reason = ""
        self._failed_until = 0.0
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"<DormantVersion '{self.config.name}' {self.version} waiting={len(self._waiting)}>"

    # -- what is known of it --------------------------------------------------------------------------------------

    @cached_property
    def _plan(self) -> RequestPlan:
        return compile_plan(self.config, self.version, self.number)

    @property
    def reason(self) -> str:
        """Why its last load failed, until the next one may be tried; else empty: a request can load it."""
        return self._reason if clock.monotonic() < self._failed_until else ""

    gpus = None  # see `Target`: it has no guests

    @property
    def device(self) -> int:
        return device_use(self.config, is_native=self.config.message.backend != "python")

    @property
    def pending_count(self) -> int:
        return len(self._waiting)

    def is_ready(self) -> bool:
        return not self.reason

    def are_all_ready(self) -> bool:
        """True: one model that cannot be loaded must not make the whole server unready."""
        return True

    def is_finishing_requests(self) -> bool:
        return bool(self._waiting)

    def statistics(self) -> ModelStatistics:
        condition = ModelCondition.READY if self.is_ready() else ModelCondition.NOT_SERVING
        return self.totals.value(self.config.name, str(self.version), self.pending_count, condition=condition)

    # -- requests -------------------------------------------------------------------------------------------------

    def accept(self, opened: OpenRequest) -> None:
        """Let a request wait for the load, and start that if necessary.

        InvalidRequestError if it does not fit the model: then it loads nothing. NotReadyError if the last load failed a
        short time ago.
        """
        request = opened.request
        reason = "it is being unloaded" if self._is_stopped else self.reason
        if reason:
            refusal = NotReadyError(f"{error_prefix(request)}model '{self.config.name}' cannot serve: {reason}")
            self.totals.on_refusal(refusal)
            raise fresh(refusal)
        if self.is_known:
            try:
                self._plan.check(request)
            except NaiadError as error:
                self.totals.on_refusal(error)
                raise
        own = request.timeout_us / _MICROSECONDS
        seconds = min(own, self._timeout) if own else self._timeout
        opened.holder = self
        opened.queued = clock.monotonic_ns()
        self._waiting[opened] = self._loop.call_later(seconds, self._on_timeout, opened, seconds)
        self._on_wake(is_urgent=opened.needs_idle)

    def submit_waiting(self, loaded: Target) -> None:
        """Submit the requests that wait to *loaded*, in their order."""
        for opened in list(self._waiting):
            timer = self._waiting.pop(opened, None)
            if timer is None:
                continue  # the answer to one before it has cancelled it
            timer.cancel()
            if loaded.config.decoupled != self.config.decoupled:
                policy = "decoupled" if loaded.config.decoupled else "not decoupled"
                self._answer(
                    opened,
                    NotReadyError(
                        f"model '{self.config.name}' turned out to be {policy} when it was loaded; send the request "
                        "again, and declare model_transaction_policy in config.pbtxt"
                    ),
                )
                continue
            queued, sink = opened.queued, opened.sink
            try:
                loaded.accept(opened)
            except NaiadError as error:
                opened.queued, opened.sink = queued, sink  # it has waited here alone
                self._answer(opened, error)

    def fail_waiting(self, error: NaiadError, seconds: float = 0.0) -> None:
        """Answer the requests that wait with *error*, and refuse others with its message for *seconds*."""
        self._reason, self._failed_until = error.message, clock.monotonic() + seconds
        waiting, self._waiting = self._waiting, {}
        for opened, timer in waiting.items():
            timer.cancel()
            self._answer(opened, error)

    def cancel_request(self, opened: OpenRequest) -> None:
        self.reject_waiting(opened, NaiadError("Request was cancelled", code=Code.CANCELLED))

    def reject_waiting(self, opened: OpenRequest, error: NaiadError) -> None:
        timer = self._waiting.pop(opened, None)
        if timer is not None:
            timer.cancel()
            self._answer(opened, error)

    def is_waiting(self, opened: OpenRequest) -> bool:
        return opened in self._waiting

    def waits_of(self, opened: OpenRequest) -> Events:  # noqa: ARG002 - see `Holder`
        """See `Holder`. Guests that are being started will take the request."""
        return ((),)

    def confirm_responses(self, opened: OpenRequest, count: int) -> None:
        """Nothing: it has no response."""

    def drop_responses(self, opened: OpenRequest) -> None:
        """Nothing, for the same reason."""

    async def stop(self, timeout: float) -> None:  # noqa: ARG002 - the signature of `LoadedVersion`
        self._is_stopped = True
        self.fail_waiting(NotReadyError(f"model '{self.config.name}' is being unloaded"))

    def _on_timeout(self, opened: OpenRequest, seconds: float) -> None:
        flag = " (--demand-load-timeout)" if seconds == self._timeout else ", the request's timeout"
        why = f": {self.hindrance}" if self.hindrance else ""
        self.reject_waiting(
            opened, NotReadyError(f"model '{self.config.name}' was not loaded within {seconds:g} s{flag}{why}")
        )

    def _answer(self, opened: OpenRequest, error: NaiadError) -> None:
        reason = FailureReason.CANCELED if error.code is Code.CANCELLED else FailureReason.OTHER
        self.totals.on_failure(clock.monotonic_ns() - opened.queued, reason)
        opened.fail(error, (self.config.name, self.version))
