"""What Prometheus does with a server's metrics in Kubernetes: autoscaling, and alerts.

Pods are added by what requests experience: how long they are queued, and how many are pending.

CPU says little about a server of models: a GPU computes while the CPU idles, and one busy instance leaves other cores
idle. Both metrics below come from `/metrics`, through Prometheus.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.kubernetes import Pod, labels
from naiad_operations.deploy.server import DeployedServer

__all__ = [
    "PENDING",
    "QUEUE",
    "Targets",
    "horizontal_pod_autoscaler",
    "kserve_metrics",
    "pod_monitor",
    "prometheus_rule",
    "scaled_object",
]

QUEUE, PENDING = "naiad_queue_milliseconds", "naiad_pending_requests"
"""Series that the recording rules write for each pod."""
_SCRAPE = "15s"
_WINDOW = "1m"  # four scrapes; a rate needs two at least
_COOL_DOWN_SECONDS = 300
"""A pod that stops loses its loaded models: wait until the load has been low for this long."""
_PENDING_COUNT = "nv_inference_pending_request_count"
_INSTANCE = "app.kubernetes.io/instance"
_INSTANCE_IN_PROMETHEUS = "app_kubernetes_io_instance"  # Prometheus replaces what its label names cannot contain


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The load at which the autoscaler adds pods.

    Attributes:
        prometheus: URL that KEDA queries; empty if nothing does.
        namespace: Namespace of the pods, by which KEDA's queries select them; empty if nothing queries.
    """

    queue_milliseconds: int = 50
    pending: int = 8
    prometheus: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        """Reject an address that is not a URL."""
        if self.prometheus and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", self.prometheus):
            raise DeploymentError(
                f"cannot use --prometheus-url={self.prometheus}: expected a URL, such as "
                "http://prometheus-operated.monitoring.svc:9090"
            )


def pod_monitor(server: DeployedServer) -> dict[str, Any]:
    """The PodMonitor, by which the Prometheus operator finds the metrics of the pods."""
    if "metrics" not in server.ports:
        raise DeploymentError("cannot monitor the pods with --allow-metrics=false: enable metrics")
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": server.name, "labels": labels(server)},
        "spec": {
            "selector": {"matchLabels": labels(server)},
            "podTargetLabels": [_INSTANCE],
            "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": _SCRAPE}],
        },
    }


def prometheus_rule(server: DeployedServer, namespace: str = "", *, records: bool) -> dict[str, Any]:
    """The PrometheusRule with alerts, and with the two series of each pod that adapters offer to autoscalers.

    Args:
        namespace: Namespace of the pods; empty for those of all namespaces.
        records: Whether to write the two series.
    """
    selected = _selector(server.name, namespace)
    series = [
        {"record": QUEUE, "expr": _queue_query(selected, "by (namespace, pod) ")},
        {"record": PENDING, "expr": f"sum by (namespace, pod) ({_PENDING_COUNT}{selected})"},
    ]
    groups = [{"name": server.name, "interval": _SCRAPE, "rules": series}] if records else []
    groups.append({"name": f"{server.name}-alerts", "interval": _SCRAPE, "rules": _alerts(selected)})
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": server.name, "labels": labels(server)},
        "spec": {"groups": groups},
    }


def _alerts(selected: str) -> list[dict[str, Any]]:
    """The alerts: about models that refuse requests, or do not serve with all their instances."""
    fatal = f'{selected[:-1]}, reason="fatal"}}'
    return [
        {
            "alert": "NaiadRequestsRefusedAsFatal",
            "expr": f"sum by (namespace, pod, model) (increase(naiad_requests_refused_total{fatal}[5m])) > 0",
            "labels": {"severity": "warning"},
            "annotations": {
                "summary": "Model {{ $labels.model }} refuses requests that ended its processes",
                "description": (
                    "Clients get status 500 for requests with inputs that ended several processes of model "
                    "{{ $labels.model }} in pod {{ $labels.pod }}. The log names how the last process ended."
                ),
            },
        },
        {
            "alert": "NaiadModelNotReady",
            "expr": f"min by (namespace, pod, model) (naiad_model_ready{selected}) == 0",
            "for": "5m",
            "labels": {"severity": "warning"},
            "annotations": {
                "summary": "Model {{ $labels.model }} has not been ready for five minutes",
                "description": (
                    "An instance of model {{ $labels.model }} in pod {{ $labels.pod }} does not serve, or the model "
                    "refuses requests. The page at /ui says which, and the log why."
                ),
            },
        },
    ]


