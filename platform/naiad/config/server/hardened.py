"""`--hardened`: settings for a server whose clients are not all trusted (docs/how-to/run-it-safely.md).

The preset sets flags, unless they are given. One setting has no flag: with API keys for `/v1`, inference and metadata
of KServe need the administrator's key. Otherwise a client without an API key could run the same models by `/v2`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from naiad.config.server.access import ADMIN_VARIABLE, API_KEYS_VARIABLE, Api, Restrictions
from naiad.config.server.console_options import LOOPBACK, parse_ui_address
from naiad.config.server.flag_values import FlagValues

ADMIN_HEADER = "naiad-admin-key"

_FLAG = "hardened"
_ADMIN_APIS = "model-repository,model-config,shared-memory,statistics,trace,logging"
_BEHIND_KEYS = (Api.INFERENCE, Api.METADATA)
_HTTP, _GRPC = "http-restricted-api", "grpc-restricted-protocol"
# Flags, their values, and why.
_SETTINGS = (
    ("metrics-address", "127.0.0.1", "metrics name models and count their requests"),
    ("guest-env", "", "models inherit no credentials"),
    ("env-require-digest", "true", "a remote environment must be the one that the model names"),
    ("http-client-max-body-size", "256MiB", "a body takes no more memory"),
    ("http-keepalive-timeout", "75", "idle connections end"),
    ("max-connections-per-address", "1000", "one client leaves connections for others"),
)


@dataclass(frozen=True, slots=True)
class Hardening:
    """What `--hardened` does besides setting flags."""

    key: str  # the administrator's key: from the environment, else a random one that is kept secret
    is_key_given: bool
    guards_http: bool
    guards_grpc: bool

    def http(self, restrictions: Restrictions) -> Restrictions:
        """The restrictions of KServe over HTTP. Those of `/v1` stay as they are: it has its API keys."""
        return self._guarded(restrictions) if self.guards_http else restrictions

    def grpc(self, restrictions: Restrictions) -> Restrictions:
        return self._guarded(restrictions) if self.guards_grpc else restrictions

    def _guarded(self, restrictions: Restrictions) -> Restrictions:
        return {**dict.fromkeys(_BEHIND_KEYS, (ADMIN_HEADER, self.key)), **restrictions}


def hardening_of(values: FlagValues) -> Hardening | None:
    """The hardening that was asked for; None without `--hardened`."""
    if not values.has(_FLAG):
        return None
    given = values.environ.get(ADMIN_VARIABLE, "")
    has_keys = _has_api_keys(values)
    return Hardening(
        key=given or secrets.token_hex(32),
        is_key_given=bool(given),
        guards_http=has_keys and not values.has(_HTTP),
        guards_grpc=has_keys and not values.has(_GRPC),
    )


def hardened_flags(values: FlagValues, hardening: Hardening) -> tuple[list[tuple[str, str]], list[str]]:
    """The flags of the preset that were not given, with their values; and a line for the log about each."""
    restriction = f"{_ADMIN_APIS}:{ADMIN_HEADER}="
    needs = f"they need the header {ADMIN_HEADER}"
    if not hardening.is_key_given:
        needs = f"they are closed: set {ADMIN_VARIABLE} to open them to who sends it"
    settings = [(flag, restriction, hardening.key, needs) for flag in (_HTTP, _GRPC)]
    settings += [(flag, text, "", reason) for flag, text, reason in _SETTINGS]
    flags, lines = [], []
    for flag, text, secret, reason in settings:
        if values.has(flag):
            lines.append(f"--{_FLAG}: --{flag} stays as it was given")
        else:
            flags.append((flag, text + secret))
            lines.append(f"--{_FLAG} sets --{flag}={text}{'...' if secret else ''}: {reason}")
    if hardening.guards_http or hardening.guards_grpc:
        lines.append(f"--{_FLAG}: inference and metadata of /v2 and gRPC need the header, too: /v1 has API keys")
    return flags, lines


def hardened_warnings(values: FlagValues) -> Iterator[str]:
    """What is still open although `--hardened` was given: this cannot be chosen for the operator."""
    if not values.has(_FLAG):
        return
    open_ports = [
        f"--{name}-use-ssl"
        for name in ("http", "grpc")
        if values.switch(f"allow-{name}")
        and not (values.switch(f"{name}-use-ssl") or values.switch(f"{name}-use-ssl-mutual"))
    ]
    if open_ports:
        flags = " and ".join(open_ports)
        yield f"--{_FLAG}: requests and keys travel unencrypted: set {flags}, or put a proxy in front"
    if os.geteuid() == 0 and not values.has("guest-user"):
        yield f"--{_FLAG}: models run as root, as this server: set --guest-user"
    if values.switch("ui") and not values.has("ui-password") and parse_ui_address(values, "ui-address") != LOOPBACK:
        problem = "the page at /ui shows paths and processes to every client"
        yield f"--{_FLAG}: {problem}: set --ui-password, or leave --ui-address off"
    if values.has("openai-port") and not _has_api_keys(values):
        yield f"--{_FLAG}: /v1 is open to every client: set --openai-api-keys-file"


def _has_api_keys(values: FlagValues) -> bool:
    return values.has("openai-port") and bool(
        values.text("openai-api-keys-file") or values.environ.get(API_KEYS_VARIABLE, "").strip(", ")
    )
