"""KServe: a ServingRuntime for models in Triton's layout, and an InferenceService that uses it."""

from __future__ import annotations

from typing import Any

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.autoscaling import Targets, kserve_metrics
from naiad_operations.deploy.kubernetes import Pod, container, pod_security, scraping, topology_spread, volumes
from naiad_operations.deploy.server import DeployedServer

__all__ = ["MODELS", "MODEL_FORMAT", "inference_service", "serving_runtime"]

MODELS = "/mnt/models"
"""Folder into which KServe downloads the models of `storageUri`."""
MODEL_FORMAT = "naiad"
_CONTAINER = "kserve-container"  # KServe requires this name


def serving_runtime(server: DeployedServer, pod: Pod, *, cluster: bool = False) -> dict[str, Any]:
    """The ServingRuntime; with *cluster*, a ClusterServingRuntime, which serves all namespaces."""
    spec: dict[str, Any] = {
        "supportedModelFormats": [
            {"name": MODEL_FORMAT, "version": "1", "autoSelect": True, "priority": 1},
            # Not auto-selected: a service written for Triton uses this runtime only if it names it.
            {"name": "triton", "version": "2"},
        ],
        "protocolVersions": ["v2", "grpc-v2"] if "grpc" in server.ports else ["v2"],
        "containers": [_container(server, pod)],
        "volumes": volumes(server, pod),
    }
    if "metrics" in server.ports:
        spec["annotations"] = {
            "prometheus.kserve.io/port": str(server.ports["metrics"]),
            "prometheus.kserve.io/path": "/metrics",
        }
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ClusterServingRuntime" if cluster else "ServingRuntime",
        "metadata": {"name": server.name},
        "spec": spec,
    }


def inference_service(
    server: DeployedServer,
    pod: Pod,
    storage: str,
    *,
    is_standard: bool = False,
    canary_percent: int | None = None,
    targets: Targets | None = None,
) -> dict[str, Any]:
    """An InferenceService that serves the models at *storage*, such as `s3://bucket/models`, with this runtime.

    Args:
        pod: Its pod; of it the numbers of replicas count here.
        is_standard: Whether KServe uses Deployments (`RawDeployment`) instead of Knative.
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
    predictor: dict[str, Any] = {"minReplicas": pod.replicas}
    if pod.max_replicas:
        predictor["maxReplicas"] = pod.max_replicas
    if canary_percent is not None:
        predictor["canaryTrafficPercent"] = canary_percent
    if targets is not None:
        if "metrics" not in server.ports:
            raise DeploymentError("cannot use --keda with --allow-metrics=false: it scales by metrics; enable them")
        annotations["serving.kserve.io/autoscalerClass"] = "keda"
        predictor["autoScaling"] = {"metrics": kserve_metrics(name, targets)}
    if is_standard:
        # Knative rejects these two settings of pods.
        predictor["terminationGracePeriodSeconds"] = server.grace
        predictor["topologySpreadConstraints"] = topology_spread({"serving.kserve.io/inferenceservice": name})
    predictor["model"] = {
        "modelFormat": {"name": MODEL_FORMAT},
        "runtime": server.name,
        "protocolVersion": "v2",
        "storageUri": storage,
    }
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name, **({"annotations": annotations} if annotations else {})},
        "spec": {"predictor": predictor},
    }


def _container(server: DeployedServer, pod: Pod) -> dict[str, Any]:
    runtime_container = container(server, pod, name=_CONTAINER)
    # A ServingRuntime has no security context for the pod, so the container gets its settings. `fsGroup` is a setting
    # of pods only; the container does not need it, because every user may write to an emptyDir.
    pod_settings = {key: value for key, value in pod_security(pod).items() if key != "fsGroup"}
    runtime_container["securityContext"] = {**pod_settings, **runtime_container["securityContext"]}
    # KServe sends requests to the first port, and a Knative service must have exactly one.
    runtime_container["ports"] = [port for port in runtime_container["ports"] if port["name"] == "http"]
    return runtime_container
