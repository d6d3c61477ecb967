"""A Dockerfile: a slim image of Python with naiad, the models and their environments, for a user without rights."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import naiad
from naiad.config.server.options import ServerOptions
from naiad.core.errors import DeploymentError
from naiad.sources.storage.opening import EXTRAS
from naiad_operations.deploy.container_files import normalized, place_files
from naiad_operations.deploy.server import READY, STORE, DeployedServer

__all__ = ["IMAGE_USER", "default_base", "default_package", "dockerfile", "has_models", "health_command"]

IMAGE_USER = 65532
"""Not root, and nobody of the image; its group is 0, as that of `naiad bundle --oci`."""
HEALTH_SECONDS = 10
"""Between two health checks."""
_ENVIRONMENT_FLAGS = ("backend-directory", "env-directory", "env-trust", "env-build", "env-wheels", "backend-config")
"""Flags that `naiad env prefetch` shares with the server."""

_TEXT = """\
# A server with its models and their environments.
#
#   docker build -t {name} .
#   docker run --rm{ports}{mounts} {name}
#
# Further flags of the server may follow the name of the image. The folder of this file is the build context; a
# .dockerignore with the lines .git, .venv and **/__pycache__ keeps it small.
FROM {base}
{system}{wheel}RUN pip install --no-cache-dir --root-user-action=ignore {package}

# The environments of the models are unpacked here when the image is built, so that no start has to do it.
ENV NAIAD_STORE={store} HOME=/tmp
RUN install -d -o {user} -g 0 -m 775 {store}
{copies}USER {user}:0
{prefetch}
EXPOSE {numbers}
STOPSIGNAL SIGTERM
# Healthy once all models are loaded; a start may take an hour.
HEALTHCHECK --interval={seconds}s --timeout=5s --start-period=1h --retries=3 \\
    CMD {health}
ENTRYPOINT {start}
"""


def dockerfile(
    server: DeployedServer, *, base: str, package: str, system_packages: Sequence[str], context: Path
) -> str:
    """The text of the Dockerfile.

    Args:
        base: The image to build on: a Debian with Python and pip.
        package: What pip installs: a requirement, or the path of a wheel in the build context, with extras.
    """
    flags, placed = place_files(server.flags)
    copies = [each for each in placed if not each.is_secret]
    wheel, requirement = _wheel(package, context)
    return _TEXT.format(
        name=server.name,
        ports="".join(f" -p {port}:{port}" for port in server.ports.values()),
        mounts="".join(
            f" -v {shlex.quote(each.source_from(context))}:{each.target}:ro" for each in placed if each.is_secret
        ),
        base=base,
        system=_system(system_packages),
        wheel=wheel,
        package=shlex.quote(requirement),
        store=STORE,
        user=IMAGE_USER,
        copies="".join(f"COPY {json.dumps([_within(each.source, context), str(each.target)])}\n" for each in copies),
        prefetch=_prefetch(flags),
        numbers=" ".join(str(port) for port in server.ports.values()),
        seconds=HEALTH_SECONDS,
        health=json.dumps(health_command(server)),
        start=json.dumps(["naiad", "serve", *flags]),
    )


def health_command(server: DeployedServer) -> list[str]:
    """A command that succeeds if all models are ready; slim images have no curl."""
    scheme, more = ("https", ", context=ssl._create_unverified_context()") if server.uses_tls else ("http", "")
    url = f"{scheme}://127.0.0.1:{server.ports['http']}{READY}"
    return ["python3", "-c", f"import ssl, urllib.request as r; r.urlopen({url!r}, timeout=4{more})"]


def default_base() -> str:
    """The image of this Python: models without an environment run under the Python of the server."""
    return f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"


def default_package(options: ServerOptions) -> str:
    """This version of naiad, with the extras that a server with these options needs."""
    drivers = {EXTRAS.get(str(place).partition("://")[0], "") for place in options.models.repositories}
    chat = {"chat"} if options.openai.port is not None else set()
    extras = ",".join(sorted((drivers | chat) - {""}))
    return f"naiad[{extras}]=={naiad.__version__}" if extras else f"naiad=={naiad.__version__}"


def _system(packages: Sequence[str]) -> str:
    if not packages:
        return ""
    names = " ".join(shlex.quote(name) for name in packages)
    return (
        f"RUN apt-get update && apt-get install -y --no-install-recommends {names} \\\n"
        "    && rm -rf /var/lib/apt/lists/*\n"
    )


def _wheel(package: str, context: Path) -> tuple[str, str]:
    """The line that copies a wheel, if *package* is one, and what pip installs."""
    path, bracket, extras = package.partition("[")
    if not path.endswith(".whl"):
        return "", package
    within = _within(Path(path), context)
    target = f"/tmp/{Path(path).name}"  # noqa: S108 - of the image
    return f"COPY {json.dumps([within, target])}\n", f"{target}{bracket}{extras}"


def _within(path: Path, context: Path) -> str:
    try:
        return normalized(path).relative_to(context.absolute()).as_posix()
    except ValueError:
        raise DeploymentError(
            f"cannot copy {path} into an image: it is outside of {context.absolute()}, the build context; run "
            "the command in a folder that contains it"
        ) from None


def has_models(flags: Sequence[str]) -> bool:
    """Whether the image has models and their environments, by the flags of its server."""
    return bool(_repositories(flags))


def _repositories(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if flag.startswith(("--model-repository=/", "--model-store=/"))]


def _prefetch(flags: Sequence[str]) -> str:
    """The step that unpacks environments; none for repositories that are read when the server starts."""
    local = _repositories(flags)
    if not local:
        return "# The repository is not in the image: its environments are unpacked when the server starts.\n"
    used = [flag.replace("--model-store=", "--model-repository=", 1) for flag in local]
    used += [flag for flag in flags if flag.removeprefix("--").partition("=")[0] in _ENVIRONMENT_FLAGS]
    return f"RUN naiad env prefetch {' '.join(map(shlex.quote, used))}\n"
