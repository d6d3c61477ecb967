"""KServe: a ServingRuntime for models in Triton's layout, and an InferenceService that uses it."""

from __future__ import annotations

from typing import Any

from naiad.deploy.kubernetes import Pod, container, pod_security, volumes
from naiad.deploy.server import Deployed

__all__ = ["MODELS", "MODEL_FORMAT", "inference_service", "serving_runtime"]

MODELS = "/mnt/models"
"""Where KServe puts what `storageUri` names."""
MODEL_FORMAT = "naiad"
_CONTAINER = "kserve-container"  # the name by which KServe knows it


def serving_runtime(server: Deployed, pod: Pod, *, cluster: bool = False) -> dict[str, Any]:
    """The ServingRuntime, or ClusterServingRuntime for all namespaces."""
    spec: dict[str, Any] = {
        "supportedModelFormats": [
            {"name": MODEL_FORMAT, "version": "1", "autoSelect": True, "priority": 1},
            # For services that were written for Triton, if they name this runtime.
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


def inference_service(server: Deployed, storage: str) -> dict[str, Any]:
    """An InferenceService with models at *storage*, such as `s3://bucket/models`."""
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": f"{server.name}-models"},
        "spec": {
            "predictor": {
                "model": {
                    "modelFormat": {"name": MODEL_FORMAT},
                    "runtime": server.name,
                    "protocolVersion": "v2",
                    "storageUri": storage,
                }
            }
        },
    }


def _container(server: Deployed, pod: Pod) -> dict[str, Any]:
    described = container(server, pod, name=_CONTAINER)
    # KServe sends requests to the first port, and a Knative service may have no more than one.
    # A runtime says nothing about the pod as a whole; its emptyDirs are anybody's to write to.
    whole = {key: value for key, value in pod_security(pod).items() if key != "fsGroup"}
    described["securityContext"] = {**whole, **described["securityContext"]}
    described["ports"] = [one for one in described["ports"] if one["name"] == "http"]
    return described