def horizontal_pod_autoscaler(server: DeployedServer, pod: Pod, targets: Targets) -> dict[str, Any]:
    """The HorizontalPodAutoscaler; the greater of the two metrics' numbers of pods counts."""
    wanted = ((QUEUE, targets.queue_milliseconds), (PENDING, targets.pending))
    metrics = [
        {
            "type": "Pods",
            "pods": {"metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": str(value)}},
        }
        for name, value in wanted
    ]
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": server.name, "labels": labels(server)},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": server.name},
            "minReplicas": max(pod.replicas, 1),
            "maxReplicas": pod.max_replicas,
            "metrics": metrics,
            "behavior": _behavior(),
        },
    }


def scaled_object(server: DeployedServer, pod: Pod, targets: Targets) -> dict[str, Any]:
    """KEDA's ScaledObject, which replaces the HorizontalPodAutoscaler and needs no adapter of Prometheus."""
    _require_source(targets)
    selected = _selector(server.name, targets.namespace)
    triggers = [
        # The mean is the same for any number of pods, so it is compared as it is; KEDA divides the sum by the pods.
        _trigger(targets, "Value", _queue_query(selected), targets.queue_milliseconds),
        _trigger(targets, "AverageValue", f"sum({_PENDING_COUNT}{selected})", targets.pending),
    ]
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": server.name, "labels": labels(server)},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": server.name},
            # Not 0: requests cannot wait for the first pod, because nothing accepts their connections.
            "minReplicaCount": max(pod.replicas, 1),
            "maxReplicaCount": pod.max_replicas,
            "pollingInterval": 15,
            "cooldownPeriod": _COOL_DOWN_SECONDS,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior()}},
            "triggers": triggers,
        },
    }


def kserve_metrics(service: str, targets: Targets) -> list[dict[str, Any]]:
    """The `autoScaling.metrics` of a predictor that KServe scales with KEDA: it divides pending requests by pods."""
    _require_source(targets)
    query = f'sum({_PENDING_COUNT}{{namespace="{targets.namespace}", pod=~"{service}-predictor-.*"}})'
    metric = {"backend": "prometheus", "serverAddress": targets.prometheus, "query": query}
    target = {"type": "AverageValue", "averageValue": str(targets.pending)}
    return [{"type": "External", "external": {"metric": metric, "target": target}}]


def _selector(name: str, namespace: str) -> str:
    """The labels of all pods of a server; the servers of other namespaces may have the same name."""
    place = f'namespace="{namespace}", ' if namespace else ""
    return f'{{{place}{_INSTANCE_IN_PROMETHEUS}="{name}"}}'


def _queue_query(selected: str, group: str = "") -> str:
    """The query for the mean time in milliseconds that requests of the last minute were queued."""
    queued, requests = (
        f"sum {group}(rate({series}{selected}[{_WINDOW}]))"
        for series in ("nv_inference_queue_duration_us", "nv_inference_request_success")
    )
    # Without requests the quotient would be NaN, which autoscalers treat as an error.
    return f"{queued} / 1000 / clamp_min({requests}, 0.001)"


def _trigger(targets: Targets, metric_type: str, query: str, threshold: int) -> dict[str, Any]:
    return {
        "type": "prometheus",
        "metricType": metric_type,
        "metadata": {"serverAddress": targets.prometheus, "query": query, "threshold": str(threshold)},
    }


def _behavior() -> dict[str, Any]:
    return {
        "scaleDown": {
            "stabilizationWindowSeconds": _COOL_DOWN_SECONDS,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        }
    }


def _require_source(targets: Targets) -> None:
    if not targets.prometheus:
        raise DeploymentError(
            "cannot use --keda: the address of Prometheus is missing; add --prometheus-url=URL, such as "
            "http://prometheus-operated.monitoring.svc:9090"
        )
    if not targets.namespace:
        raise DeploymentError(
            "cannot use --keda: the namespace is missing, and its queries would count the requests of servers with "
            "this name in all namespaces; add --namespace=NAME"
        )
