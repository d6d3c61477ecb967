"""Kubernetes: a Deployment with probes, limits and a read-only root file system, and a Service."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from naiad.deploy.server import LIVE, READY, STORE, DeployedServer
from naiad.errors import DeploymentError

__all__ = ["Pod", "container", "deployment", "pod_security", "service", "volumes"]

_TEMPORARY = "/tmp"  # noqa: S108 - a folder of the container, not of this machine
_CPUS = re.compile(r"\d+(\.\d+)?|\d+m")
_MEMORY = re.compile(r"\d+(\.\d+)?([KMGTPE]i|[kMGTPE])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The settings of a pod.

    Attributes:
        image: Image of the container.
        command: Command of the container; empty for the image's own.
        args: The server's flags; empty if the image has them.
        cpus: CPU request and limit, `2` or `500m`.
        memory: Memory request and limit, `8Gi`.
        gpus: Number of NVIDIA GPUs.
        replicas: Number of pods.
        models_claim: PersistentVolumeClaim that is mounted at the folders of the repositories; empty for none.
        store_claim: PersistentVolumeClaim for the store; empty for an emptyDir, which is deleted with the pod.
        uid: User id to run as; None for the image's user.
    """

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    cpus: str = "2"
    memory: str = "4Gi"
    gpus: int = 0
    replicas: int = 1
    models_claim: str = ""
    store_claim: str = ""
    uid: int | None = None

    def __post_init__(self) -> None:
        """Reject quantities that Kubernetes would reject when the file is applied.

        Raises:
            DeploymentError: If a quantity is malformed.
        """
        if not _CPUS.fullmatch(self.cpus):
            raise DeploymentError(f"cannot use --cpus={self.cpus}: expected a number of processors, such as 2 or 500m")
        if not _MEMORY.fullmatch(self.memory):
            raise DeploymentError(
                f"cannot use --memory={self.memory}: expected a quantity of Kubernetes, such as 8Gi or 8G"
            )


def deployment(server: DeployedServer, pod: Pod) -> dict[str, Any]:
    """The Deployment."""
    labels = _labels(server)
    template = {
        "metadata": {"labels": labels, "annotations": _scraping(server)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(pod),
            "terminationGracePeriodSeconds": server.grace,
            "containers": [container(server, pod)],
            "volumes": volumes(server, pod),
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": server.name, "labels": labels},
        "spec": {"replicas": pod.replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def service(server: DeployedServer) -> dict[str, Any]:
    """The Service."""
    labels = _labels(server)
    ports = [{"name": name, "port": port, "targetPort": name} for name, port in server.ports.items()]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": server.name, "labels": labels},
        "spec": {"type": "ClusterIP", "selector": labels, "ports": ports},
    }


def container(server: DeployedServer, pod: Pod, *, name: str = "naiad") -> dict[str, Any]:
    """The container of a pod; Kubernetes and KServe share it."""
    resources: dict[str, Any] = {"cpu": pod.cpus, "memory": pod.memory}
    if pod.gpus:
        resources["nvidia.com/gpu"] = str(pod.gpus)
    start: dict[str, Any] = {"name": name, "image": pod.image}
    if pod.command:
        start["command"] = list(pod.command)
    if pod.args:
        start["args"] = list(pod.args)
    mounts: list[dict[str, Any]] = [
        {"name": "store", "mountPath": STORE},
        {"name": "temporary", "mountPath": _TEMPORARY},
    ]
    if pod.models_claim:
        mounts += [
            {"name": "models", "mountPath": str(folder), "subPath": folder.name, "readOnly": True}
            for folder in server.folders
        ]
    return {
        **start,
        "env": [{"name": "NAIAD_STORE", "value": STORE}, {"name": "HOME", "value": _TEMPORARY}],
        "ports": [{"name": port, "containerPort": number, "protocol": "TCP"} for port, number in server.ports.items()],
        # 720 probes, 5 s apart: the server has an hour to unpack environments and load models.
        "startupProbe": server.probe(READY, periodSeconds=5, failureThreshold=720),
        "livenessProbe": server.probe(LIVE, periodSeconds=10, failureThreshold=3),
        "readinessProbe": server.probe(READY, periodSeconds=5, failureThreshold=3),
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def pod_security(pod: Pod) -> dict[str, Any]:
    """The security context of the pod: any user but root."""
    user = {} if pod.uid is None else {"runAsUser": pod.uid}
    # Kubernetes gives the store's volume to this group, so that any user of the pod may write to it.
    return {"runAsNonRoot": True, **user, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}


def volumes(server: DeployedServer, pod: Pod) -> list[dict[str, Any]]:
    """The volumes of the pod: the store, temporary files, and the models if a claim has them."""
    store: dict[str, Any] = (
        {"persistentVolumeClaim": {"claimName": pod.store_claim}} if pod.store_claim else {"emptyDir": {}}
    )
    mounted: list[dict[str, Any]] = [{"name": "store", **store}, {"name": "temporary", "emptyDir": {}}]
    if pod.models_claim and server.folders:
        mounted.append({"name": "models", "persistentVolumeClaim": {"claimName": pod.models_claim, "readOnly": True}})
    return mounted


def _labels(server: DeployedServer) -> dict[str, str]:
    return {"app.kubernetes.io/name": "naiad", "app.kubernetes.io/instance": server.name}


def _scraping(server: DeployedServer) -> dict[str, str]:
    """The pod annotations by which most installations of Prometheus find the metrics port."""
    if "metrics" not in server.ports:
        return {}
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(server.ports["metrics"]),
        "prometheus.io/path": "/metrics",
    }
