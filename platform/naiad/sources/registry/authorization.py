"""Authorization at a registry: the challenge in a response with status 401, and the tokens that satisfy it.

Basic: RFC 7617. Bearer: the token is requested from the `realm` of the challenge
(https://distribution.github.io/distribution/spec/auth/token/), with an identity token by OAuth2
(https://distribution.github.io/distribution/spec/auth/oauth/).
"""

from __future__ import annotations

import ipaddress
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Mapping
from typing import Any

from naiad.core.errors import Code, RegistryError
from naiad.core.foreign_json import read_json
from naiad.sources.registry.credentials import RegistryCredentials

_PARAMETER = re.compile(r'([a-zA-Z_]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')
_LARGEST_TOKEN = 1 << 20
_CLIENT = "naiad"
# Hosts to which a registry's password may be sent for a token, separated by commas, besides the registry's own.
TOKEN_SERVERS_VARIABLE = "NAIAD_REGISTRY_TOKEN_SERVERS"  # noqa: S105 - the name of a variable
_TOKEN_SERVERS = dict.fromkeys(("docker.io", "index.docker.io", "registry-1.docker.io"), "auth.docker.io")

# Sends a request and returns the response; raises as `urllib.request.urlopen`.
Opener = Callable[[urllib.request.Request], Any]


class Authorization:
    """The Authorization header for one repository of one registry. Methods are thread-safe."""

    def __init__(
        self,
        registry: str,
        name: str,
        credentials: RegistryCredentials | None,
        opener: Opener,
        token_servers: Collection[str] = (),
    ) -> None:
        self._registry = registry
        self._name = name
        self._credentials = credentials
        self._opener = opener
        self._token_servers = frozenset(token_servers)
        self._lock = threading.Lock()
        self._header = ""

    @property
    def header(self) -> str:
        """The value to send; empty until a challenge was answered."""
        return self._header

    def answer(self, challenge: str, rejected: str) -> str:
        """The header that answers a challenge; RegistryError without credentials, or if they are rejected."""
        with self._lock:
            if self._header and self._header != rejected:
                return self._header  # another thread has answered meanwhile
            scheme, parameters = parse_challenge(challenge)
            if scheme == "basic":
                if self._credentials is None or not self._credentials.user or rejected:
                    raise self.refused(rejected)
                self._header = self._credentials.basic
            elif scheme == "bearer" and parameters.get("realm"):
                self._header = f"Bearer {self._token(parameters)}"
            else:
                raise RegistryError(
                    f"the registry {self._registry} asks for an unknown authentication "
                    f"({challenge or 'no challenge'}); naiad supports basic and bearer",
                    code=Code.UNSUPPORTED,
                )
            return self._header

    def refused(self, rejected: str, status: int = 401) -> RegistryError:
        if self._credentials is None:
            cause = "no credentials for it are in Docker's config.json"
        elif rejected or self._credentials.identity_token:
            cause = f"the credentials of {self._credentials.origin} do not permit it"
        else:
            cause = f"the credentials of {self._credentials.origin} are incomplete"
        return RegistryError(
            f"the registry {self._registry} refuses access to '{self._name}' ({status}): {cause}; log in with "
            f"`docker login {self._registry}`, or ask its owner for access",
            code=Code.INVALID_ARG,
        )

    def _token(self, challenge: Mapping[str, str]) -> str:
        request = self._token_request(challenge)
        try:
            with self._opener(request) as reply:
                answer = read_json(reply.read(_LARGEST_TOKEN))
            token = answer.get("token") or answer.get("access_token")
        except urllib.error.HTTPError as error:
            with error:
                if error.code in {401, 403}:
                    raise self.refused("token", error.code) from error
                raise self._token_error(challenge, f"it answered {error.code} {error.reason}") from error
        except (OSError, ValueError, AttributeError) as error:
            raise self._token_error(challenge, str(getattr(error, "reason", error))) from error
        if not isinstance(token, str) or not token:
            raise self._token_error(challenge, "its answer has no token")
        return token

    def _token_request(self, challenge: Mapping[str, str]) -> urllib.request.Request:
        realm = challenge["realm"]
        if not realm.startswith(("https://", "http://")):
            raise self._token_error(challenge, "its address is not a URL of http or https")
        asked = {key: challenge[key] for key in ("service", "scope") if challenge.get(key)}
        credentials = self._credentials
        if credentials is not None and (why := self._distrust(realm)):
            raise self._token_error(challenge, why)
        if credentials is not None and credentials.identity_token:
            form = {
                **asked,
                "grant_type": "refresh_token",
                "client_id": _CLIENT,
                "refresh_token": credentials.identity_token,
            }
            return urllib.request.Request(realm, data=urllib.parse.urlencode(form).encode(), method="POST")  # noqa: S310 - the scheme was checked
        if credentials is not None:
            asked["account"] = credentials.user
        mark = "&" if "?" in realm else "?"
        request = urllib.request.Request(f"{realm}{mark}{urllib.parse.urlencode(asked)}")  # noqa: S310 - the scheme was checked
        if credentials is not None:
            request.add_unredirected_header("Authorization", credentials.basic)
        return request

    def _distrust(self, realm: str) -> str:
        """Why the user's password does not go to a server of tokens; empty if it does.

        The realm is chosen by the server that answers, which may not be the registry.
        """
        parts = urllib.parse.urlsplit(realm)
        server = parts.netloc.rpartition("@")[2].lower()
        if server in self._token_servers:
            return ""
        host, own = parts.hostname or "", (urllib.parse.urlsplit(f"//{self._registry}").hostname or "").lower()
        # gitlab.com for registry.gitlab.com, and auth.registry.example for registry.example.
        is_above = "." in host and own.endswith(f".{host}")
        if host not in {own, _TOKEN_SERVERS.get(own, own)} and not is_above and not host.endswith(f".{own}"):
            return (
                f"'{server}' is not a host of the registry, and gets no password; if it is the registry's server of "
                f"tokens, set {TOKEN_SERVERS_VARIABLE}={server}"
            )
        if parts.scheme == "http" and not _is_loopback(host):
            return f"it is not encrypted, and gets no password; use https, or set {TOKEN_SERVERS_VARIABLE}={server}"
        return ""

    def _token_error(self, challenge: Mapping[str, str], cause: str) -> RegistryError:
        return RegistryError(
            f"cannot get a token for '{self._name}' of the registry {self._registry} from "
            f"{challenge['realm']}: {cause}",
            code=Code.UNAVAILABLE,
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_challenge(text: str) -> tuple[str, dict[str, str]]:
    """Scheme, in lower case, and parameters of a WWW-Authenticate header."""
    scheme, _, rest = text.strip().partition(" ")
    found = {key.lower(): (quoted or plain).replace('\\"', '"') for key, quoted, plain in _PARAMETER.findall(rest)}
    return scheme.lower(), found
