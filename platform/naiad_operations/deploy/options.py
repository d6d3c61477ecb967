"""The flags of `naiad deploy`, which the writers of files read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from naiad.config.server.flag import Kind
from naiad.config.server.option_group import own_option, own_path, own_switch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployOptions:
    """The flags of `naiad deploy`."""

    name: str = own_option(
        "name", "Name of the unit, the service, the image or the Kubernetes objects.", default="naiad"
    )
    output: Path | None = own_path("output", "File to write; default: standard output.")
    replaces: bool = own_switch("force", "Replace an existing file.")
    memory: str = own_option("memory", "Memory limit: 8G (systemd, compose), 8Gi.")
    cpus: str = own_option("cpus", "CPU limit.")
    gpus: int = own_option("gpus", "Number of GPUs; systemd: 1 makes devices visible.", Kind.INTEGER, "0", low=0)
    bundle: Path | None = own_option(
        "unpacked-bundle",
        "Start this bundle; systemd: its folder; else: what the image contains.",
        read=lambda values, name: Path(values.text(name)).absolute() if values.has(name) else None,
    )
    image: str = own_option(
        "image",
        "Container image; one of `naiad bundle --oci` has its own flags. compose: default is to build the Dockerfile.",
    )
    namespace: str = own_option(
        "namespace", "Namespace of the objects; also selects the pods in queries of Prometheus."
    )
    replicas: int = own_option(
        "replicas", "Number of pods; with --max-replicas the smallest number.", Kind.INTEGER, "1", low=0
    )
    max_replicas: int = own_option(
        "max-replicas",
        "Largest number of pods; adds an autoscaler by queue time and pending requests.",
        Kind.INTEGER,
        "0",
        low=0,
    )
    target_queue_ms: int = own_option(
        "target-queue-ms", "Mean queue time at which a pod is added.", Kind.INTEGER, "50", low=1
    )
    target_pending: int = own_option(
        "target-pending", "Pending requests of each pod at which one is added.", Kind.INTEGER, "8", low=1
    )
    uses_keda: bool = own_switch(
        "keda", "Scale with KEDA instead of a HorizontalPodAutoscaler; needs --prometheus-url and --namespace."
    )
    prometheus: str = own_option("prometheus-url", "Prometheus that KEDA queries.")
    has_monitor: bool = own_switch("pod-monitor", "Add a PodMonitor of the Prometheus operator (kubernetes).")
    has_policy: bool = own_switch(
        "network-policy", "Add a NetworkPolicy: only pods of the same namespace may connect (kubernetes)."
    )
    allowed: list[str] = own_option(
        "allow-namespace", "Namespace that may connect, too; implies --network-policy.", repeatable=True
    )
    no_surge: bool = own_switch(
        "no-surge", "A new release stops each pod before it starts the next: for the last GPU (kubernetes)."
    )
    models_claim: str = own_option("models-claim", "PersistentVolumeClaim with the repositories (kubernetes).")
    store_claim: str = own_option("store-claim", "PersistentVolumeClaim for the store; default: an emptyDir.")
    uid: int | None = own_option("uid", "User id to run as; default: the image's user.", Kind.INTEGER, low=1)
    is_for_cluster: bool = own_switch("cluster", "Write a ClusterServingRuntime (kserve).")
    storage_uri: str = own_option("storage-uri", "Add an InferenceService of these models (kserve).")
    is_standard: bool = own_switch("standard", "The InferenceService uses Deployments instead of Knative (kserve).")
    canary_percent: int | None = own_option(
        "canary-percent", "Share of the requests for the newest revision (kserve).", Kind.INTEGER, low=0, high=100
    )
    base: str = own_option("base", "Image to build on; default: python:X.Y-slim of this Python (dockerfile).")
    package: str = own_option(
        "package", "What pip installs: a requirement or a wheel; default: this version (dockerfile)."
    )
    system_packages: list[str] = own_option(
        "apt", "Package of Debian to install, such as libgomp1 (dockerfile).", repeatable=True
    )

    @property
    def is_monitored(self) -> bool:
        """Whether a PodMonitor names the metrics port, so that annotations need not; autoscalers read its metrics."""
        return self.has_monitor or self.max_replicas > 0
