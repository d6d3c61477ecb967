"""For Docker: a Dockerfile, and a file for Compose, whose containers run for a user without rights.

The image is a slim one of Python with naiad, the models and their environments. Folders of models are below `/srv` in
containers, and secrets below `/run/secrets`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import naiad
from naiad.config.server.options import ServerOptions
from naiad.core.errors import DeploymentError
from naiad.sources.storage.opening import EXTRAS
from naiad_operations.deploy.options import DeployOptions
from naiad_operations.deploy.server import READY, STORE, DeployedServer
from naiad_operations.deploy.templates import render

_IMAGE_USER = 65532  # not root, and nobody of the image; its group is 0, as that of `naiad bundle --oci`
# Flags that `naiad env prefetch` shares with the server.
_ENVIRONMENT_FLAGS = ("backend-directory", "env-directory", "env-trust", "env-build", "env-wheels", "backend-config")
_FOLDERS = frozenset({"model-repository", "model-store", "backend-directory", "env-directory", "env-wheels"})
_FILES = frozenset({"env-trust", "openai-chat-template"})
_SECRETS = frozenset(
    {f"{where}-{what}" for where in ("http", "grpc") for what in ("server-cert", "server-key", "root-cert")}
    | {"openai-api-keys-file", "ui-password"}
)
PATH_FLAGS = _FOLDERS | _FILES | _SECRETS | {"log-file"}  # flags whose values are paths of the server's machine
_ORIGIN = """\
# The image is built with the file that `naiad deploy dockerfile --output=Dockerfile` writes with the same flags."""
_FOUND_BY_COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_BYTES = re.compile(r"\d+(\.\d+)?([bkmg]b?)?", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(\.\d+)?")


def dockerfile(server: DeployedServer, options: DeployOptions, *, package: str, context: Path) -> str:
    """The text of the Dockerfile; *package* is a requirement for pip, or a wheel in the build context, with extras."""
    flags, placed = _place_files(server.flags)
    wheel, requirement = _wheel(package, context)
    copies = [each for each in placed if not each.is_secret]
    secrets = (f" -v {shlex.quote(each.source_from(context))}:{each.target}:ro" for each in placed if each.is_secret)
    return render(
        "Dockerfile",
        name=server.name,
        ports="".join(f" -p {port}:{port}" for port in server.ports.values()),
        mounts="".join(secrets),
        # Models without an environment run under the Python of the server.
        base=options.base or f"python:{sys.version_info.major}.{sys.version_info.minor}-slim",
        system=_system(options.system_packages),
        wheel=wheel,
        package=shlex.quote(requirement),
        user=_IMAGE_USER,
        copies="\n".join(f"COPY {json.dumps([_within(each.source, context), str(each.target)])}" for each in copies)
        or None,
        prefetch=_prefetch(flags),
        numbers=" ".join(str(port) for port in server.ports.values()),
        health=json.dumps(_health_command(server)),
        start=json.dumps(["naiad", "serve", *flags]),
    )


def _health_command(server: DeployedServer) -> list[str]:
    """A command that succeeds if all models are ready; slim images have no curl."""
    scheme, more = ("https", ", context=ssl._create_unverified_context()") if server.uses_tls else ("http", "")
    url = f"{scheme}://127.0.0.1:{server.ports['http']}{READY}"
    return ["python3", "-c", f"import ssl, urllib.request as r; r.urlopen({url!r}, timeout=4{more})"]


def default_package(options: ServerOptions) -> str:
    """This version of naiad, with the extras that a server with these options needs."""
    drivers = {EXTRAS.get(str(place).partition("://")[0], "") for place in options.models.repositories}
    chat = {"chat"} if options.openai.port is not None else set()
    extras = ",".join(sorted((drivers | chat) - {""}))
    return f"naiad[{extras}]=={naiad.__version__}" if extras else f"naiad=={naiad.__version__}"


def _system(packages: Sequence[str]) -> str | None:
    if not packages:
        return None
    names = " ".join(shlex.quote(name) for name in packages)
    return (
        f"RUN apt-get update && apt-get install -y --no-install-recommends {names} \\\n"
        "    && rm -rf /var/lib/apt/lists/*"
    )


def _wheel(package: str, context: Path) -> tuple[str | None, str]:
    """The line that copies a wheel, if *package* is one, and what pip installs."""
    path, bracket, extras = package.partition("[")
    if not path.endswith(".whl"):
        return None, package
    within = _within(Path(path), context)
    target = f"/tmp/{Path(path).name}"  # noqa: S108 - of the image
    return f"COPY {json.dumps([within, target])}", f"{target}{bracket}{extras}"


def _within(path: Path, context: Path) -> str:
    try:
        return _normalized(path).relative_to(context.absolute()).as_posix()
    except ValueError:
        raise DeploymentError(
            f"cannot copy {path} into an image: it is outside of {context.absolute()}, the build context; run "
            "the command in a folder that contains it"
        ) from None


def _repositories(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if flag.startswith(("--model-repository=/", "--model-store=/"))]


def _prefetch(flags: Sequence[str]) -> str:
    """The step that unpacks environments; none for repositories that are read when the server starts."""
    local = _repositories(flags)
    if not local:
        return "# The repository is not in the image: its environments are unpacked when the server starts."
    used = [flag.replace("--model-store=", "--model-repository=", 1) for flag in local]
    used += [flag for flag in flags if flag.removeprefix("--").partition("=")[0] in _ENVIRONMENT_FLAGS]
    return f"RUN naiad env prefetch {' '.join(map(shlex.quote, used))}"


def compose(server: DeployedServer, options: DeployOptions, *, context: Path) -> str:
    """The text of the file for Compose, without an image of its own with that of the Dockerfile in *context*."""
    image, file = options.image, options.output
    # Relative paths begin in the folder of the file.
    folder = context if file is None else file.absolute().parent
    flags, placed = _place_files(server.flags)
    # An image that the Dockerfile makes has the flags and the folders; secrets are mounted in either case.
    mounts: list[dict[str, Any]] = [
        {"type": "bind", "source": each.source_from(folder), "target": str(each.target), "read_only": True}
        for each in placed
        if image or each.is_secret
    ]
    # It also has the store of its models, and the server only reads it.
    has_volume = bool(image) or not _repositories(flags)
    if has_volume:
        mounts.append({"type": "volume", "source": "store", "target": STORE})
    build = {"context": os.path.relpath(context.absolute(), folder), "dockerfile": "Dockerfile"}
    is_found = file is None or file.name in _FOUND_BY_COMPOSE
    return render(
        "compose.yaml",
        file="" if is_found else f" --file {file}",
        origin=None if image else _ORIGIN,
        name=server.name,
        build=None if image else build,
        image=image or server.name,
        command=flags if image and flags else None,
        user=None if options.uid is None else f"{options.uid}:0",
        ports=[f"{port}:{port}" for port in server.ports.values()],
        mounts=mounts or None,
        health=["CMD", *_health_command(server)],
        grace=server.grace,
        limits=_resources(options),
        volumes={"store": {}} if has_volume else None,
    )


def _resources(options: DeployOptions) -> dict[str, Any] | None:
    cpus, memory = options.cpus, options.memory
    if cpus and (not _NUMBER.fullmatch(cpus) or not float(cpus)):
        raise DeploymentError(f"cannot use --cpus={cpus}: expected a number of processors, such as 1.5")
    if memory and not _BYTES.fullmatch(memory):
        raise DeploymentError(f"cannot use --memory={memory}: expected a quantity of Docker, such as 8G")
    limits = {name: value for name, value in (("cpus", cpus), ("memory", memory)) if value}
    resources: dict[str, Any] = {"limits": limits} if limits else {}
    if options.gpus:
        device = {"driver": "nvidia", "count": options.gpus, "capabilities": ["gpu"]}
        resources["reservations"] = {"devices": [device]}
    return {"resources": resources} if resources else None


@dataclass(frozen=True, slots=True)
class _PlacedFile:
    source: Path
    target: PurePosixPath
    is_secret: bool = False  # whether it is a key, a certificate or a password, which an image must not contain

    def source_from(self, folder: Path) -> str:
        """Its path relative to another folder, as Docker wants it: with a dot or a slash at its beginning."""
        path = os.path.relpath(self.source, folder.absolute())
        return path if path.startswith("..") else f"./{path}"


def _place_files(flags: Sequence[str]) -> tuple[list[str], list[_PlacedFile]]:
    """The flags as the server in the container gets them, and the files that they name there."""
    taken: dict[PurePosixPath, Path] = {}
    placed: list[_PlacedFile] = []
    changed = []
    for flag in flags:
        name, _, text = flag.removeprefix("--").partition("=")
        if name not in PATH_FLAGS - {"log-file"} or "://" in text:
            changed.append(flag)
            continue
        source = _normalized(Path(text))
        target = _free(PurePosixPath("/run/secrets" if name in _SECRETS else "/srv"), source, taken)
        if target not in taken:
            taken[target] = source
            placed.append(_PlacedFile(source, target, name in _SECRETS))
        changed.append(f"--{name}={target}")
    return changed, placed


def _free(folder: PurePosixPath, source: Path, taken: dict[PurePosixPath, Path]) -> PurePosixPath:
    name, number = source.name, 1
    while taken.get(target := folder / (name if number == 1 else f"{name}-{number}"), source) != source:
        number += 1
    return target


def _normalized(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))
