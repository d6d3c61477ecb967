"""`pb_utils.MetricFamily` and `Metric`: a model's own metrics on the server's metrics page.

A family keeps its metrics: they are on the page until the family's object is deleted, even if the model dropped the
metrics' objects. Rules and texts are the reference's (PB src/metric.cc, src/metric_family.cc; CORE
src/metric_family.cc); what needs no server is checked here.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from naiad_stub import runtime
from naiad_stub.arguments import text
from naiad_stub.exceptions import API_MODULE, NamedNumber, TritonModelException
from naiad_stub.queries import error_text
from naiad_stub.runtime import MetricStore

_FAMILY_NAME = re.compile("[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile("(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_FAMILY_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class MetricKind(NamedNumber):
    """Kinds of metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


_INCREMENT = "Increment"
_SET = "Set"
_OBSERVE = "Observe"
_VALUE = "Value"
_FAILED = {_INCREMENT: "increment", _SET: "set", _OBSERVE: "observe", _VALUE: "get"}
_ALLOWED = {
    MetricKind.COUNTER: (_INCREMENT, _VALUE),
    MetricKind.GAUGE: (_INCREMENT, _SET, _VALUE),
    MetricKind.HISTOGRAM: (_OBSERVE,),
}


class _FamilyState:
    """What a family shares with its metrics."""

    __slots__ = ("family", "is_deleted", "kind", "store")

    def __init__(self, store: MetricStore, family: Any, kind: MetricKind) -> None:
        self.store = store
        self.family = family
        self.kind = kind
        self.is_deleted = False


class Metric:
    """One metric of a family, made by `MetricFamily.Metric`."""

    __slots__ = ("__weakref__", "_family", "_handle")
    __module__ = API_MODULE

    _handle: Any
    _family: _FamilyState

    def __init__(self) -> None:
        raise TypeError("Metric: No constructor defined! Use MetricFamily.Metric()")

    @classmethod
    def _of(cls, family: _FamilyState, handle: Any) -> Metric:
        self = cls.__new__(cls)
        self._family = family
        self._handle = handle
        return self

    def increment(self, value: float, /) -> None:
        """Add *value*: to a counter at least 0, to a gauge any."""
        number = _number("increment", value)
        family = self._family
        if family.is_deleted or family.kind is not MetricKind.GAUGE:
            self._check(_INCREMENT)
            if number < 0:
                self._fail(
                    _INCREMENT,
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
                )
        family.store.increment(self._handle, number)

    def set(self, value: float, /) -> None:
        """Set a gauge to *value*."""
        number = _number("set", value)
        self._check(_SET)
        self._family.store.set(self._handle, number)

    def observe(self, value: float, /) -> None:
        """Count *value* in a histogram."""
        number = _number("observe", value)
        self._check(_OBSERVE)
        self._family.store.observe(self._handle, number)

    def observe_counts(self, total: float, counts: List[int], /) -> None:
        """Count values in a histogram that were counted elsewhere, as by another library; not in the reference.

        Args:
            total: The sum of the values.
            counts: How many values are in each bucket, and in a last one above all bounds.
        """
        number = _number("observe_counts", total)
        self._check(_OBSERVE)
        self._family.store.observe_counts(self._handle, number, [int(count) for count in counts])

    def value(self) -> float:
        """The value of a counter or gauge, including what other instances added to it."""
        self._check(_VALUE)
        return self._family.store.value(self._handle)

    def _check(self, operation: str) -> None:
        family = self._family
        if family.is_deleted:
            raise TritonModelException(f"Failed to {_FAILED[operation]} metric value: {_FAMILY_DELETED}")
        if operation not in _ALLOWED[family.kind]:
            self._fail(operation, f"TRITONSERVER_METRIC_KIND_{family.kind.name} does not support {operation}")

    def _fail(self, operation: str, message: str) -> NoReturn:
        problem = error_text(self._family.store.instance_name, message)
        raise TritonModelException(f"Failed to {_FAILED[operation]} metric value: {problem}")


class MetricFamily:
    """A family of metrics with one name."""

    __slots__ = ("__weakref__", "_family", "_metrics")
    __module__ = API_MODULE

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        rule = "MetricFamily takes a name, a description and one of its kinds, such as MetricFamily.COUNTER"
        name, description = text(rule, name), text(rule, description)
        if not isinstance(kind, MetricKind):
            raise TypeError(f"{rule}, got {kind!r}")
        store = runtime.current().metrics
        if _FAMILY_NAME.fullmatch(name) is None:
            problem = error_text(store.instance_name, "Invalid metric name")
            raise TritonModelException(f"Error when creating MetricFamily: {problem}")
        self._metrics: Dict[Tuple[Tuple[str, str], ...], Any] = {}
        self._family = _FamilyState(store, store.new_family(name, description, kind), kind)

    def Metric(  # noqa: N802 - the API's name
        self, labels: Optional[Dict[str, str]] = None, buckets: Optional[List[float]] = None
    ) -> Metric:
        """The metric of these labels; the same one each time the model asks for these labels of this family.

        Args:
            labels: Strings by their names.
            buckets: A histogram's upper bounds, ascending; other kinds have none.
        """
        named = self._labels(labels)
        bounds = self._buckets(buckets)
        key = tuple(sorted(named.items()))
        handle = self._metrics.get(key)
        if handle is None:
            handle = self._metrics[key] = self._family.store.new_metric(self._family.family, dict(key), bounds)
        return Metric._of(self._family, handle)

    def __del__(self) -> None:
        family: Optional[_FamilyState] = getattr(self, "_family", None)
        if family is not None:
            family.is_deleted = True
            family.store.drop_family(family.family)

    def _labels(self, labels: object) -> Dict[str, str]:
        if labels is None:
            return {}
        if not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        import json

        # Through JSON, as in the reference: 1 and None become names that way.
        named: Dict[str, str] = json.loads(json.dumps(labels))
        reserved = "le" if self._family.kind is MetricKind.HISTOGRAM else ""
        for name, value in named.items():
            if not isinstance(value, str):
                self._fail("attempt to access JSON non-string as string")
            if _LABEL_NAME.fullmatch(name) is None or name == reserved:
                self._fail("Invalid label name")
        return named

    def _buckets(self, buckets: object) -> Optional[List[float]]:
        if self._family.kind is not MetricKind.HISTOGRAM:
            if buckets is not None:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
            return None
        if buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        if not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        bounds = [_number("Metric", bound) for bound in buckets]
        # Comparisons with NaN are false, also with itself.
        if not all(low < high for low, high in zip(bounds, bounds[1:])) or any(bound != bound for bound in bounds):  # noqa: PLR0124 - only NaN differs from itself
            self._fail("Bucket Boundaries must be strictly sorted")
        if bounds and bounds[-1] == float("inf"):
            del bounds[-1]  # every histogram has it; twice it would be a duplicate line on the page
        return bounds

    def _fail(self, message: str) -> NoReturn:
        problem = error_text(self._family.store.instance_name, message)
        raise TritonModelException(f"Error when creating Metric: {problem}")


def _number(function: str, value: Any) -> float:
    """*value* as float; accepts any number, but not a string."""
    if type(value) is float:
        return value
    if isinstance(value, (str, bytes, bytearray)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{function} takes a number, got {type(value).__name__}")
    return float(value)
