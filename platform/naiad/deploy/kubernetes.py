"""Kubernetes: a deployment with probes, limits and a root that nobody writes to, and a service before it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from naiad.deploy.server import LIVE, READY, STORE, Deployed
from naiad.errors import DeploymentError

__all__ = ["Pod", "container", "deployment", "pod_security", "service", "volumes"]

_TEMPORARY = "/tmp"  # noqa: S108 - in the container
_CPUS = re.compile(r"\d+(\.\d+)?|\d+m")
_MEMORY = re.compile(r"\d+(\.\d+)?([KMGTPE]i|[kMGTPE])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What a pod is to be.

    Attributes:
        image: Of the container.
        command: In the place of the image's own; empty for that.
        args: The server's flags; empty where the image has them.
        cpus: How many processors it asks for and gets.
        memory: How much memory, `8Gi`.
        gpus: How many of NVIDIA's GPUs.
        replicas: How many pods.
        models_claim: A claim of a volume that is mounted where the repositories are; empty for none.
        store_claim: A claim of a volume for the store; empty for one that goes with the pod.
        uid: A user to run as; None for the image's own.
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
        """Look at the amounts, which Kubernetes would refuse when the file is applied.

        Raises:
            DeploymentError: If one is none.
        """
        if not _CPUS.fullmatch(self.cpus):
            raise DeploymentError(f"--cpus={self.cpus} is no number of processors, such as 2 or 500m")
        if not _MEMORY.fullmatch(self.memory):
            raise DeploymentError(
                f"--memory={self.memory} is no amount of memory as Kubernetes writes it, such as 8Gi or 8G"
            )


def deployment(server: Deployed, pod: Pod) -> dict[str, Any]:
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


def service(server: Deployed) -> dict[str, Any]:
    """The Service."""
    labels = _labels(server)
    ports = [{"name": name, "port": port, "targetPort": name} for name, port in server.ports.items()]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": server.name, "labels": labels},
        "spec": {"type": "ClusterIP", "selector": labels, "ports": ports},
    }


def container(server: Deployed, pod: Pod, *, name: str = "naiad") -> dict[str, Any]:
    """The container: what Kubernetes and KServe have in common."""
    amounts: dict[str, Any] = {"cpu": pod.cpus, "memory": pod.memory}
    if pod.gpus:
        amounts["nvidia.com/gpu"] = str(pod.gpus)
    described: dict[str, Any] = {"name": name, "image": pod.image}
    if pod.command:
        described["command"] = list(pod.command)
    if pod.args:
        described["args"] = list(pod.args)
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
        **described,
        "env": [{"name": "NAIAD_STORE", "value": STORE}, {"name": "HOME", "value": _TEMPORARY}],
        "ports": [{"name": port, "containerPort": number, "protocol": "TCP"} for port, number in server.ports.items()],
        # Environments are unpacked before models are ready: that takes as long as it takes, an hour at most.
        "startupProbe": server.probe(READY, periodSeconds=5, failureThreshold=720),
        "livenessProbe": server.probe(LIVE, periodSeconds=10, failureThreshold=3),
        "readinessProbe": server.probe(READY, periodSeconds=5, failureThreshold=3),
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def pod_security(pod: Pod) -> dict[str, Any]:
    """Who the pod runs as: anybody but root."""
    user = {} if pod.uid is None else {"runAsUser": pod.uid}
    # The store's volume belongs to this group, so whoever the user is may write to it.
    return {"runAsNonRoot": True, **user, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}


def volumes(server: Deployed, pod: Pod) -> list[dict[str, Any]]:
    """The store, temporary files, and the models if they are not in the image."""
    kept: dict[str, Any] = (
        {"persistentVolumeClaim": {"claimName": pod.store_claim}} if pod.store_claim else {"emptyDir": {}}
    )
    found: list[dict[str, Any]] = [{"name": "store", **kept}, {"name": "temporary", "emptyDir": {}}]
    if pod.models_claim and server.folders:
        found.append({"name": "models", "persistentVolumeClaim": {"claimName": pod.models_claim, "readOnly": True}})
    return found


def _labels(server: Deployed) -> dict[str, str]:
    return {"app.kubernetes.io/name": "naiad", "app.kubernetes.io/instance": server.name}


def _scraping(server: Deployed) -> dict[str, str]:
    """Where Prometheus finds metrics, by the annotations that most installations look for."""
    if "metrics" not in server.ports:
        return {}
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(server.ports["metrics"]),
        "prometheus.io/path": "/metrics",
    }
