"""The parameters of a remote model, parsed once."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import re
from typing import Any, Dict, List, Mapping, Tuple
from urllib.parse import unquote, urlsplit

_SCHEMES = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}
_PATH = re.compile(r"(?P<prefix>.*?)/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/?")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MANAGED = (
    *("connection", "content-length", "content-type", "host", "inference-header-content-length", "naiad-call-chain"),
    *("te", "transfer-encoding", "triton_grpc_error", "upgrade"),
)  # headers that the backend itself sends, or that belong to one connection
KEYS = (
    *("url", "servers", "servers_port", "model", "version", "weights"),
    *("shadow", "shadow_percent", "shadow_in_flight"),
    *("timeout_seconds", "connect_timeout_seconds", "idempotent", "retries", "breaker_failures", "breaker_seconds"),
    *("max_in_flight", "tls_ca", "tls_certificate", "tls_key", "tls_server_name"),
    *("headers", "forward_headers", "max_chain", "max_response_mib"),
)


@dataclasses.dataclass(frozen=True)
class Target:
    """A model of a server."""

    scheme: str  # `http`, `https`, `grpc` or `grpcs`
    host: str  # name or address
    port: int
    prefix: str  # path before `/v2` of HTTP
    model: str
    version: str  # empty for the one that the server chooses

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_grpc(self) -> bool:
        return self.scheme in {"grpc", "grpcs"}

    @property
    def is_secure(self) -> bool:
        return self.scheme in {"https", "grpcs"}

    def __str__(self) -> str:
        version = f"/versions/{self.version}" if self.version else ""
        return f"{self.scheme}://{self.address}{self.prefix}/v2/models/{self.model}{version}"


@dataclasses.dataclass(frozen=True)
class Tls:
    """Files are absolute paths; empty for none."""

    ca: str = ""  # certificates of authorities, instead of the system's
    certificate: str = ""  # the client's
    key: str = ""  # empty if it is in the file of the certificate
    server_name: str = ""  # name that the server's certificate must have, instead of the host's


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the parameters of a model say. Times are in seconds; see `docs/reference/remote.md`."""

    servers: str  # URL of a list of servers; empty if `url` has the targets
    servers_port: str  # port of listed servers that is called: `http`, `grpc` or `grpcs`
    model: str  # name at targets that do not name one
    version: str  # empty for the one that the server chooses
    targets: Tuple[Target, ...]  # those of `url`; none if they are read from the list `servers`
    weights: Tuple[float, ...]
    shadows: Tuple[Target, ...]
    shadow_share: float
    shadow_in_flight: int
    timeout: float
    connect_timeout: float
    idempotent: bool
    retries: int
    breaker_failures: int
    breaker_seconds: float
    max_in_flight: int
    tls: Tls
    headers: Tuple[Tuple[str, str], ...]
    forward_headers: Tuple[str, ...]
    max_chain: int
    max_response: int  # bytes


def read(config: Mapping[str, Any], directory: str) -> Settings:
    """The settings of a model; ValueError if a parameter is missing, unknown or invalid.

    Paths of files are relative to the model's directory, the one above *directory*, which is the version's.
    """
    values = {name: str(value.get("string_value", "")).strip() for name, value in config.get("parameters", {}).items()}
    _reject_misspelled(values)
    get = _Reader(values)
    model, version = values.get("model", "") or str(config["name"]), values.get("version", "")
    servers = values.get("servers", "")
    if servers:
        _reject_for_lists(values)
    elif not values.get("url"):
        raise ValueError(
            "a model of the backend 'remote' needs the parameter 'url', for example \"http://other-server:8000\""
        )
    targets = () if servers else _targets("url", values["url"], model, version)
    base = os.path.dirname(os.path.normpath(directory))  # noqa: PTH120 - a text, which tests and messages compare
    return Settings(
        servers=servers,
        servers_port=values.get("servers_port", "") or "http",
        model=model,
        version=version,
        targets=targets,
        weights=() if servers else _weights(values.get("weights", ""), len(targets)),
        shadows=_targets("shadow", values["shadow"], model, version) if values.get("shadow") else (),
        shadow_share=get.number("shadow_percent", 100, most=100) / 100,
        shadow_in_flight=get.count("shadow_in_flight", 16, least=1),
        timeout=get.number("timeout_seconds", 60),
        connect_timeout=get.number("connect_timeout_seconds", 2, is_zero_allowed=False),
        idempotent=get.flag("idempotent"),
        retries=get.count("retries", 2),
        breaker_failures=get.count("breaker_failures", 5),
        breaker_seconds=get.number("breaker_seconds", 10, is_zero_allowed=False),
        max_in_flight=get.count("max_in_flight", 64, least=1),
        tls=Tls(
            get.file("tls_ca", base),
            get.file("tls_certificate", base),
            get.file("tls_key", base),
            values.get("tls_server_name", ""),
        ),
        headers=_headers(values.get("headers", "")),
        forward_headers=tuple(each.lower() for each in _split(values.get("forward_headers", ""))),
        max_chain=get.count("max_chain", 8, least=1),
        max_response=get.count("max_response_mib", 1024, least=1) << 20,
    )


