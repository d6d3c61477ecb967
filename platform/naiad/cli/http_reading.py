"""Requests of commands to a running server, with the errors that a person at a terminal can act on."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from naiad.core.errors import Code, NaiadError, OptionError, certificate_remedy
from naiad.core.foreign_json import read_json

DEFAULT_URL = "http://localhost:8000"
_SECONDS = 10.0
_LONGEST_TEXT = 200  # longest text of an error answer that is printed: others are pages for browsers


class UnreachableServerError(NaiadError):
    """No server answers at an address."""

    default_code = Code.UNAVAILABLE


class HttpStatusError(NaiadError):
    """A server answered a request with an error."""

    default_code = Code.UNAVAILABLE

    def __init__(self, url: str, detail: str, status: int) -> None:
        super().__init__(f"cannot read {url}: {detail}")
        self.status = status
        self.detail = detail


class ServerAddress:
    """A server, by the address of its HTTP port; `http://` may be missing. An answer may take *seconds*."""

    def __init__(self, url: str, headers: dict[str, str] | None = None, seconds: float = _SECONDS) -> None:
        spelled = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(spelled)
            self.host, self.port = parts.hostname or "", parts.port
        except ValueError as error:
            raise OptionError(f"'{url}' is not the address of a server: {error}; give http://HOST:PORT") from None
        if parts.scheme not in {"http", "https"} or not self.host:
            raise OptionError(f"'{url}' is not the address of a server; give http://HOST:PORT")
        self.is_secure = parts.scheme == "https"
        self.url = spelled.rstrip("/")
        self.headers = headers or {}
        self._seconds = seconds

    def get(self, path: str) -> Any:
        return read_json(self.text(path))

    def post(self, path: str, document: Any) -> Any:
        return read_json(self.text(path, json.dumps(document).encode()))

    def text(self, path: str, body: bytes | None = None) -> str:
        """The text of a path, by POST with a body; UnreachableServerError, or HttpStatusError if it is an error."""
        headers = {**self.headers, "Content-Type": "application/json"} if body is not None else self.headers
        request = urllib.request.Request(f"{self.url}{path}", body, headers)  # noqa: S310 - the user's own address
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as reply:  # noqa: S310 - as above
                return str(reply.read().decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            with error:
                raise HttpStatusError(f"{self.url}{path}", _explain(error), error.code) from error
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableServerError(
                f"cannot reach a server at {self.url}: {_reason(error)}; {_remedy(error)}"
            ) from error


def parse_header(text: str) -> tuple[str, str]:
    """The name and the value of a header that is given as `NAME:VALUE`."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise OptionError(f"--header={text}: not of the form NAME:VALUE")
    return name.strip(), value.strip()


def basic_authorization(file: Path) -> dict[str, str]:
    """The header with the password in the first line of a file, as the server's `--ui-password` reads it."""
    try:
        password = (file.read_text(encoding="utf-8-sig").splitlines() or [""])[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the password of --ui-password={file}: {error}") from None
    return {"Authorization": f"Basic {base64.b64encode(f'naiad:{password}'.encode()).decode()}"}


def _explain(error: urllib.error.HTTPError) -> str:
    """The text of an error answer, or its status with a short text: the port of gRPC names the others in plain text."""
    body = b""
    try:
        body = error.read()
        return str(read_json(body)["error"])
    except (ValueError, KeyError, TypeError, OSError):
        text = body.decode("utf-8", "replace").strip()
        is_told = text.isprintable() and text != error.reason and 0 < len(text) <= _LONGEST_TEXT
        return f"HTTP status {error.code} {error.reason}{f': {text}' if is_told else ''}"


def _remedy(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return certificate_remedy(
            cause.verify_code,
            "name the file of its certificate, or of the authority, with the environment variable SSL_CERT_FILE",
        )
    if isinstance(cause, ssl.SSLError):
        return "name the address of a port with TLS, or write http://"
    return "start one with `naiad serve`, or name the address of its HTTP port"


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, socket.gaierror):
        return "the name does not resolve"
    if isinstance(cause, TimeoutError):
        return f"no answer within {_SECONDS:.0f} s"
    if isinstance(cause, OSError):
        return (cause.strerror or str(cause)).lower()
    return str(cause) or type(cause).__name__
