"""Kubernetes: a Deployment with probes, limits and a read-only root file system, and the objects that protect it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.server import LIVE, READY, STORE, DeployedServer

__all__ = [
    "Pod",
    "check_memory",
    "container",
    "deployment",
    "disruption_budget",
    "labels",
    "model_mounts",
    "model_volume",
    "network_policy",
    "pod_security",
    "scraping",
    "service",
    "topology_spread",
    "volumes",
]

_TEMPORARY = "/tmp"  # noqa: S108 - a folder of the container, not of this machine
START_SECONDS = 3600
"""How long a start may take."""
_CPUS = re.compile(r"\d+(\.\d+)?|\d+m")
_MEMORY = re.compile(r"\d+(\.\d+)?([KMGTPE]i|[kMGTPE])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The settings of a pod.

    Attributes:
        command: Command of the container; empty for the image's own.
        replicas: Number of pods; with *max_replicas* the smallest number.
        max_replicas: Largest number of pods that an autoscaler may start; 0 without an autoscaler.
        is_monitored: Whether a PodMonitor names the metrics port, so that annotations need not.
        has_surge: Whether a new release starts one pod more before it stops an old one. It cannot where the new pod
            needs what the old one holds: the last GPU, or a volume that only one node mounts.
        models_claim: PersistentVolumeClaim that is mounted at the folders of the repositories; empty for none.
        store_claim: PersistentVolumeClaim for the store; empty for an emptyDir, which is deleted with the pod.
    """

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    cpus: str = "2"
    memory: str = "4Gi"
    gpus: int = 0
    replicas: int = 1
    max_replicas: int = 0
    is_monitored: bool = False
    has_surge: bool = True
    models_claim: str = ""
    store_claim: str = ""
    uid: int | None = None

    def __post_init__(self) -> None:
        """Reject quantities that Kubernetes would reject when the file is applied."""
        if not _CPUS.fullmatch(self.cpus):
            raise DeploymentError(f"cannot use --cpus={self.cpus}: expected a number of processors, such as 2 or 500m")
        check_memory(self.memory)
        if self.max_replicas and self.max_replicas < self.replicas:
            raise DeploymentError(
                f"cannot use --max-replicas={self.max_replicas}: it is less than --replicas={self.replicas}"
            )


def check_memory(memory: str) -> None:
    """Reject an amount of memory that Kubernetes would reject."""
    if not _MEMORY.fullmatch(memory):
        raise DeploymentError(f"cannot use --memory={memory}: expected a quantity of Kubernetes, such as 8Gi or 8G")


def labels(server: DeployedServer) -> dict[str, str]:
    """The labels that select the server's pods."""
    return {"app.kubernetes.io/name": "naiad", "app.kubernetes.io/instance": server.name}


def deployment(server: DeployedServer, pod: Pod) -> dict[str, Any]:
    """The Deployment: a new release replaces the pods one by one."""
    template = {
        "metadata": {"labels": labels(server), "annotations": {} if pod.is_monitored else scraping(server)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(pod),
            "terminationGracePeriodSeconds": server.grace,
            "topologySpreadConstraints": topology_spread(labels(server)),
            "containers": [container(server, pod)],
            "volumes": volumes(server, pod),
        },
    }
    # An autoscaler owns the number: with a number here, each `kubectl apply` would undo its work.
    replicas = {} if pod.max_replicas else {"replicas": pod.replicas}
    surge, unavailable = (1, 0) if pod.has_surge else (0, 1)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": server.name, "labels": labels(server)},
        "spec": {
            **replicas,
            "strategy": strategy,
            # Kubernetes gives a pod up after 10 minutes by default, but a start may take an hour (`startupProbe`).
            "progressDeadlineSeconds": START_SECONDS + 60,
            "selector": {"matchLabels": labels(server)},
            "template": template,
        },
    }


def service(server: DeployedServer) -> dict[str, Any]:
    """The Service."""
    ports = [{"name": name, "port": port, "targetPort": name} for name, port in server.ports.items()]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": server.name, "labels": labels(server)},
        "spec": {"type": "ClusterIP", "selector": labels(server), "ports": ports},
    }


def disruption_budget(server: DeployedServer) -> dict[str, Any]:
    """The PodDisruptionBudget: nodes that are drained take one pod at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": server.name, "labels": labels(server)},
        # Not `minAvailable`: with a single pod it would block the drain of its node forever. A pod that is not ready
        # must not block it either.
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels(server)},
        },
    }


def network_policy(server: DeployedServer, namespaces: Sequence[str]) -> dict[str, Any]:
    """The NetworkPolicy: the server's and these namespaces may connect, and all to the metrics, for Prometheus."""
    own: dict[str, Any] = {"podSelector": {}}
    others = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}} for name in namespaces]
    clients = [{"port": name, "protocol": "TCP"} for name in server.ports if name != "metrics"]
    ingress: list[dict[str, Any]] = [{"from": [own, *others], "ports": clients}]
    if "metrics" in server.ports:
        ingress.append({"from": [{"namespaceSelector": {}}], "ports": [{"port": "metrics", "protocol": "TCP"}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": server.name, "labels": labels(server)},
        "spec": {"podSelector": {"matchLabels": labels(server)}, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def topology_spread(selected: Mapping[str, str]) -> list[dict[str, Any]]:
    """Constraints that spread the pods with these labels over zones and nodes, where there are several."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(selected)},
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


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
        mounts += model_mounts(server.folders)
    return {
        **start,
        "env": [{"name": "NAIAD_STORE", "value": STORE}, {"name": "HOME", "value": _TEMPORARY}],
        "ports": [{"name": port, "containerPort": number, "protocol": "TCP"} for port, number in server.ports.items()],
        # The server has an hour to unpack environments and load models.
        "startupProbe": server.probe(READY, periodSeconds=5, failureThreshold=START_SECONDS // 5),
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
        mounted.append(model_volume(pod.models_claim))
    return mounted


def model_volume(claim: str) -> dict[str, Any]:
    """The volume of a PersistentVolumeClaim with the folders of the models, which `model_mounts` mount."""
    return {"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def model_mounts(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """The mounts of the models' folders: each is the claim's folder that is named as the last part of its path."""
    mounts = []
    for folder in folders:
        if not folder.is_absolute():
            raise DeploymentError(f"cannot mount a claim at {folder}: expected an absolute path of the container")
        mounts.append({"name": "models", "mountPath": str(folder), "subPath": folder.name, "readOnly": True})
    return mounts


def scraping(server: DeployedServer) -> dict[str, str]:
    """The pod annotations by which most installations of Prometheus find the metrics port."""
    if "metrics" not in server.ports:
        return {}
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(server.ports["metrics"]),
        "prometheus.io/path": "/metrics",
    }