def _reject_misspelled(values: Mapping[str, str]) -> None:
    """Parameters of the server itself are not this backend's business, so only similar names are rejected."""
    for name in values:
        near = difflib.get_close_matches(name.lower(), KEYS, 1, 0.8)
        if near and name not in KEYS:
            raise ValueError(f"the backend 'remote' has no parameter '{name}'; did you mean '{near[0]}'?")


def listed_target(address: str, given: Settings) -> Target:
    """The target at an address of a list of servers: a URL, or host and port for gRPC."""
    url = address if "://" in address else f"{given.servers_port}://{address}"
    return _target("servers", url, given.model, given.version)


def _reject_for_lists(values: Mapping[str, str]) -> None:
    for name in ("url", "weights"):
        if values.get(name):
            raise ValueError(
                f"the parameters 'servers' and '{name}' exclude each other: a list has the addresses of its servers"
            )
    if urlsplit(values["servers"]).scheme not in {"http", "https"}:
        raise ValueError(
            f"the parameter 'servers' is '{values['servers']}'; it must be the URL of a list of servers, such as "
            "http://head:8000/replicas"
        )
    if values.get("servers_port", "") not in {"", "http", "grpc", "grpcs"}:
        raise ValueError(f"the parameter 'servers_port' is '{values['servers_port']}'; it must be http, grpc or grpcs")


class _Reader:
    """Reads numbers and flags of a model's parameters."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def number(self, name: str, default: float, *, most: float = math.inf, is_zero_allowed: bool = True) -> float:
        text = self._values.get(name, "")
        if not text:
            return default
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number <= most or math.isinf(number) or (number == 0 and not is_zero_allowed):
            bounds = f"from 0 to {most:g}" if most < math.inf else "of at least 0" if is_zero_allowed else "above 0"
            raise ValueError(f"the parameter '{name}' is '{text}'; it must be a number {bounds}")
        return number

    def count(self, name: str, default: int, least: int = 0) -> int:
        text = self._values.get(name, "")
        if not text:
            return default
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
            raise ValueError(f"the parameter '{name}' is '{text}'; it must be a whole number of at least {least}")
        return int(text)

    def flag(self, name: str) -> bool:
        text = self._values.get(name, "").lower()
        if text not in {"", "true", "false", "1", "0"}:
            raise ValueError(f"the parameter '{name}' is '{text}'; it must be true or false")
        return text in {"true", "1"}

    def file(self, name: str, base: str) -> str:
        text = self._values.get(name, "")
        if not text:
            return ""
        path = os.path.join(base, text)  # noqa: PTH118 - see `read`
        if not os.path.isfile(path):  # noqa: PTH113 - see `read`
            raise ValueError(f"the parameter '{name}' names '{path}', which does not exist")
        return path


def _split(text: str) -> List[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _targets(name: str, text: str, model: str, version: str) -> Tuple[Target, ...]:
    targets = tuple(_target(name, each, model, version) for each in _split(text))
    if not targets:
        raise ValueError(f"the parameter '{name}' has no address")
    return targets


def _target(name: str, text: str, model: str, version: str) -> Target:
    example = "write one as http://host:8000 or grpc://host:8001/v2/models/other/versions/2"
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise ValueError(f"the parameter '{name}' has the invalid address '{text}': {error}; {example}") from None
    if parts.scheme not in _SCHEMES or not host or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"the parameter '{name}' has the invalid address '{text}'; {example}")
    path, prefix = parts.path.rstrip("/"), parts.path.rstrip("/")
    found = _PATH.fullmatch(path)
    if found is not None:
        prefix, model, version = found["prefix"], unquote(found["model"]), unquote(found["version"] or "")
    if prefix and parts.scheme.startswith("grpc"):
        raise ValueError(f"the parameter '{name}' has the address '{text}', but gRPC has no paths such as '{prefix}'")
    return Target(parts.scheme, host, port or _SCHEMES[parts.scheme], prefix, model, version)


def _weights(text: str, count: int) -> Tuple[float, ...]:
    if not text:
        return (1.0,) * count
    rule = f"it must have {count} numbers of at least 0, one for each address of 'url', and one above 0"
    try:
        weights = tuple(float(each) for each in _split(text))
    except ValueError:
        weights = ()
    if len(weights) != count or not all(0 <= each < math.inf for each in weights) or not any(weights):
        raise ValueError(f"the parameter 'weights' is '{text}'; {rule}")
    return weights


def _headers(text: str) -> Tuple[Tuple[str, str], ...]:
    if not text:
        return ()
    try:
        given: Dict[str, Any] = json.loads(text)
        if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
            raise ValueError
    except ValueError:
        raise ValueError(
            'the parameter \'headers\' must be a JSON object of names and texts, such as {"authorization": "..."}'
        ) from None
    for name, value in given.items():
        if not is_header(name, value):
            raise ValueError(f"the parameter 'headers' has the header '{name}', which cannot be sent")
    return tuple((name.lower(), value) for name, value in given.items())


def is_header(name: str, value: str) -> bool:
    """Whether a header may be sent to targets: it cannot break the request apart, and the backend does not set it."""
    return (
        _HEADER_NAME.fullmatch(name) is not None
        and name.lower() not in _MANAGED
        and value.isascii()
        and value.isprintable()
    )
