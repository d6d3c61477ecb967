"""References to artifacts in registries: `oci://registry/name:tag` and `oci://registry/name@sha256:digest`.

The grammar is that of the OCI distribution specification 1.1, "Pulling manifests"; names without a registry's host are
rejected, because a default registry would be a guess.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from naiad.config.model.environment_source import redact
from naiad.core.errors import Code, RegistryError

SCHEME = "oci://"
_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(?::\d{1,5})?")
_DOCKER_HUB = {"docker.io", "index.docker.io"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A parsed reference."""

    registry: str
    name: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag, digest = self.tag and f":{self.tag}", self.digest and f"@{self.digest}"
        return f"{SCHEME}{self.registry}/{self.name}{tag}{digest}"

    @property
    def target(self) -> str:
        return self.digest or self.tag

    @property
    def base_url(self) -> str:
        """The URL of the registry's API; plain HTTP for loopback addresses only, as in Docker."""
        host = "registry-1.docker.io" if self.registry in _DOCKER_HUB else self.registry
        return f"{'http' if self.is_loopback else 'https'}://{host}/v2/"

    @property
    def is_loopback(self) -> bool:
        host = self.registry.rpartition(":")[0] if re.search(r":\d+$", self.registry) else self.registry
        if host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return False

    def pinned(self, digest: str) -> Reference:
        return replace(self, digest=digest)


def is_reference(text: object) -> bool:
    """Whether a repository's location is in a registry."""
    return isinstance(text, str) and text.lower().startswith(SCHEME)


def parse_reference(text: str) -> Reference:
    """Parse a reference; without tag and digest the tag is `latest`."""
    shown = redact(text)
    if shown != text:
        raise RegistryError(
            f"cannot use '{shown}' with a user or a password in it: log in with `docker login` or `podman login` "
            "instead, and write the reference without them",
            code=Code.INVALID_ARG,
        )
    rest = text[len(SCHEME) :] if is_reference(text) else text
    place, at, digest = rest.partition("@")
    registry, slash, path = place.partition("/")
    name, colon, tag = path.partition(":")
    # Docker's own names without a user are below "library".
    if registry in _DOCKER_HUB and name and "/" not in name:
        name = f"library/{name}"
    tag = "latest" if not colon and not at else tag
    flaw = ""
    is_host = _HOST.fullmatch(registry) and ({".", ":"} & set(registry) or registry == "localhost")
    if not is_reference(text) or not slash or not is_host:
        flaw = "it names no registry"
    elif not _NAME.fullmatch(name):
        flaw = f"'{name}' is not a name: use lower-case letters, digits and '.', '_', '-', '/'"
    elif (colon or tag) and not _TAG.fullmatch(tag):
        flaw = f"'{tag}' is not a tag"
    elif at and not _DIGEST.fullmatch(digest):
        flaw = f"'{digest}' is not a digest: write sha256: and all 64 hexadecimal digits"
    if flaw:
        raise RegistryError(
            f"cannot use '{text}': {flaw}; write oci://registry/name:tag or oci://registry/name@sha256:digest",
            code=Code.INVALID_ARG,
        )
    return Reference(registry=registry, name=name, tag=tag, digest=digest)
