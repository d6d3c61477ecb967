"""KServe: a ServingRuntime for models in Triton's layout, and an InferenceService that uses it."""

from __future__ import annotations

from typing import Any

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.kubernetes import Pod, Targets, container, scraping, topology_spread, volumes
from naiad_operations.deploy.server import DeployedServer
from naiad_operations.deploy.templates import render

MODELS = "/mnt/models"  # folder into which KServe downloads the models of `storageUri`


def serving_runtime(server: DeployedServer, pod: Pod, *, cluster: bool = False) -> str:
    """The ServingRuntime; with *cluster*, a ClusterServingRuntime, which serves all namespaces."""
    annotations = None
    if "metrics" in server.ports:
        annotations = {
            "prometheus.kserve.io/port": str(server.ports["metrics"]),
            "prometheus.kserve.io/path": "/metrics",
        }
    # A ServingRuntime has no security context for the pod, so the container gets its settings. `fsGroup` is a setting
    # of pods only; the container does not need it, because every user may write to an emptyDir.
    user = "runAsNonRoot: true\nseccompProfile: {type: RuntimeDefault}"
    user += "" if pod.uid is None else f"\nrunAsUser: {pod.uid}"
    return render(
        "serving_runtime.yaml",
        scope="Cluster" if cluster else "",
        name=server.name,
        namespace=None if cluster else pod.namespace,
        annotations=annotations,
        protocols=["v2", "grpc-v2"] if "grpc" in server.ports else ["v2"],
        # KServe requires this name; it sends requests to the first port, and a Knative service must have exactly one.
        container=container(server, pod, "kserve-container", ["http"], user),
        volumes=volumes(server, pod),
    )


def inference_service(
    server: DeployedServer,
    pod: Pod,
    storage: str,
    *,
    is_standard: bool = False,
    canary_percent: int | None = None,
    targets: Targets | None = None,
) -> str:
    """An InferenceService that serves the models at *storage*, such as `s3://bucket/models`, with this runtime.

    Args:
        pod: Its pod; of it the namespace and the numbers of replicas count here.
        canary_percent: Share of the requests for the newest revision; None for all.
    """
    name = f"{server.name}-models"
    if canary_percent is not None and is_standard:
        raise DeploymentError(
            "cannot use --canary-percent with --standard or --keda: only Knative splits requests between revisions; "
            "use a model of the remote backend with weights instead"
        )
    annotations: dict[str, str] = {}
    if is_standard:
        annotations = {"serving.kserve.io/deploymentMode": "RawDeployment", **scraping(server)}
        # With "true", KServe would replace the port by that of Knative's proxy (9091), which these pods do not have
        # (kserve, pkg/webhook/admission/pod/metrics_aggregate_injector.go).
        annotations["serving.kserve.io/enable-prometheus-scraping"] = "false"
    scaling = None
    if targets is not None:
        if "metrics" not in server.ports:
            raise DeploymentError("cannot use --keda with --allow-metrics=false: it scales by metrics; enable them")
        annotations["serving.kserve.io/autoscalerClass"] = "keda"
        scaling = _scaling(name, pod, targets)
    return render(
        "inference_service.yaml",
        name=server.name,
        namespace=pod.namespace,
        annotations=annotations or None,
        least=pod.replicas,
        most=pod.max_replicas or None,
        canary=canary_percent,
        scaling=scaling,
        # Knative rejects these two settings of pods.
        grace=server.grace if is_standard else None,
        spread=topology_spread({"serving.kserve.io/inferenceservice": name}) if is_standard else None,
        storage=storage,
    )


def _scaling(service: str, pod: Pod, targets: Targets) -> dict[str, Any]:
    """How KServe scales a predictor with KEDA: it divides pending requests by pods."""
    targets.check_keda(pod)
    pods = f'namespace="{pod.namespace}", pod=~"{service}-predictor-.*"'
    query = f"sum(nv_inference_pending_request_count{{{pods}}})"
    metric = {"backend": "prometheus", "serverAddress": targets.prometheus, "query": query}
    target = {"type": "AverageValue", "averageValue": str(targets.pending)}
    return {"metrics": [{"type": "External", "external": {"metric": metric, "target": target}}]}
