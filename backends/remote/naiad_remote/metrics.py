"""Metrics of each target, on the server's metrics page."""

from __future__ import annotations

from typing import Any, Dict, List

import triton_python_backend_utils as pb_utils

from naiad_remote.breaker import BreakerState
from naiad_remote.errors import Cause

_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]
_REQUESTS = "naiad_remote_requests_total"
_FAILURES = "naiad_remote_failures_total"
_RETRIES = "naiad_remote_retries_total"
_DROPPED = "naiad_remote_shadow_dropped_total"
_STATE = "naiad_remote_breaker_state"
_DURATION = "naiad_remote_request_seconds"


class Metrics:
    """The families of one model. Without a metrics page (`--allow-metrics=false`) nothing is counted."""

    def __init__(self, model: str, version: str, instance: str) -> None:
        self._labels = {"model": model, "version": version}
        self._instance = instance  # whose breakers are its own
        self._families: Dict[str, Any] = {}
        kinds = pb_utils.MetricFamily
        counter, gauge, histogram = kinds.COUNTER, kinds.GAUGE, kinds.HISTOGRAM
        families = (
            (_REQUESTS, "Calls of a target, repeated ones included.", counter),
            (_FAILURES, "Calls of a target that failed, by cause.", counter),
            (_RETRIES, "Calls that repeated one of this target.", counter),
            (_DROPPED, "Copies of requests that were dropped, since too many were in flight.", counter),
            (_STATE, "State of a target's circuit breaker: 0 closed, 1 half-open, 2 open.", gauge),
            (_DURATION, "Seconds from a call of a target to its last response.", histogram),
        )
        try:
            self._families = {name: pb_utils.MetricFamily(name, text, kind) for name, text, kind in families}
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_info(f"the metrics of the remote model '{model}' are not counted: {error}")

    def target(self, name: str, kind: str) -> TargetMetrics:
        """The metrics of one target, which gets requests (kind `primary`) or copies (`shadow`)."""
        return TargetMetrics(self._families, {**self._labels, "target": name, "kind": kind}, self._instance)


class TargetMetrics:
    """Counts what happens to the calls of one target."""

    def __init__(self, families: Dict[str, Any], labels: Dict[str, str], instance: str) -> None:
        self._families = families
        self._labels = labels
        self._failures: Dict[Cause, Any] = {}
        self._state_labels = {**labels, "instance": instance}
        self._requests = self._metric(_REQUESTS, labels)
        self._retries = self._metric(_RETRIES, labels)
        self._dropped = self._metric(_DROPPED, labels) if labels["kind"] == "shadow" else None
        self._state = self._metric(_STATE, self._state_labels)
        self._duration = self._metric(_DURATION, labels, _SECONDS)
        self._known_state = BreakerState.CLOSED
        if self._state is not None:
            self._state.set(0)

    def on_call(self) -> None:
        _increment(self._requests)

    def on_retry(self) -> None:
        """A call that this target has failed is repeated, there or elsewhere."""
        _increment(self._retries)

    def on_dropped(self) -> None:
        _increment(self._dropped)

    def on_failure(self, cause: Cause) -> None:
        if not self._families:
            return
        if cause not in self._failures:
            self._failures[cause] = self._metric(_FAILURES, {**self._labels, "cause": cause.value})
        self._failures[cause].increment(1)

    def on_end(self, seconds: float) -> None:
        if self._duration is not None:
            self._duration.observe(seconds)

    def set_state(self, state: BreakerState) -> None:
        if state is not self._known_state and self._state is not None:
            self._known_state = state
            self._state.set(int(state))

    def _metric(self, name: str, labels: Dict[str, str], *buckets: List[float]) -> Any:
        family = self._families.get(name)
        return family.Metric(labels, *buckets) if family is not None else None


def _increment(metric: Any) -> None:
    if metric is not None:
        metric.increment(1)
