"""Requests to one registry: authorization, repetition with back-off, and errors in terms of the registry.

The standard library's client suffices: it honours proxies and certificate files of the environment, and a header that
is added as "unredirected" does not reach the object store that a registry redirects downloads to.
"""

from __future__ import annotations

import http.client
import logging
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import IO, cast

from naiad.core.errors import Code, RegistryError, certificate_remedy, without_frames
from naiad.core.foreign_json import read_json
from naiad.sources.registry.authorization import Authorization
from naiad.sources.registry.credentials import RegistryCredentials
from naiad.sources.registry.references import Reference

_log = logging.getLogger("naiad.registry")
PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds to wait after each failed attempt in a row; then the request fails
_LONGEST_PAUSE = 60.0
_TIME_LIMIT = 60.0
_TEMPORARY_ERRORS = frozenset({408, 425, 429, 500, 502, 503, 504})
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404
_LARGEST_ERROR = 1 << 16


class InterruptedTransferError(Exception):
    """A request failed temporarily, also after all repetitions."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause  # seconds after which the registry wants to be asked again; 0 if it named none


@dataclass(frozen=True, slots=True)
class UploadBody:
    """The body of a request, readable several times."""

    size: int
    pieces: Callable[[], Iterable[bytes]]


class RegistryTransport:
    """Sends requests about one repository of a registry; *token_servers* may get the credentials. Thread-safe."""

    def __init__(
        self,
        reference: Reference,
        credentials: RegistryCredentials | None,
        pauses: Sequence[float] | None = None,
        token_servers: Collection[str] = (),
    ) -> None:
        self._reference = reference
        self._pauses = PAUSES if pauses is None else pauses
        # A proxy cannot reach this machine's loopback addresses.
        handlers = [urllib.request.ProxyHandler({})] if reference.is_loopback else []
        self._opener = urllib.request.build_opener(*handlers)
        self._authorization = Authorization(
            reference.registry,
            reference.name,
            credentials,
            lambda request: self._opener.open(request, timeout=_TIME_LIMIT),
            token_servers,
        )

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: UploadBody | None = None,
        expected: Iterable[int] = (200,),
    ) -> http.client.HTTPResponse:
        """Send a request, repeatedly if it fails temporarily; the caller closes the response.

        Args:
            url: The address, which may be relative to that of the repository: `tags/list`.
        """
        attempt = 0
        while True:
            try:
                return self.send_once(method, url, headers=headers, body=body, expected=expected)
            except InterruptedTransferError as error:
                attempt = self.back_off(attempt, without_frames(error))

    def send_once(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: UploadBody | None = None,
        expected: Iterable[int] = (200,),
    ) -> http.client.HTTPResponse:
        """As `send`, without repetition.

        Raises:
            InterruptedTransferError: If it fails temporarily.
            RegistryError: As `send`.
        """
        url = urllib.parse.urljoin(f"{self._reference.base_url}{self._reference.name}/", url)
        expected = frozenset(expected)
        sent = self._authorization.header
        status, reply = self._exchange(method, url, headers or {}, body, sent)
        if status == _UNAUTHORIZED:
            challenge = reply.headers.get("WWW-Authenticate", "")
            reply.close()
            self._require_own(reply, method, url)
            # The second attempt's rejection is final: its token is fresh.
            sent = self._authorization.answer(challenge, sent)
            status, reply = self._exchange(method, url, headers or {}, body, sent)
        if status in expected:
            return reply
        with reply:
            if status in _TEMPORARY_ERRORS:
                raise InterruptedTransferError(_status_text(status, reply), _retry_after(reply.headers))
            if status in {_UNAUTHORIZED, _FORBIDDEN}:
                self._require_own(reply, method, url)
                raise self._authorization.refused(sent, status)
            raise RegistryError(
                f"the registry {self._reference.registry} rejects {method} {url}: {_status_text(status, reply)}",
                code=Code.NOT_FOUND if status == _NOT_FOUND else Code.INVALID_ARG,
            )

    def back_off(self, attempt: int, error: InterruptedTransferError) -> int:
        """Wait after an attempt that failed, and return the number of the next; RegistryError after the last one."""
        if attempt >= len(self._pauses):
            raise RegistryError(
                f"cannot reach the registry {self._reference.registry}: {error}; gave up after {attempt + 1} "
                "attempts: check its name, and that it runs and can be reached from here",
                code=Code.UNAVAILABLE,
            ) from error
        seconds = max(self._pauses[attempt], error.pause)
        _log.warning("the registry %s failed: %s; trying again in %.1f s", self._reference.registry, error, seconds)
        time.sleep(seconds)
        return attempt + 1

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: UploadBody | None, authorization: str
    ) -> tuple[int, http.client.HTTPResponse]:
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "naiad", **headers})  # noqa: S310 - http and https alone come here
        if authorization and self._is_own(url):
            request.add_unredirected_header("Authorization", authorization)
        if body is not None:
            request.data = body.pieces()
            request.add_header("Content-Length", str(body.size))
            if not request.has_header("Content-type"):
                request.add_header("Content-Type", "application/octet-stream")
        try:
            reply = self._opener.open(request, timeout=_TIME_LIMIT)
        except urllib.error.HTTPError as error:
            return error.code, cast("http.client.HTTPResponse", error)
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                remedy = certificate_remedy(
                    cause.verify_code, "name the certificate of its authority with the variable SSL_CERT_FILE"
                )
                raise RegistryError(
                    f"cannot trust the registry {self._reference.registry}: {cause.verify_message}; {remedy}",
                    code=Code.UNAVAILABLE,
                ) from error
            raise InterruptedTransferError(str(cause) or type(cause).__name__) from error
        return reply.status, cast("http.client.HTTPResponse", reply)

    def _require_own(self, reply: http.client.HTTPResponse, method: str, url: str) -> None:
        """Raise if a refusal is not by the registry but by a storage that it sent the request to.

        The storage has no say in where the registry's password goes.
        """
        if not self._is_own(reply.url or url):
            raise RegistryError(
                f"the registry {self._reference.registry} sends {method} {urllib.parse.urlsplit(url).path} to "
                f"{urllib.parse.urlsplit(reply.url).netloc}, which refuses it ({reply.status}); ask the registry's "
                "owner to correct its storage",
                code=Code.UNAVAILABLE,
            )

    def _is_own(self, url: str) -> bool:
        # The location of an upload may be elsewhere, such as an object store with a signed URL.
        return url.startswith(self._reference.base_url.partition("/v2/")[0] + "/")


def _status_text(status: int, reply: http.client.HTTPResponse) -> str:
    """The status with the messages of the registry's error document (distribution specification, "Error codes")."""
    text = f"{status} {reply.reason}"
    try:
        errors = read_json(cast("IO[bytes]", reply).read(_LARGEST_ERROR))["errors"]
        said = "; ".join(f"{error['code']}: {error.get('message', '')}".rstrip(": ") for error in errors)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return text
    return f"{text} ({said})" if said else text


def _retry_after(headers: Message) -> float:
    text = str(headers.get("Retry-After", ""))
    return min(float(text), _LONGEST_PAUSE) if text.isdecimal() else 0.0
