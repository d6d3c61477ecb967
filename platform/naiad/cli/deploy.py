"""`naiad deploy systemd | kubernetes | kserve`: files for those who start and watch servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from naiad.bundle.manifest import read_manifest
from naiad.bundle.program import RUN
from naiad.cli.usage import report, usage, with_help
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import Flag, Kind, UsageError
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.options import SERVER_FLAGS
from naiad.deploy.kserve import MODELS, inference_service, serving_runtime
from naiad.deploy.kubernetes import Pod, deployment, service
from naiad.deploy.server import Deployed, deployed
from naiad.deploy.systemd import unit
from naiad.deploy.yaml import documents
from naiad.errors import DeploymentError, NaiadError

__all__ = ["deploy"]

_PROGRAM = "naiad deploy systemd|kubernetes|kserve"
_GROUP = "Deployment (all flags of the server work, too: it will be started with those)"
_TEXT, _SWITCH = Kind.STRING, Kind.NOTHING
_OWN_FLAGS = tuple(
    replace(flag, group=_GROUP, own=True)
    for flag in (
        Flag("name", _TEXT, "naiad", "Name of the unit, or of the objects."),
        Flag("output", _TEXT, "", "File to write; standard output unless given."),
        Flag("force", _SWITCH, "", "Replace an existing file."),
        Flag("memory", _TEXT, "", "Limit of memory: 8G (systemd), 8Gi."),
        Flag("cpus", _TEXT, "", "Limit of processors."),
        Flag("gpus", Kind.INTEGER, "0", "How many GPUs; systemd: whether devices are seen.", low=0),
        Flag("unpacked-bundle", _TEXT, "", "Start this bundle; systemd: where it is, else: what is in the image."),
        Flag("image", _TEXT, "", "Image of the container; one of `naiad bundle --oci` has its own flags."),
        Flag("replicas", Kind.INTEGER, "1", "How many pods (kubernetes).", low=0),
        Flag("models-claim", _TEXT, "", "PersistentVolumeClaim with the repositories (kubernetes)."),
        Flag("store-claim", _TEXT, "", "PersistentVolumeClaim for the store; else it goes with the pod."),
        Flag("uid", Kind.INTEGER, "", "User to run as; that of the image unless given.", low=1),
        Flag("cluster", _SWITCH, "", "A ClusterServingRuntime (kserve)."),
        Flag("storage-uri", _TEXT, "", "Also an InferenceService of these models (kserve)."),
    )
)
_ON = "on"
_DEFAULTS = {flag.name: flag.default for flag in _OWN_FLAGS}
# KServe's own, as its documentation starts Triton.
_KSERVE_FLAGS = (f"--model-repository={MODELS}", "--http-port=8080", "--grpc-port=9000")
_Found = list[tuple[Flag, str]]


def deploy(arguments: Sequence[str]) -> int:
    """Write what starts and watches a server somewhere; the exit code."""
    try:
        found, others = split_arguments(arguments, (*_OWN_FLAGS, *SERVER_FLAGS), _PROGRAM)
        if any(flag.name == HELP for flag, _ in found):
            print(usage(_PROGRAM, with_help(_OWN_FLAGS, _GROUP)), end="")
            return 0
        if len(others) != 1 or others[0] not in _KINDS:
            raise UsageError(f"say what for, one of {', '.join(_KINDS)}: naiad deploy {next(iter(_KINDS))} [flags]")
        given = {flag.name: text if flag.takes_value else _ON for flag, text in found if flag.name in _DEFAULTS}
        asked = {**_DEFAULTS, **given}
        flags = [(flag, text) for flag, text in found if flag.name not in _DEFAULTS]
        text = _KINDS[others[0]](asked, flags)
        _write(text, asked)
    except UsageError as error:
        return report(error, _PROGRAM, with_help(_OWN_FLAGS, _GROUP))
    except NaiadError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


def _systemd(asked: Mapping[str, str], flags: _Found) -> str:
    server = _deployed(asked, flags)
    server = replace(server, flags=tuple(_absolute(flag) for flag in server.flags))
    command = [str(Path(sys.executable).with_name("naiad")), "serve"]
    if asked["unpacked-bundle"]:
        command = [str(Path(asked["unpacked-bundle"]).absolute() / RUN)]
    return unit(server, command, memory=asked["memory"], cpus=asked["cpus"], gpus=int(asked["gpus"]) > 0)


def _kubernetes(asked: Mapping[str, str], flags: _Found) -> str:
    server = _deployed(asked, flags)
    return documents([deployment(server, _pod(asked, server)), service(server)])


def _kserve(asked: Mapping[str, str], flags: _Found) -> str:
    server = _deployed(asked, [*split_arguments(_KSERVE_FLAGS, SERVER_FLAGS, _PROGRAM)[0], *flags])
    runtime = serving_runtime(server, _pod(asked, server), cluster=asked["cluster"] == _ON)
    wanted = [inference_service(server, asked["storage-uri"])] if asked["storage-uri"] else []
    return documents([runtime, *wanted])


_KINDS: dict[str, Callable[[Mapping[str, str], _Found], str]] = {
    "systemd": _systemd,
    "kubernetes": _kubernetes,
    "kserve": _kserve,
}


def _deployed(asked: Mapping[str, str], flags: _Found) -> Deployed:
    """The server; what starts a bundle has the bundle's own flags, which count here and are not repeated."""
    own: _Found = []
    if asked["unpacked-bundle"]:
        place = Path(asked["unpacked-bundle"]).absolute()
        own = split_arguments(read_manifest(place).flags_in(place), SERVER_FLAGS, _PROGRAM)[0]
    return deployed(asked["name"], read_options([*own, *flags], environ=os.environ), flags)


def _pod(asked: Mapping[str, str], server: Deployed) -> Pod:
    if not asked["image"]:
        raise DeploymentError("--image: name the image to start, such as one made by `naiad bundle --oci`")
    pod = Pod(
        image=asked["image"],
        args=server.flags,
        gpus=int(asked["gpus"]),
        replicas=int(asked["replicas"]),
        models_claim=asked["models-claim"],
        store_claim=asked["store-claim"],
        uid=int(asked["uid"]) if asked["uid"] else None,
    )
    return replace(pod, cpus=asked["cpus"] or pod.cpus, memory=asked["memory"] or pod.memory)


def _absolute(flag: str) -> str:
    """A flag that means the same wherever it is read: services start in the root folder."""
    name, _, text = flag.partition("=")
    is_path = name.removeprefix("--") in _PATHS and "://" not in text
    return f"{name}={Path(text).absolute()}" if is_path else flag


_PATHS = frozenset(
    {"model-repository", "model-store", "backend-directory", "env-directory", "env-trust", "log-file"}
    | {f"{where}-{what}" for where in ("http", "grpc") for what in ("server-cert", "server-key", "root-cert")}
    | {"openai-api-keys-file"}
)


def _write(text: str, asked: Mapping[str, str]) -> None:
    if not asked["output"]:
        print(text, end="")
        return
    try:
        with Path(asked["output"]).open("w" if asked["force"] == _ON else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DeploymentError(f"{asked['output']} is there already; name another file, or give --force") from None
    except OSError as error:
        raise DeploymentError(f"cannot write {asked['output']}: {error.strerror or error}") from error
