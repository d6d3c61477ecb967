"""Credentials for registries, from the files that `docker login` and `podman login` write.

Files, in this order: `$REGISTRY_AUTH_FILE`, `$DOCKER_CONFIG/config.json` (default `~/.docker/config.json`), and
`$XDG_RUNTIME_DIR/containers/auth.json`. The keys of `auths` are hosts, optionally with a path; the longest match wins.
`credHelpers` and `credsStore` name programs `docker-credential-*`, which are asked by their protocol
(https://github.com/docker/docker-credential-helpers).
"""

from __future__ import annotations

import base64
import binascii
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from naiad.core.errors import RegistryError
from naiad.core.foreign_json import read_json
from naiad.sources.registry.references import Reference

_HELPER_SECONDS = 30
_TOKEN_USER = "<token>"  # noqa: S105 - the name that helpers print in place of a user
_DOCKER_HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryCredentials:
    """A user's credentials at one registry: user and password, or an identity token, the refresh token of OAuth2."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    origin: str

    @property
    def basic(self) -> str:
        """The value of an Authorization header for basic authentication."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def find_credentials(reference: Reference, environ: Mapping[str, str]) -> RegistryCredentials | None:
    """The credentials for a reference's registry, None if no file has any."""
    for path in _files(environ):
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError:
            continue
        try:
            found = _in_file(read_json(text), reference, path)
        except (ValueError, TypeError, AttributeError, binascii.Error) as error:
            raise RegistryError(
                f"cannot read the credentials in {path}: {error}; write the file again with `docker login`"
            ) from error
        if found is not None:
            return found
    return None


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("REGISTRY_AUTH_FILE"):
        yield Path(environ["REGISTRY_AUTH_FILE"])
    if environ.get("DOCKER_CONFIG"):
        yield Path(environ["DOCKER_CONFIG"], "config.json")
    elif environ.get("HOME"):
        yield Path(environ["HOME"], ".docker", "config.json")
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"], "containers", "auth.json")


def _in_file(content: Mapping[str, Any], reference: Reference, path: Path) -> RegistryCredentials | None:
    helper = (content.get("credHelpers") or {}).get(reference.registry) or content.get("credsStore")
    if helper:
        found = _ask_helper(f"docker-credential-{helper}", reference)
        if found is not None:
            return found
    entries: Mapping[str, Mapping[str, str]] = content.get("auths") or {}
    matching = [key for key in entries if _matches(key, reference)]
    if not matching:
        return None
    entry = entries[max(matching, key=lambda key: len(_plain(key)))]
    if entry.get("identitytoken"):
        return RegistryCredentials(identity_token=entry["identitytoken"], origin=str(path))
    user, password = entry.get("username", ""), entry.get("password", "")
    if entry.get("auth"):
        user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    return RegistryCredentials(user=user, password=password.rstrip("\0"), origin=str(path)) if user else None


def _matches(key: str, reference: Reference) -> bool:
    if key == _DOCKER_HUB_KEY:
        return reference.registry in {"docker.io", "index.docker.io"}
    plain = _plain(key)
    return f"{reference.registry}/{reference.name}/".startswith(f"{plain}/")


def _plain(key: str) -> str:
    """A key of `auths` without scheme and API version, which old versions of Docker wrote."""
    plain = key.partition("://")[2] or key
    return plain.rstrip("/").removesuffix("/v1").removesuffix("/v2").rstrip("/")


def _ask_helper(program: str, reference: Reference) -> RegistryCredentials | None:
    server = _DOCKER_HUB_KEY if reference.registry in {"docker.io", "index.docker.io"} else reference.registry
    try:
        done = subprocess.run(
            [program, "get"], input=server, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegistryError(
            f"cannot ask {program} for the credentials of {reference.registry}: {error}; install the program, or "
            "remove it from Docker's config.json and log in again"
        ) from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        if "not found" in said:
            return None
        raise RegistryError(
            f"cannot ask {program} for the credentials of {reference.registry}: "
            f"{said or f'exit code {done.returncode}'}"
        )
    try:
        answer = read_json(done.stdout)
        user, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    except (ValueError, AttributeError) as error:
        raise RegistryError(
            f"cannot ask {program} for the credentials of {reference.registry}: what it printed is not a JSON object "
            f"({error}); log in again"
        ) from error
    if user == _TOKEN_USER:
        return RegistryCredentials(identity_token=secret, origin=program)
    return RegistryCredentials(user=user, password=secret, origin=program)
