"""Parsing URIs of remote storage into fsspec's driver, path and server.

The forms are Triton's (SRV docs/user_guide/model_repository.md): `s3://bucket/path`,
`s3://host:port/bucket/path` (plain HTTP), `s3://https://host:port/bucket/path`, `gs://bucket/path`,
`as://account/container/path`; and every other scheme of fsspec, such as `memory://path`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from naiad.config.model.environment_source import redact
from naiad.core.errors import StorageError

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_S3_SERVER = re.compile(r"(?:(?P<scheme>https?)://)?(?P<server>[^:/]+:\d+)(?:/(?P<path>.*))?")
_S3_SERVER_WITH_SCHEME = re.compile(r"(?P<scheme>https?)://(?P<server>[^/]+)(?:/(?P<path>.*))?")
_AZURE_SUFFIX = ".blob.core.windows.net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A parsed URI."""

    uri: str
    protocol: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)


def parse_location(uri: str) -> Location:
    """Parse a URI."""
    match = _SCHEME.match(uri)
    if match is None:
        raise StorageError(f"'{redact(uri)}' is not a URI: it must begin with a scheme such as s3://")
    scheme = match[1].lower()
    uri = uri.rstrip("/") if uri.rstrip("/") != uri[: match.end()].rstrip("/") else uri
    rest = uri[match.end() :]
    match scheme:
        case "s3":
            location = _read_s3(uri, rest)
        case "gs" | "gcs":
            location = Location(uri=uri, protocol="gcs", path=rest)
        case "as":
            account, _, path = rest.partition("/")
            named = {"account_name": account.removesuffix(_AZURE_SUFFIX)}
            location = Location(uri=uri, protocol="abfs", path=path, options=named)
        case _:  # some drivers, such as HTTP's, expect the whole URI; the others strip the scheme themselves
            return Location(uri=uri, protocol=scheme, path=uri)
    if not location.path.strip("/"):
        raise StorageError(f"'{redact(uri)}' names no bucket: {_FORMS[scheme]}")
    return location


def _read_s3(uri: str, rest: str) -> Location:
    server = _S3_SERVER.fullmatch(rest) or _S3_SERVER_WITH_SCHEME.fullmatch(rest)
    if server is None:
        return Location(uri=uri, protocol="s3", path=rest)
    endpoint = f"{server['scheme'] or 'http'}://{server['server']}"
    return Location(uri=uri, protocol="s3", path=(server["path"] or "").lstrip("/"), options={"endpoint_url": endpoint})


_FORMS = {
    "s3": "write s3://bucket/path, or s3://https://host:port/bucket/path for a server of your own",
    "gs": "write gs://bucket/path",
    "gcs": "write gcs://bucket/path",
    "as": "write as://account/container/path",
}
