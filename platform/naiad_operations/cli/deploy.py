"""`naiad deploy TARGET`: writes the files with which systemd, Docker, Kubernetes or KServe start and watch a server."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import naiad
from naiad.cli.command_line import CommandLine, own_flags, parse_command_line, report_error, usage, with_help
from naiad.config.server.command_line import read_options
from naiad.config.server.console_options import LOOPBACK
from naiad.config.server.flag import Flag, Kind, UsageError
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.options import SERVER_FLAGS, ServerOptions
from naiad.core.errors import DeploymentError, NaiadError
from naiad_operations.bundle.manifest import RUN, read_manifest
from naiad_operations.deploy.docker import PATH_FLAGS, compose, default_base, default_package, dockerfile
from naiad_operations.deploy.kserve import MODELS, inference_service, serving_runtime
from naiad_operations.deploy.kubernetes import Pod, Targets, autoscaler, deployment, monitor, network_policy
from naiad_operations.deploy.server import DeployedServer, describe_server, is_label
from naiad_operations.deploy.systemd import unit

_PROGRAM = "naiad deploy systemd|compose|dockerfile|kubernetes|kserve"
_DRAIN = next(flag for flag in SERVER_FLAGS if flag.name == "drain-seconds")
_PRIVATE_FOLDERS = ("/tmp", "/var/tmp")  # noqa: S108 - compared with, not used
_DRAIN_SECONDS = "15"  # three readiness probes of Kubernetes fail within 15 s (`kubernetes.container`)
_GROUP = "Deployment (also takes all flags of the server; the server starts with them)"
_NAME = Flag("name", "Name of the unit, the service, the image or the Kubernetes objects.", default="naiad")
_OUTPUT = Flag("output", "File to write; default: standard output.")
_FORCE = Flag("force", "Replace an existing file.", Kind.NOTHING)
_MEMORY = Flag("memory", "Memory limit: 8G (systemd, compose), 8Gi.")
_CPUS = Flag("cpus", "CPU limit.")
_GPUS = Flag("gpus", "Number of GPUs; systemd: 1 makes devices visible.", Kind.INTEGER, "0", low=0)
_BUNDLE = Flag("unpacked-bundle", "Start this bundle; systemd: its folder; else: what the image contains.")
_IMAGE = Flag(
    "image",
    "Container image; one of `naiad bundle --oci` has its own flags. compose: default is to build the Dockerfile.",
)
_BASE = Flag("base", "Image to build on; default: python:X.Y-slim of this Python (dockerfile).")
_PACKAGE = Flag("package", "What pip installs: a requirement or a wheel; default: this version (dockerfile).")
_APT = Flag("apt", "Package of Debian to install, such as libgomp1 (dockerfile).", repeatable=True)
_REPLICAS = Flag("replicas", "Number of pods; with --max-replicas the smallest number.", Kind.INTEGER, "1", low=0)
_NAMESPACE = Flag("namespace", "Namespace of the objects; also selects the pods in queries of Prometheus.")
_MAX_REPLICAS = Flag(
    "max-replicas",
    "Largest number of pods; adds an autoscaler by queue time and pending requests.",
    Kind.INTEGER,
    "0",
    low=0,
)
_TARGET_QUEUE = Flag("target-queue-ms", "Mean queue time at which a pod is added.", Kind.INTEGER, "50", low=1)
_TARGET_PENDING = Flag(
    "target-pending", "Pending requests of each pod at which one is added.", Kind.INTEGER, "8", low=1
)
_KEDA = Flag(
    "keda",
    "Scale with KEDA instead of a HorizontalPodAutoscaler; needs --prometheus-url and --namespace.",
    Kind.NOTHING,
)
_PROMETHEUS = Flag("prometheus-url", "Prometheus that KEDA queries.")
_MONITOR = Flag("pod-monitor", "Add a PodMonitor of the Prometheus operator (kubernetes).", Kind.NOTHING)
_POLICY = Flag(
    "network-policy", "Add a NetworkPolicy: only pods of the same namespace may connect (kubernetes).", Kind.NOTHING
)
_ALLOW = Flag("allow-namespace", "Namespace that may connect, too; implies --network-policy.", repeatable=True)
_NO_SURGE = Flag(
    "no-surge", "A new release stops each pod before it starts the next: for the last GPU (kubernetes).", Kind.NOTHING
)
_MODELS_CLAIM = Flag("models-claim", "PersistentVolumeClaim with the repositories (kubernetes).")
_STORE_CLAIM = Flag("store-claim", "PersistentVolumeClaim for the store; default: an emptyDir.")
_UID = Flag("uid", "User id to run as; default: the image's user.", Kind.INTEGER, low=1)
_CLUSTER = Flag("cluster", "Write a ClusterServingRuntime (kserve).", Kind.NOTHING)
_STORAGE_URI = Flag("storage-uri", "Add an InferenceService of these models (kserve).")
_STANDARD = Flag("standard", "The InferenceService uses Deployments instead of Knative (kserve).", Kind.NOTHING)
_CANARY = Flag(
    "canary-percent", "Share of the requests for the newest revision (kserve).", Kind.INTEGER, low=0, high=100
)
OWN_FLAGS = own_flags(
    _GROUP,
    *(_NAME, _OUTPUT, _FORCE, _MEMORY, _CPUS, _GPUS, _BUNDLE, _IMAGE, _NAMESPACE, _REPLICAS),
    *(_MAX_REPLICAS, _TARGET_QUEUE, _TARGET_PENDING, _KEDA, _PROMETHEUS, _MONITOR, _POLICY, _ALLOW, _NO_SURGE),
    *(_MODELS_CLAIM, _STORE_CLAIM, _UID, _CLUSTER, _STORAGE_URI, _STANDARD, _CANARY),
    *(_BASE, _PACKAGE, _APT),
)
_SHOWN_FLAGS = with_help(OWN_FLAGS, _GROUP)
# The ports and the folder with which KServe's documentation starts Triton.
_KSERVE_FLAGS = (f"--model-repository={MODELS}", "--http-port=8080", "--grpc-port=9000")


def deploy(arguments: Sequence[str]) -> int:
    """Write the files for one way to start a server; returns the exit code."""
    try:
        line = parse_command_line(arguments, OWN_FLAGS, _PROGRAM)
        if line.is_help_requested:
            target = next((word for word in line.positional if word in _WRITERS), "")
            shown = [flag for flag in _SHOWN_FLAGS if not target or flag.name in {*USED_FLAGS[target], HELP}]
            print(usage(f"naiad deploy {target}" if target else _PROGRAM, shown), end="")
            return 0
        if len(line.positional) != 1 or line.positional[0] not in _WRITERS:
            near = difflib.get_close_matches(line.positional[0], _WRITERS, n=1) if line.positional else []
            raise UsageError(
                f"cannot write a deployment: expected one of {', '.join(_WRITERS)}, "
                f"got {' '.join(line.positional) or 'none'}" + (f"; did you mean {near[0]}?" if near else "")
            )
        target = line.positional[0]
        _reject_unused(line, target)
        write_output(_WRITERS[target](line), line.last(_OUTPUT), replace=line.has(_FORCE))
    except NaiadError as error:
        return report_error(error, _PROGRAM)
    return 0


def _reject_unused(line: CommandLine, target: str) -> None:
    for flag in OWN_FLAGS:
        if not line.has(flag):
            continue
        if flag.name not in USED_FLAGS[target]:
            users = " and ".join(name for name, used in USED_FLAGS.items() if flag.name in used)
            raise UsageError(f"cannot use --{flag.name} with {target}: it is a flag of {users}; remove it")
        needed = _NEEDED_FLAGS.get((target, flag.name))
        if needed is not None and not line.has(needed):
            raise UsageError(
                f"cannot use --{flag.name} with {target}: it has no effect without --{needed.name}; add that flag"
            )


def _systemd(line: CommandLine) -> str:
    server = _server(line, line.server)
    server = replace(server, flags=tuple(with_absolute_path(flag) for flag in server.flags))
    for flag in server.flags:
        if (hidden := _hidden_folder(flag)) is not None:
            print(
                f"note: {flag} is below {hidden}, which PrivateTmp=yes hides from the service; move it elsewhere",
                file=sys.stderr,
            )
    command = [str(Path(sys.executable).with_name("naiad")), "serve"]
    if line.has(_BUNDLE):
        command = [str(Path(line.last(_BUNDLE)).absolute() / RUN)]
    return unit(server, command, memory=line.last(_MEMORY), cpus=line.last(_CPUS), gpus=int(line.last(_GPUS)) > 0)


def _hidden_folder(flag: str) -> str | None:
    """The folder for temporary files that has the file of a flag, and of which a service has one of its own."""
    name, _, text = flag.removeprefix("--").partition("=")
    if name not in PATH_FLAGS:
        return None
    return next((folder for folder in _PRIVATE_FOLDERS if Path(text).is_relative_to(folder)), None)


def _dockerfile(line: CommandLine) -> str:
    options, server = _described(line, line.server, drains=False)
    package = line.last(_PACKAGE) or default_package(options)
    if not line.last(_PACKAGE) and "dev" in naiad.__version__:
        print(
            f"note: naiad {naiad.__version__} is not a release, so pip does not find it; make a wheel with `pip wheel "
            "--no-deps`, and name it with --package=FILE.whl",
            file=sys.stderr,
        )
    return dockerfile(
        server,
        base=line.last(_BASE) or default_base(),
        package=package,
        system_packages=line.all(_APT),
        context=Path.cwd(),
    )


def _compose(line: CommandLine) -> str:
    _, server = _described(line, line.server, drains=False)
    return compose(
        server,
        image=line.last(_IMAGE),
        context=Path.cwd(),
        file=Path(line.last(_OUTPUT)) if line.has(_OUTPUT) else None,
        memory=line.last(_MEMORY),
        cpus=line.last(_CPUS),
        gpus=int(line.last(_GPUS)),
        uid=int(line.last(_UID)) if line.last(_UID) else None,
    )


def _kubernetes(line: CommandLine) -> str:
    server = _server(line, line.server)
    pod = _pod(line)
    made = [deployment(server, pod)]
    if line.has(_POLICY) or line.has(_ALLOW):
        made.append(network_policy(server, pod, line.all(_ALLOW)))
    if pod.is_monitored:
        # KEDA queries the metrics themselves.
        made.append(monitor(server, pod, records=bool(pod.max_replicas) and not line.has(_KEDA)))
    if line.has(_KEDA):
        _require_max_replicas(pod)
    if pod.max_replicas:
        made.append(autoscaler(server, pod, _targets(line), keda=line.has(_KEDA)))
    return "---\n".join(made)


def _kserve(line: CommandLine) -> str:
    # Flags that the user gives come last, so that they override KServe's.
    server = _server(line, [*split_arguments(_KSERVE_FLAGS, SERVER_FLAGS, _PROGRAM)[0], *line.server])
    pod = _pod(line)
    made = [serving_runtime(server, pod, cluster=line.has(_CLUSTER))]
    storage = line.last(_STORAGE_URI)
    if line.has(_KEDA):
        _require_max_replicas(pod)
    if storage:
        made.append(
            inference_service(
                server,
                pod,
                storage,
                is_standard=line.has(_STANDARD) or line.has(_KEDA),
                canary_percent=int(line.last(_CANARY)) if line.has(_CANARY) else None,
                targets=_targets(line) if line.has(_KEDA) else None,
            )
        )
    return "---\n".join(made)


def _targets(line: CommandLine) -> Targets:
    return Targets(
        queue_milliseconds=int(line.last(_TARGET_QUEUE)),
        pending=int(line.last(_TARGET_PENDING)),
        prometheus=line.last(_PROMETHEUS),
    )


def _require_max_replicas(pod: Pod) -> None:
    if not pod.max_replicas:
        raise DeploymentError("cannot use --keda: the largest number of pods is missing; add --max-replicas=N")


_WRITERS: dict[str, Callable[[CommandLine], str]] = {
    "systemd": _systemd,
    "compose": _compose,
    "dockerfile": _dockerfile,
    "kubernetes": _kubernetes,
    "kserve": _kserve,
}
_OF_ALL = (_NAME, _OUTPUT, _FORCE, _MEMORY, _CPUS, _GPUS, _BUNDLE)
_OF_PODS = (_IMAGE, _NAMESPACE, _REPLICAS, _MAX_REPLICAS, _TARGET_PENDING, _KEDA, _PROMETHEUS, _STORE_CLAIM, _UID)
# The flags that each writer uses.
USED_FLAGS: dict[str, frozenset[str]] = {
    target: frozenset(flag.name for flag in flags)
    for target, flags in {
        "systemd": _OF_ALL,
        "compose": (*_OF_ALL, _IMAGE, _UID),
        "dockerfile": (_NAME, _OUTPUT, _FORCE, _BASE, _PACKAGE, _APT),
        "kubernetes": (*_OF_ALL, *_OF_PODS, _TARGET_QUEUE, _MONITOR, _POLICY, _ALLOW, _NO_SURGE, _MODELS_CLAIM),
        "kserve": (*_OF_ALL, *_OF_PODS, _CLUSTER, _STORAGE_URI, _STANDARD, _CANARY),
    }.items()
}
# For flags of a target, the flag without which they have no effect.
_NEEDED_FLAGS: dict[tuple[str, str], Flag] = {
    ("compose", _BUNDLE.name): _IMAGE,
    ("kubernetes", _TARGET_QUEUE.name): _MAX_REPLICAS,
    ("kubernetes", _TARGET_PENDING.name): _MAX_REPLICAS,
    ("kubernetes", _PROMETHEUS.name): _KEDA,
    ("kserve", _TARGET_PENDING.name): _KEDA,
    ("kserve", _PROMETHEUS.name): _KEDA,
    # These are settings of an InferenceService.
    **{("kserve", flag.name): _STORAGE_URI for flag in (_REPLICAS, _MAX_REPLICAS, _KEDA, _STANDARD, _CANARY)},
}


def _server(line: CommandLine, flags: Sequence[tuple[Flag, str]]) -> DeployedServer:
    """It drains, unless the flags say otherwise: load balancers need time to notice that it is not ready any more.

    A bundle starts with its own flags. They determine the ports, so they count as options here, but the deployment does
    not repeat them.
    """
    return _described(line, flags, drains=True)[1]


def _described(
    line: CommandLine, flags: Sequence[tuple[Flag, str]], *, drains: bool
) -> tuple[ServerOptions, DeployedServer]:
    bundled: Sequence[tuple[Flag, str]] = ()
    if line.has(_BUNDLE):
        folder = Path(line.last(_BUNDLE)).absolute()
        bundled = split_arguments(read_manifest(folder).flags_in(folder), SERVER_FLAGS, _PROGRAM)[0]
    if drains and not any(flag.name == _DRAIN.name for flag, _ in (*bundled, *flags)):
        flags = [*flags, (_DRAIN, _DRAIN_SECONDS)]
    options = read_options([*bundled, *flags], environ=os.environ)
    if options.http.ui and options.http.ui_address == LOOPBACK and line.positional != ["systemd"]:
        print(
            "note: in a container the page at /ui is served to programs of the container alone; add "
            "--ui-password=FILE, or --ui-address=0.0.0.0 to serve it to every client",
            file=sys.stderr,
        )
    return options, describe_server(line.last(_NAME), options, flags)


def _pod(line: CommandLine) -> Pod:
    if not line.last(_IMAGE):
        raise DeploymentError(
            "cannot describe a pod: no image is named; add --image=IMAGE, such as one made by `naiad bundle --oci`"
        )
    namespace = line.last(_NAMESPACE)
    if namespace and not is_label(namespace):
        raise DeploymentError(
            f"cannot use --namespace={namespace}: a namespace has 1 to 63 lowercase letters, digits and '-'; the first "
            "and last are not '-'"
        )
    pod = Pod(
        image=line.last(_IMAGE),
        namespace=namespace or None,
        gpus=int(line.last(_GPUS)),
        replicas=int(line.last(_REPLICAS)),
        max_replicas=int(line.last(_MAX_REPLICAS)),
        # Autoscalers need the metrics of the pods.
        is_monitored=line.has(_MONITOR) or int(line.last(_MAX_REPLICAS)) > 0,
        has_surge=not line.has(_NO_SURGE),
        models_claim=line.last(_MODELS_CLAIM),
        store_claim=line.last(_STORE_CLAIM),
        uid=int(line.last(_UID)) if line.last(_UID) else None,
    )
    return replace(pod, cpus=line.last(_CPUS) or pod.cpus, memory=line.last(_MEMORY) or pod.memory)


def with_absolute_path(flag: str) -> str:
    """The flag with an absolute path; systemd starts services in the root folder."""
    name, _, text = flag.partition("=")
    is_path = name.removeprefix("--") in PATH_FLAGS and "://" not in text
    return f"{name}={Path(text).absolute()}" if is_path else flag


def write_output(text: str, output: str, *, replace: bool) -> None:
    """Write to a file, or to standard output if *output* is empty; *replace* allows that the file exists."""
    if not output:
        print(text, end="")
        return
    try:
        with Path(output).open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DeploymentError(f"cannot write {output}: it exists; choose another file, or add --force") from None
    except OSError as error:
        raise DeploymentError(f"cannot write {output}: {error.strerror or error}") from error
