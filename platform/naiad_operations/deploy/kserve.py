"""KServe: a ServingRuntime for models in Triton's layout, and an InferenceService that uses it."""

from __future__ import annotations

from typing import Any

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.kubernetes import container, scraping, topology_spread, volumes
from naiad_operations.deploy.options import DeployOptions
from naiad_operations.deploy.server import DeployedServer
from naiad_operations.deploy.templates import render

MODELS = "/mnt/models"  # folder into which KServe downloads the models of `storageUri`


def serving_runtime(server: DeployedServer, options: DeployOptions) -> str:
    """The ServingRuntime, or the ClusterServingRuntime, which serves all namespaces."""
    annotations = None
    if "metrics" in server.ports:
        annotations = {
            "prometheus.kserve.io/port": str(server.ports["metrics"]),
            "prometheus.kserve.io/path": "/metrics",
        }
    # A ServingRuntime has no security context for the pod, so the container gets its settings. `fsGroup` is a setting
    # of pods only; the container does not need it, because every user may write to an emptyDir.
    user = "runAsNonRoot: true\nseccompProfile: {type: RuntimeDefault}"
    user += "" if options.uid is None else f"\nrunAsUser: {options.uid}"
    return render(
        "serving_runtime.yaml",
        scope="Cluster" if options.is_for_cluster else "",
        name=server.name,
        namespace=None if options.is_for_cluster else options.namespace or None,
        annotations=annotations,
        protocols=["v2", "grpc-v2"] if "grpc" in server.ports else ["v2"],
        # KServe requires this name; it sends requests to the first port, and a Knative service must have exactly one.
        container=container(server, options, "kserve-container", ["http"], user),
        volumes=volumes(server, options),
    )


def inference_service(server: DeployedServer, options: DeployOptions) -> str:
    """An InferenceService with this runtime, for the models at `--storage-uri`, such as `s3://bucket/models`."""
    name = f"{server.name}-models"
    is_standard = options.is_standard or options.uses_keda
    if options.canary_percent is not None and is_standard:
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
    if options.uses_keda:
        if "metrics" not in server.ports:
            raise DeploymentError("cannot use --keda with --allow-metrics=false: it scales by metrics; enable them")
        annotations["serving.kserve.io/autoscalerClass"] = "keda"
        scaling = _scaling(name, options)
    return render(
        "inference_service.yaml",
        name=server.name,
        namespace=options.namespace or None,
        annotations=annotations or None,
        least=options.replicas,
        most=options.max_replicas or None,
        canary=options.canary_percent,
        scaling=scaling,
        # Knative rejects these two settings of pods.
        grace=server.grace if is_standard else None,
        spread=topology_spread({"serving.kserve.io/inferenceservice": name}) if is_standard else None,
        storage=options.storage_uri,
    )


def _scaling(service: str, options: DeployOptions) -> dict[str, Any]:
    """How KServe scales a predictor with KEDA: it divides pending requests by pods."""
    pods = f'namespace="{options.namespace}", pod=~"{service}-predictor-.*"'
    query = f"sum(nv_inference_pending_request_count{{{pods}}})"
    metric = {"backend": "prometheus", "serverAddress": options.prometheus, "query": query}
    target = {"type": "AverageValue", "averageValue": str(options.target_pending)}
    return {"metrics": [{"type": "External", "external": {"metric": metric, "target": target}}]}
