"""`pb_utils.MetricFamily` and `Metric`: a model's own metrics on the server's metrics page.

A family keeps its metrics: they are on the page until the family's object is deleted, whether the model kept the
metrics' objects or not. Rules and texts are the reference's (PB src/metric.cc, src/metric_family.cc; CORE
src/metric_family.cc); what needs no server is checked here.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from naiad_stub.arguments import text
from naiad_stub.asking import refusal
from naiad_stub.exceptions import API_MODULE, NamedNumber, TritonModelException

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


class Metrics:
    """Where metrics are kept. A server, or a test, puts its own in place of this one, which refuses.

    Whoever keeps them raises TritonModelException with the whole text a model is to read.

    Attributes:
        instance_name: The model instance, for errors.
    """

    instance_name = ""

    def new_family(self, name: str, description: str, kind: MetricKind) -> Any:  # noqa: ARG002
        """Make a family; return what `new_metric` and `drop_family` know it by."""
        raise TritonModelException(
            f"Error when creating MetricFamily: '{name}' cannot be created, as there is no server here that would show "
            "it"
        )

    def new_metric(self, family: Any, labels: Dict[str, str], buckets: Optional[List[float]]) -> Any:
        """Make a metric of *family*, or find the one of these labels; return what the others know it by."""

    def drop_family(self, family: Any) -> None:
        """Forget a family and its metrics. Called by a finalizer: must not wait for anything."""

    def increment(self, metric: Any, value: float) -> None:
        """Add to a counter or gauge."""

    def set(self, metric: Any, value: float) -> None:
        """Set a gauge."""

    def observe(self, metric: Any, value: float) -> None:
        """Count a value in a histogram."""

    def value(self, metric: Any) -> float:
        """The value of a counter or gauge."""
        raise NotImplementedError


server = Metrics()
"""The hook; a family keeps to what it was made with, so assign to `naiad_stub.metrics.server` before."""


class _Owner:
    """What a family's metrics know of it."""

    __slots__ = ("family", "is_deleted", "kind", "server")

    def __init__(self, keeper: Metrics, family: Any, kind: MetricKind) -> None:
        self.server = keeper
        self.family = family
        self.kind = kind
        self.is_deleted = False


class Metric:
    """One metric of a family; there is no constructor, as families make them."""

    __slots__ = ("_handle", "_owner")
    __module__ = API_MODULE

    _handle: Any
    _owner: _Owner

    def __init__(self) -> None:
        raise TypeError("Metric: No constructor defined! Use MetricFamily.Metric()")

    @classmethod
    def _of(cls, owner: _Owner, handle: Any) -> Metric:
        self = cls.__new__(cls)
        self._owner = owner
        self._handle = handle
        return self

    def increment(self, value: float, /) -> None:
        """Add *value*: to a counter at least 0, to a gauge any."""
        number = _number("increment", value)
        owner = self._owner
        if owner.is_deleted or owner.kind is not MetricKind.GAUGE:
            self._check(_INCREMENT)
            if number < 0:
                self._fail(
                    _INCREMENT,
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
                )
        owner.server.increment(self._handle, number)

    def set(self, value: float, /) -> None:
        """Set a gauge to *value*."""
        number = _number("set", value)
        self._check(_SET)
        self._owner.server.set(self._handle, number)

    def observe(self, value: float, /) -> None:
        """Count *value* in a histogram."""
        number = _number("observe", value)
        self._check(_OBSERVE)
        self._owner.server.observe(self._handle, number)

    def value(self) -> float:
        """The value of a counter or gauge, with what other instances of models added to it."""
        self._check(_VALUE)
        return self._owner.server.value(self._handle)

    def _check(self, operation: str) -> None:
        owner = self._owner
        if owner.is_deleted:
            raise TritonModelException(f"Failed to {_FAILED[operation]} metric value: {_FAMILY_DELETED}")
        if operation not in _ALLOWED[owner.kind]:
            self._fail(operation, f"TRITONSERVER_METRIC_KIND_{owner.kind.name} does not support {operation}")

    def _fail(self, operation: str, message: str) -> NoReturn:
        refused = refusal(self._owner.server.instance_name, message)
        raise TritonModelException(f"Failed to {_FAILED[operation]} metric value: {refused}")


class MetricFamily:
    """A family of metrics with one name."""

    __slots__ = ("__weakref__", "_metrics", "_owner")
    __module__ = API_MODULE

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        rule = "MetricFamily takes a name, a description and one of its kinds, such as MetricFamily.COUNTER"
        name, description = text(rule, name), text(rule, description)
        if not isinstance(kind, MetricKind):
            raise TypeError(f"{rule}, got {kind!r}")
        keeper = server
        if _FAMILY_NAME.fullmatch(name) is None:
            refused = refusal(keeper.instance_name, "Invalid metric name")
            raise TritonModelException(f"Error when creating MetricFamily: {refused}")
        self._metrics: Dict[Tuple[Tuple[str, str], ...], Any] = {}
        self._owner = _Owner(keeper, keeper.new_family(name, description, kind), kind)

    def Metric(  # noqa: N802 - the API's name
        self, labels: Optional[Dict[str, str]] = None, buckets: Optional[List[float]] = None
    ) -> Metric:
        """The metric of these labels; the same one wherever a model asks for these labels of this family.

        Args:
            labels: Strings by their names.
            buckets: A histogram's upper bounds, ascending; no other kind has any.
        """
        named = self._labels(labels)
        bounds = self._buckets(buckets)
        key = tuple(sorted(named.items()))
        handle = self._metrics.get(key)
        if handle is None:
            handle = self._metrics[key] = self._owner.server.new_metric(self._owner.family, dict(key), bounds)
        return Metric._of(self._owner, handle)  # noqa: SLF001 - made for this

    def __del__(self) -> None:
        owner: Optional[_Owner] = getattr(self, "_owner", None)
        if owner is not None:
            owner.is_deleted = True
            owner.server.drop_family(owner.family)

    def _labels(self, labels: object) -> Dict[str, str]:
        if labels is None:
            return {}
        if not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        import json

        # There and back, as in the reference: 1 and None are names, too, if odd ones.
        named: Dict[str, str] = json.loads(json.dumps(labels))
        reserved = "le" if self._owner.kind is MetricKind.HISTOGRAM else ""
        for name, value in named.items():
            if not isinstance(value, str):
                self._fail("attempt to access JSON non-string as string")
            if _LABEL_NAME.fullmatch(name) is None or name == reserved:
                self._fail("Invalid label name")
        return named

    def _buckets(self, buckets: object) -> Optional[List[float]]:
        if self._owner.kind is not MetricKind.HISTOGRAM:
            if buckets is not None:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
            return None
        if buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        if not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        bounds = [_number("Metric", bound) for bound in buckets]
        # Comparisons with NaN are false, also with itself.
        if not all(low < high for low, high in zip(bounds, bounds[1:])) or any(bound != bound for bound in bounds):  # noqa: PLR0124
            self._fail("Bucket Boundaries must be strictly sorted")
        if bounds and bounds[-1] == float("inf"):
            del bounds[-1]  # it is there anyway; twice the same line would spoil the page
        return bounds

    def _fail(self, message: str) -> NoReturn:
        refused = refusal(self._owner.server.instance_name, message)
        raise TritonModelException(f"Error when creating Metric: {refused}")


def _number(function: str, value: Any) -> float:
    """*value* as float: whatever is a number, and no text that looks like one."""
    if type(value) is float:
        return value
    if isinstance(value, (str, bytes, bytearray)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{function} takes a number, got {type(value).__name__}")
    return float(value)
