"""How many servers: as many as their requests, queued or executing, need."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["REQUESTS", "replicas_for_requests"]

REQUESTS = "naiad_requests"
"""The metric of each replica: requests that are queued or executing in all models of its server."""


def replicas_for_requests(context: Any) -> tuple[int, dict[str, Any]]:
    """Serve's autoscaling policy: the number of replicas with the target of requests each, and no state.

    Serve applies the limits, factors and delays of the deployment to the result.

    Args:
        context: Serve's `AutoscalingContext`. Serve's own counts are of no use here, since requests do not pass through
            its handles.
    """
    reported = (context.aggregated_metrics or {}).get(REQUESTS)
    if not reported:  # no replica has reported yet
        return context.target_num_replicas, {}
    return max(1, math.ceil(sum(reported.values()) / context.config.get_target_ongoing_requests())), {}
