"""A backend's own metrics, on the server's metrics page."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from naiad_stub.exceptions import TritonModelException
from naiad_stub.metrics import MetricKind
from naiad_stub.native import memory
from naiad_stub.native.core import Core
from naiad_stub.native.errors import INTERNAL, INVALID_ARG, UNSUPPORTED, ApiCallError
from naiad_stub.native.functions.values import STRING, ValueFunctions
from naiad_stub.native.handles import HandleTable
from naiad_stub.queries import error_text
from naiad_stub.runtime import MetricStore


class HeldFamily:
    """A TRITONSERVER_MetricFamily.

    Attributes:
        kind: The kind of its metrics.
        handle: The store's handle.
        count: Its metrics that were not deleted.
    """

    __slots__ = ("count", "handle", "kind")

    def __init__(self, kind: MetricKind, handle: Any) -> None:
        self.kind = kind
        self.handle = handle
        self.count = 0


class HeldMetric:
    """A TRITONSERVER_Metric.

    Attributes:
        family: Its family.
        handle: The store's handle.
    """

    __slots__ = ("family", "handle")

    def __init__(self, family: HeldFamily, handle: Any) -> None:
        self.family = family
        self.handle = handle


class HistogramBounds:
    """A TRITONSERVER_MetricArgs."""

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        self.buckets: Optional[List[float]] = None


class UnseenMetrics(MetricStore):
    """Keeps metrics that no page shows, for a backend that only completes a configuration."""

    def new_family(self, name: str, description: str, kind: Any) -> Any:
        """Accept a family."""
        return None

    def new_metric(self, family: Any, labels: Dict[str, str], buckets: Optional[List[float]]) -> Any:
        """Accept a metric."""
        return [0.0]

    def increment(self, metric: Any, value: float) -> None:
        """Add to a metric."""
        metric[0] += value

    def set(self, metric: Any, value: float) -> None:
        """Set a metric."""
        metric[0] = value

    def value(self, metric: Any) -> float:
        """The value of a metric."""
        return float(metric[0])


class MetricFunctions:
    """Functions on metrics and their families."""

    def __init__(self, core: Core, values: ValueFunctions, store: MetricStore) -> None:
        self._core = core
        self._values = values
        self._store = store
        self._families: HandleTable[HeldFamily] = HandleTable("TRITONSERVER_MetricFamily")
        self._metrics: HandleTable[HeldMetric] = HandleTable("TRITONSERVER_Metric")
        self._bounds: HandleTable[HistogramBounds] = HandleTable("TRITONSERVER_MetricArgs")

    # -- families -------------------------------------------------------------------------------------------------

    def server_metric_family_new(
        self, family: int, kind: int, name: Optional[bytes], description: Optional[bytes]
    ) -> int:
        if not 0 <= kind <= MetricKind.HISTOGRAM:
            raise ApiCallError(INVALID_ARG, "pass unknown metric kind to create metric family")
        found = MetricKind(kind)
        made = self._ask(
            self._store.new_family,
            memory.text_of(name, "the family's name"),
            memory.text_of(description, "the description"),
            found,
        )
        memory.set_uint64(family, self._families.add(HeldFamily(found, made)))
        return 0

    def server_metric_family_delete(self, family: int) -> int:
        found = self._families[family]
        if found.count:
            raise ApiCallError(
                INTERNAL, "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete."
            )
        self._families.remove(family)
        self._store.drop_family(found.handle)
        return 0

    def server_get_metric_family_kind(self, family: int, kind: int) -> int:
        memory.set_uint32(kind, int(self._families[family].kind))
        return 0

    # -- metrics --------------------------------------------------------------------------------------------------

    def server_metric_args_new(self, bounds: int) -> int:
        memory.set_uint64(bounds, self._bounds.add(HistogramBounds()))
        return 0

    def server_metric_args_set_histogram(self, bounds: int, buckets: int, count: int) -> int:
        self._bounds[bounds].buckets = list(memory.read_doubles(buckets, count))
        return 0

    def server_metric_args_delete(self, bounds: int) -> int:
        self._bounds.remove(bounds)
        return 0

    def server_metric_new(self, metric: int, family: int, labels: int, count: int) -> int:
        return self.server_metric_new_with_args(metric, family, labels, count, 0)

    def server_metric_new_with_args(self, metric: int, family: int, labels: int, count: int, bounds: int) -> int:
        found = self._families[family]
        buckets = self._bounds[bounds].buckets if bounds else None
        if found.kind is MetricKind.HISTOGRAM:
            if buckets is None:
                raise ApiCallError(INVALID_ARG, "a histogram needs TRITONSERVER_MetricArgs with its buckets")
            if not all(low < high for low, high in zip(buckets, buckets[1:])):
                raise ApiCallError(INVALID_ARG, "Bucket Boundaries must be strictly sorted")
        else:
            buckets = None
        made = self._ask(self._store.new_metric, found.handle, self._labels(labels, count), buckets)
        found.count += 1
        memory.set_uint64(metric, self._metrics.add(HeldMetric(found, made)))
        return 0

    def _labels(self, labels: int, count: int) -> Dict[str, str]:
        named = {}
        for handle in memory.read_pointers(labels, count):
            parameter = self._values.parameters[handle]
            if parameter.kind != STRING:
                raise ApiCallError(
                    INVALID_ARG,
                    f"Parameter [{parameter.name}] must have a type of TRITONSERVER_PARAMETER_STRING to be added as a "
                    "label.",
                )
            named[parameter.name] = str(parameter.value)
        return named

    def server_metric_delete(self, metric: int) -> int:
        # It stays on the page until its family is deleted: the server keeps metrics with their families.
        self._metrics.remove(metric).family.count -= 1
        return 0

    def server_metric_value(self, metric: int, value: int) -> int:
        found = self._metrics[metric]
        if found.family.kind is MetricKind.HISTOGRAM:
            raise ApiCallError(UNSUPPORTED, "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value")
        memory.set_double(value, self._ask(self._store.value, found.handle))
        return 0

    def server_metric_increment(self, metric: int, value: float) -> int:
        found = self._metrics[metric]
        if found.family.kind is MetricKind.HISTOGRAM:
            raise ApiCallError(UNSUPPORTED, "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment")
        if found.family.kind is MetricKind.COUNTER and value < 0:
            raise ApiCallError(
                INVALID_ARG,
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
            )
        self._store.increment(found.handle, value)
        return 0

    def server_metric_set(self, metric: int, value: float) -> int:
        found = self._metrics[metric]
        if found.family.kind is not MetricKind.GAUGE:
            raise ApiCallError(UNSUPPORTED, f"TRITONSERVER_METRIC_KIND_{found.family.kind.name} does not support Set")
        self._store.set(found.handle, value)
        return 0

    def server_metric_observe(self, metric: int, value: float) -> int:
        found = self._metrics[metric]
        if found.family.kind is not MetricKind.HISTOGRAM:
            raise ApiCallError(
                UNSUPPORTED, f"TRITONSERVER_METRIC_KIND_{found.family.kind.name} does not support Observe"
            )
        self._store.observe(found.handle, value)
        return 0

    def server_get_metric_kind(self, metric: int, kind: int) -> int:
        memory.set_uint32(kind, int(self._metrics[metric].family.kind))
        return 0

    def _ask(self, function: Any, *arguments: Any) -> Any:
        """Call the store; its errors begin with what the model called, which the caller of this API knows."""
        try:
            return function(*arguments)
        except TritonModelException as error:
            prefix = error_text(self._store.instance_name, "")
            raise ApiCallError(INVALID_ARG, str(error).rpartition(prefix)[2]) from None
