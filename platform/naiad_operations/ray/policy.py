"""How many servers: as many as the requests of the busiest model, queued or executing, need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_REPORTED = "naiad_reported"  # the metric that each replica has, also one whose models have had no request
# The metric of a model: this and its name. Its value is the requests that are queued or executing.
_OF_MODEL = "naiad_requests:"


def metrics_of(requests: Mapping[str, int]) -> dict[str, float]:
    """The metrics of a replica, for `replicas_for_requests`.

    Args:
        requests: Requests that are queued or executing, by model. A model that has been in it stays, with 0: Serve
            takes the mean of the values that it has.
    """
    return {_REPORTED: 1.0, **{f"{_OF_MODEL}{name}": float(count) for name, count in requests.items()}}


def replicas_for_requests(context: Any) -> tuple[int, dict[str, Any]]:
    """Serve's autoscaling policy: as many replicas as the busiest model needs for its requests, and no state.

    Each model has its own instances and queue, so the requests of one do not fill those of another. A sum would
    also count a request in an ensemble, in each of its steps, and in each model that these call.

    Serve applies the limits, factors and delays of the deployment to the result.

    Serve's own counts in *context* are of no use here, since requests do not pass through its handles.
    """
    reported = context.aggregated_metrics or {}
    if not reported.get(_REPORTED):  # no replica has reported yet
        return context.target_num_replicas, {}
    busiest = max((sum(each.values()) for name, each in reported.items() if name.startswith(_OF_MODEL)), default=0.0)
    return max(1, math.ceil(busiest / context.config.get_target_ongoing_requests())), {}
