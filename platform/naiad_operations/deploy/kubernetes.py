"""Kubernetes: a Deployment with probes, limits and a read-only root file system, and the objects around it.

An autoscaler adds pods by what requests experience: how long they are queued, and how many are pending. CPU says little
about a server of models: a GPU computes while the CPU idles, and one busy instance leaves other cores idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.server import STORE, DeployedServer
from naiad_operations.deploy.templates import render

_CPUS = re.compile(r"\d+(\.\d+)?|\d+m")
_MEMORY = re.compile(r"\d+(\.\d+)?([KMGTPE]i|[kMGTPE])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The settings of a pod."""

    image: str
    namespace: str | None = None
    cpus: str = "2"
    memory: str = "4Gi"
    gpus: int = 0
    replicas: int = 1
    max_replicas: int = 0
    is_monitored: bool = False  # whether a PodMonitor names the metrics port, so that annotations need not
    # Whether a new release starts one pod more before it stops an old one. It cannot where the new pod needs what the
    # old one holds: the last GPU, or a volume that only one node mounts.
    has_surge: bool = True
    models_claim: str = ""  # PersistentVolumeClaim that is mounted at the folders of the repositories; empty for none
    store_claim: str = ""  # PersistentVolumeClaim for the store; empty for an emptyDir, which is deleted with the pod
    uid: int | None = None

    def __post_init__(self) -> None:
        if not _CPUS.fullmatch(self.cpus):
            raise DeploymentError(f"cannot use --cpus={self.cpus}: expected a number of processors, such as 2 or 500m")
        check_memory(self.memory)
        if self.max_replicas and self.max_replicas < self.replicas:
            raise DeploymentError(
                f"cannot use --max-replicas={self.max_replicas}: it is less than --replicas={self.replicas}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The load at which the autoscaler adds pods; *prometheus* is the URL that KEDA queries, empty if nothing does."""

    queue_milliseconds: int = 50
    pending: int = 8
    prometheus: str = ""

    def __post_init__(self) -> None:
        if self.prometheus and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", self.prometheus):
            raise DeploymentError(
                f"cannot use --prometheus-url={self.prometheus}: expected a URL, such as "
                "http://prometheus-operated.monitoring.svc:9090"
            )

    def check_keda(self, pod: Pod) -> None:
        if not self.prometheus:
            raise DeploymentError(
                "cannot use --keda: the address of Prometheus is missing; add --prometheus-url=URL, such as "
                "http://prometheus-operated.monitoring.svc:9090"
            )
        if not pod.namespace:
            raise DeploymentError(
                "cannot use --keda: the namespace is missing, and its queries would count the requests of servers with "
                "this name in all namespaces; add --namespace=NAME"
            )


def check_memory(memory: str) -> None:
    """Reject an amount of memory that Kubernetes would reject."""
    if not _MEMORY.fullmatch(memory):
        raise DeploymentError(f"cannot use --memory={memory}: expected a quantity of Kubernetes, such as 8Gi or 8G")


def deployment(server: DeployedServer, pod: Pod) -> str:
    """The Deployment, whose pods a new release replaces one by one, its Service, and its PodDisruptionBudget."""
    ports = [{"name": name, "port": port, "targetPort": name} for name, port in server.ports.items()]
    return render(
        "deployment.yaml",
        name=server.name,
        namespace=pod.namespace,
        # An autoscaler owns the number: with a number here, each `kubectl apply` would undo its work.
        replicas=None if pod.max_replicas else pod.replicas,
        surge=1 if pod.has_surge else 0,
        unavailable=0 if pod.has_surge else 1,
        annotations={} if pod.is_monitored else scraping(server),
        uid=pod.uid,
        grace=server.grace,
        spread=topology_spread({"app.kubernetes.io/name": "naiad", "app.kubernetes.io/instance": server.name}),
        container=container(server, pod, "naiad", [*server.ports]),
        volumes=volumes(server, pod),
        service_ports=ports,
    )


def network_policy(server: DeployedServer, pod: Pod, namespaces: Sequence[str]) -> str:
    """The NetworkPolicy: the server's and these namespaces may connect, and all to the metrics, for Prometheus."""
    own: dict[str, Any] = {"podSelector": {}}
    others = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}} for name in namespaces]
    clients = [{"port": name, "protocol": "TCP"} for name in server.ports if name != "metrics"]
    ingress: list[dict[str, Any]] = [{"from": [own, *others], "ports": clients}]
    if "metrics" in server.ports:
        ingress.append({"from": [{"namespaceSelector": {}}], "ports": [{"port": "metrics", "protocol": "TCP"}]})
    return render("network_policy.yaml", name=server.name, namespace=pod.namespace, ingress=ingress)


def monitor(server: DeployedServer, pod: Pod, *, records: bool) -> str:
    """The PodMonitor, and the PrometheusRule with alerts; with *records* also the series that autoscalers read."""
    if "metrics" not in server.ports:
        raise DeploymentError("cannot monitor the pods with --allow-metrics=false: enable metrics")
    pods = _selector(server, pod)
    series = render("recorded_series.yaml", name=server.name, pods=pods) if records else None
    return render("pod_monitor.yaml", name=server.name, namespace=pod.namespace, pods=pods, series=series)


def autoscaler(server: DeployedServer, pod: Pod, targets: Targets, *, keda: bool) -> str:
    """The HorizontalPodAutoscaler, or the ScaledObject of KEDA, which queries Prometheus itself."""
    if keda:
        targets.check_keda(pod)
    return render(
        "scaled_object.yaml" if keda else "autoscaler.yaml",
        name=server.name,
        namespace=pod.namespace,
        least=max(pod.replicas, 1),
        most=pod.max_replicas,
        queue=targets.queue_milliseconds,
        pending=targets.pending,
        prometheus=targets.prometheus,
        pods=_selector(server, pod),
    )


def _selector(server: DeployedServer, pod: Pod) -> str:
    place = f'namespace="{pod.namespace}", ' if pod.namespace else ""
    # Prometheus replaces what its names of labels cannot contain.
    return f'{place}app_kubernetes_io_instance="{server.name}"'


def topology_spread(selected: dict[str, str]) -> list[dict[str, Any]]:
    """Constraints that spread the pods with these labels over zones and nodes, where there are several."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selected},
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


def container(server: DeployedServer, pod: Pod, name: str, ports: Sequence[str], user: str | None = None) -> str:
    """The container of a pod with these ports; *user* has further lines of its security context."""
    resources: dict[str, Any] = {"cpu": pod.cpus, "memory": pod.memory}
    if pod.gpus:
        resources["nvidia.com/gpu"] = str(pod.gpus)
    mounts = [{"name": "store", "mountPath": STORE}, {"name": "temporary", "mountPath": "/tmp"}]  # noqa: S108 - its own
    return render(
        "container.yaml",
        container_name=name,
        image=pod.image,
        args=list(server.flags) or None,
        ports=[{"name": port, "containerPort": server.ports[port], "protocol": "TCP"} for port in ports],
        probed="port: http, scheme: HTTPS" if server.uses_tls else "port: http",
        resources=resources,
        user=user,
        mounts=mounts + (model_mounts(server.folders) if pod.models_claim else []),
    )


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
