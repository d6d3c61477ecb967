"""`naiad deploy TARGET`: writes the files with which systemd, Docker, Kubernetes or KServe start and watch a server."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import naiad
from naiad.cli.command_line import CommandLine, run_command, server_flag, usage, with_server_flags
from naiad.config.server.command_line import read_options
from naiad.config.server.console_options import LOOPBACK
from naiad.config.server.flag import Flag, UsageError
from naiad.config.server.getopt import split_arguments
from naiad.config.server.option_group import flags_of
from naiad.config.server.options import SERVER_FLAGS, ServerOptions
from naiad.core.errors import DeploymentError
from naiad_operations.bundle.manifest import RUN, read_manifest
from naiad_operations.deploy.docker import PATH_FLAGS, compose, default_package, dockerfile
from naiad_operations.deploy.kserve import MODELS, inference_service, serving_runtime
from naiad_operations.deploy.kubernetes import autoscaler, check_pod, deployment, monitor, network_policy
from naiad_operations.deploy.options import DeployOptions
from naiad_operations.deploy.server import DeployedServer, describe_server
from naiad_operations.deploy.systemd import unit

_PROGRAM = "naiad deploy systemd|compose|dockerfile|kubernetes|kserve"
_DRAIN = "drain-seconds"
_PRIVATE_FOLDERS = ("/tmp", "/var/tmp")  # noqa: S108 - compared with, not used
_DRAIN_SECONDS = "15"  # three readiness probes of Kubernetes fail within 15 s (`kubernetes.container`)
# The ports and the folder with which KServe's documentation starts Triton.
_KSERVE_FLAGS = (f"--model-repository={MODELS}", "--http-port=8080", "--grpc-port=9000")


OWN_FLAGS = flags_of("Deployment (also takes all flags of the server; the server starts with them)", DeployOptions)


def deploy(arguments: Sequence[str]) -> int:
    """Write the files for one way to start a server; returns the exit code."""
    return run_command(
        arguments, DeployOptions, OWN_FLAGS, _PROGRAM, "write a deployment", _deploy, usage_for=_usage_for
    )


def _usage_for(positional: Sequence[str]) -> str:
    target = next((word for word in positional if word in _WRITERS), "")
    shown = [flag for flag in OWN_FLAGS if not target or flag.name in USED_FLAGS[target]]
    return usage(f"naiad deploy {target}" if target else _PROGRAM, with_server_flags(shown))


def _deploy(line: CommandLine, own: DeployOptions) -> int:
    if len(line.positional) != 1 or line.positional[0] not in _WRITERS:
        near = difflib.get_close_matches(line.positional[0], _WRITERS, n=1) if line.positional else []
        raise UsageError(
            f"cannot write a deployment: expected one of {', '.join(_WRITERS)}, "
            f"got {' '.join(line.positional) or 'none'}" + (f"; did you mean {near[0]}?" if near else "")
        )
    target = line.positional[0]
    _reject_unused(line.given, target)
    write_output(_WRITERS[target](line, own), own.output, replace=own.replaces)
    return 0


def _reject_unused(given: frozenset[str], target: str) -> None:
    for name in (flag.name for flag in OWN_FLAGS if flag.name in given):
        if name not in USED_FLAGS[target]:
            users = " and ".join(user for user, used in USED_FLAGS.items() if name in used)
            raise UsageError(f"cannot use --{name} with {target}: it is a flag of {users}; remove it")
        needed = _NEEDED_FLAGS.get((target, name))
        if needed is not None and needed not in given:
            raise UsageError(f"cannot use --{name} with {target}: it has no effect without --{needed}; add that flag")


def _systemd(line: CommandLine, own: DeployOptions) -> str:
    server = _server(line, own, line.server)
    server = replace(server, flags=tuple(with_absolute_path(flag) for flag in server.flags))
    for flag in server.flags:
        if (hidden := _hidden_folder(flag)) is not None:
            print(
                f"note: {flag} is below {hidden}, which PrivateTmp=yes hides from the service; move it elsewhere",
                file=sys.stderr,
            )
    command = [str(Path(sys.executable).with_name("naiad")), "serve"] if own.bundle is None else [str(own.bundle / RUN)]
    return unit(server, command, own)


def _hidden_folder(flag: str) -> str | None:
    """The folder for temporary files that has the file of a flag, and of which a service has one of its own."""
    name, _, text = flag.removeprefix("--").partition("=")
    if name not in PATH_FLAGS:
        return None
    return next((folder for folder in _PRIVATE_FOLDERS if Path(text).is_relative_to(folder)), None)


def _dockerfile(line: CommandLine, own: DeployOptions) -> str:
    options, server = _described(line, own, line.server, drains=False)
    if not own.package and "dev" in naiad.__version__:
        print(
            f"note: naiad {naiad.__version__} is not a release, so pip does not find it; make a wheel with `pip wheel "
            "--no-deps`, and name it with --package=FILE.whl",
            file=sys.stderr,
        )
    return dockerfile(server, own, package=own.package or default_package(options), context=Path.cwd())


def _compose(line: CommandLine, own: DeployOptions) -> str:
    return compose(_described(line, own, line.server, drains=False)[1], own, context=Path.cwd())


def _kubernetes(line: CommandLine, own: DeployOptions) -> str:
    server = _server(line, own, line.server)
    check_pod(own)
    made = [deployment(server, own)]
    if own.has_policy or own.allowed:
        made.append(network_policy(server, own))
    if own.is_monitored:
        made.append(monitor(server, own))
    if own.max_replicas:
        made.append(autoscaler(server, own))
    return "---\n".join(made)


def _kserve(line: CommandLine, own: DeployOptions) -> str:
    # Flags that the user gives come last, so that they override KServe's.
    server = _server(line, own, [*split_arguments(_KSERVE_FLAGS, SERVER_FLAGS, _PROGRAM)[0], *line.server])
    check_pod(own)
    made = [serving_runtime(server, own)]
    if own.storage_uri:
        made.append(inference_service(server, own))
    return "---\n".join(made)


_WRITERS: dict[str, Callable[[CommandLine, DeployOptions], str]] = {
    "systemd": _systemd,
    "compose": _compose,
    "dockerfile": _dockerfile,
    "kubernetes": _kubernetes,
    "kserve": _kserve,
}
_OF_FILES = ("name", "output", "force")
_OF_SERVERS = (*_OF_FILES, "memory", "cpus", "gpus", "unpacked-bundle")
_OF_PODS = (
    *_OF_SERVERS,
    *("image", "namespace", "replicas", "max-replicas", "target-pending", "keda", "prometheus-url"),
    *("store-claim", "uid"),
)
# Names of the flags that each writer uses.
USED_FLAGS = {
    "systemd": _OF_SERVERS,
    "compose": (*_OF_SERVERS, "image", "uid"),
    "dockerfile": (*_OF_FILES, "base", "package", "apt"),
    "kubernetes": (
        *(*_OF_PODS, "target-queue-ms", "pod-monitor", "network-policy", "allow-namespace", "no-surge"),
        "models-claim",
    ),
    "kserve": (*_OF_PODS, "cluster", "storage-uri", "standard", "canary-percent"),
}
# For flags of a target, the flag without which they have no effect.
_NEEDED_FLAGS = {
    ("compose", "unpacked-bundle"): "image",
    **dict.fromkeys((("kubernetes", "target-queue-ms"), ("kubernetes", "target-pending")), "max-replicas"),
    **{(target, "prometheus-url"): "keda" for target in ("kubernetes", "kserve")},
    ("kserve", "target-pending"): "keda",
    # These are settings of an InferenceService.
    **{("kserve", name): "storage-uri" for name in ("replicas", "max-replicas", "keda", "standard", "canary-percent")},
}


def _server(line: CommandLine, own: DeployOptions, flags: Sequence[tuple[Flag, str]]) -> DeployedServer:
    """It drains, unless the flags say otherwise: load balancers need time to notice that it is not ready any more.

    A bundle starts with its own flags. They determine the ports, so they count as options here, but the deployment does
    not repeat them.
    """
    return _described(line, own, flags, drains=True)[1]


def _described(
    line: CommandLine, own: DeployOptions, flags: Sequence[tuple[Flag, str]], *, drains: bool
) -> tuple[ServerOptions, DeployedServer]:
    bundled: Sequence[tuple[Flag, str]] = ()
    if own.bundle is not None:
        bundled = split_arguments(read_manifest(own.bundle).flags_in(own.bundle), SERVER_FLAGS, _PROGRAM)[0]
    if drains and not any(flag.name == _DRAIN for flag, _ in (*bundled, *flags)):
        flags = [*flags, (server_flag(_DRAIN), _DRAIN_SECONDS)]
    options = read_options([*bundled, *flags], environ=os.environ)
    if options.http.ui and options.http.ui_address == LOOPBACK and line.positional != ["systemd"]:
        print(
            "note: in a container the page at /ui is served to programs of the container alone; add "
            "--ui-password=FILE, or --ui-address=0.0.0.0 to serve it to every client",
            file=sys.stderr,
        )
    return options, describe_server(own.name, options, flags)


def with_absolute_path(flag: str) -> str:
    """The flag with an absolute path; systemd starts services in the root folder."""
    name, _, text = flag.partition("=")
    is_path = name.removeprefix("--") in PATH_FLAGS and "://" not in text
    return f"{name}={Path(text).absolute()}" if is_path else flag


def write_output(text: str, output: Path | None, *, replace: bool) -> None:
    """Write to a file, or to standard output if *output* is None; *replace* allows that the file exists."""
    if output is None:
        print(text, end="")
        return
    try:
        with output.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DeploymentError(f"cannot write {output}: it exists; choose another file, or add --force") from None
    except OSError as error:
        raise DeploymentError(f"cannot write {output}: {error.strerror or error}") from error
