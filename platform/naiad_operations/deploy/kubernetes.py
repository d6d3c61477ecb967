"""Kubernetes: a Deployment with probes, limits and a read-only root file system, and the objects around it.

An autoscaler adds pods by what requests experience: how long they are queued, and how many are pending. CPU says little
about a server of models: a GPU computes while the CPU idles, and one busy instance leaves other cores idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.options import DeployOptions
from naiad_operations.deploy.server import STORE, DeployedServer, is_label
from naiad_operations.deploy.templates import render

_CPUS = re.compile(r"\d+(\.\d+)?|\d+m")
_MEMORY = re.compile(r"\d+(\.\d+)?([KMGTPE]i|[kMGTPE])?")


def check_pod(options: DeployOptions) -> None:
    """Reject settings of pods that are missing, or that Kubernetes would reject."""
    if not options.image:
        raise DeploymentError(
            "cannot describe a pod: no image is named; add --image=IMAGE, such as one made by `naiad bundle --oci`"
        )
    if options.namespace and not is_label(options.namespace):
        raise DeploymentError(
            f"cannot use --namespace={options.namespace}: a namespace has 1 to 63 lowercase letters, digits and '-'; "
            "the first and last are not '-'"
        )
    if options.cpus and not _CPUS.fullmatch(options.cpus):
        raise DeploymentError(f"cannot use --cpus={options.cpus}: expected a number of processors, such as 2 or 500m")
    if options.memory:
        check_memory(options.memory)
    if 0 < options.max_replicas < options.replicas:
        raise DeploymentError(
            f"cannot use --max-replicas={options.max_replicas}: it is less than --replicas={options.replicas}"
        )
    if options.prometheus and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", options.prometheus):
        raise DeploymentError(
            f"cannot use --prometheus-url={options.prometheus}: expected a URL, such as "
            "http://prometheus-operated.monitoring.svc:9090"
        )
    if options.uses_keda:
        _check_keda(options)


def _check_keda(options: DeployOptions) -> None:
    if not options.max_replicas:
        raise DeploymentError("cannot use --keda: the largest number of pods is missing; add --max-replicas=N")
    if not options.prometheus:
        raise DeploymentError(
            "cannot use --keda: the address of Prometheus is missing; add --prometheus-url=URL, such as "
            "http://prometheus-operated.monitoring.svc:9090"
        )
    if not options.namespace:
        raise DeploymentError(
            "cannot use --keda: the namespace is missing, and its queries would count the requests of servers with "
            "this name in all namespaces; add --namespace=NAME"
        )


def check_memory(memory: str) -> None:
    """Reject an amount of memory that Kubernetes would reject."""
    if not _MEMORY.fullmatch(memory):
        raise DeploymentError(f"cannot use --memory={memory}: expected a quantity of Kubernetes, such as 8Gi or 8G")


def deployment(server: DeployedServer, options: DeployOptions) -> str:
    """The Deployment, whose pods a new release replaces one by one, its Service, and its PodDisruptionBudget."""
    ports = [{"name": name, "port": port, "targetPort": name} for name, port in server.ports.items()]
    return render(
        "deployment.yaml",
        name=server.name,
        namespace=options.namespace or None,
        # An autoscaler owns the number: with a number here, each `kubectl apply` would undo its work.
        replicas=None if options.max_replicas else options.replicas,
        # A release starts one pod more before it stops an old one, unless the new pod needs what the old one holds: the
        # last GPU, or a volume that only one node mounts.
        surge=0 if options.no_surge else 1,
        unavailable=1 if options.no_surge else 0,
        annotations={} if options.is_monitored else scraping(server),
        uid=options.uid,
        grace=server.grace,
        spread=topology_spread({"app.kubernetes.io/name": "naiad", "app.kubernetes.io/instance": server.name}),
        container=container(server, options, "naiad", [*server.ports]),
        volumes=volumes(server, options),
        service_ports=ports,
    )


def network_policy(server: DeployedServer, options: DeployOptions) -> str:
    """The NetworkPolicy: the server's and these namespaces may connect, and all to the metrics, for Prometheus."""
    own: dict[str, Any] = {"podSelector": {}}
    others = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}} for name in options.allowed]
    clients = [{"port": name, "protocol": "TCP"} for name in server.ports if name != "metrics"]
    ingress: list[dict[str, Any]] = [{"from": [own, *others], "ports": clients}]
    if "metrics" in server.ports:
        ingress.append({"from": [{"namespaceSelector": {}}], "ports": [{"port": "metrics", "protocol": "TCP"}]})
    return render("network_policy.yaml", name=server.name, namespace=options.namespace or None, ingress=ingress)


def monitor(server: DeployedServer, options: DeployOptions) -> str:
    """The PodMonitor, and the PrometheusRule with alerts and the series that the autoscaler reads."""
    if "metrics" not in server.ports:
        raise DeploymentError("cannot monitor the pods with --allow-metrics=false: enable metrics")
    pods = _selector(server, options)
    # KEDA queries the metrics themselves.
    has_records = options.max_replicas and not options.uses_keda
    series = render("recorded_series.yaml", name=server.name, pods=pods) if has_records else None
    namespace = options.namespace or None
    return render("pod_monitor.yaml", name=server.name, namespace=namespace, pods=pods, series=series)


def autoscaler(server: DeployedServer, options: DeployOptions) -> str:
    """The HorizontalPodAutoscaler, or the ScaledObject of KEDA, which queries Prometheus itself."""
    return render(
        "scaled_object.yaml" if options.uses_keda else "autoscaler.yaml",
        name=server.name,
        namespace=options.namespace or None,
        least=max(options.replicas, 1),
        most=options.max_replicas,
        queue=options.target_queue_ms,
        pending=options.target_pending,
        prometheus=options.prometheus,
        pods=_selector(server, options),
    )


def _selector(server: DeployedServer, options: DeployOptions) -> str:
    place = f'namespace="{options.namespace}", ' if options.namespace else ""
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


def container(
    server: DeployedServer, options: DeployOptions, name: str, ports: Sequence[str], user: str | None = None
) -> str:
    """The container of a pod with these ports; *user* has further lines of its security context."""
    resources: dict[str, Any] = {"cpu": options.cpus or "2", "memory": options.memory or "4Gi"}
    if options.gpus:
        resources["nvidia.com/gpu"] = str(options.gpus)
    mounts = [{"name": "store", "mountPath": STORE}, {"name": "temporary", "mountPath": "/tmp"}]  # noqa: S108 - its own
    return render(
        "container.yaml",
        container_name=name,
        image=options.image,
        args=list(server.flags) or None,
        ports=[{"name": port, "containerPort": server.ports[port], "protocol": "TCP"} for port in ports],
        probed="port: http, scheme: HTTPS" if server.uses_tls else "port: http",
        resources=resources,
        user=user,
        mounts=mounts + (model_mounts(server.folders) if options.models_claim else []),
    )


def volumes(server: DeployedServer, options: DeployOptions) -> list[dict[str, Any]]:
    """The volumes of the pod: the store, temporary files, and the models if a claim has them."""
    store: dict[str, Any] = (
        {"persistentVolumeClaim": {"claimName": options.store_claim}} if options.store_claim else {"emptyDir": {}}
    )
    mounted: list[dict[str, Any]] = [{"name": "store", **store}, {"name": "temporary", "emptyDir": {}}]
    if options.models_claim and server.folders:
        mounted.append(model_volume(options.models_claim))
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
