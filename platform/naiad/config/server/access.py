"""Who may connect to a service and what they may call: TLS, restricted APIs, forwarded headers, API keys."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path

from naiad.config.server.flag_values import FlagValues
from naiad.core.errors import OptionError

_SWITCHED_OFF = re.compile(r"^\(\?([a-zA-Z]*-[a-zA-Z]+)\)(.*)$", re.DOTALL)
API_KEYS_VARIABLE = "NAIAD_OPENAI_API_KEYS"
ADMIN_VARIABLE = "NAIAD_ADMIN_KEY"
# Variables with secrets of the server itself: neither guests nor installers get them.
SERVER_SECRETS = (API_KEYS_VARIABLE, ADMIN_VARIABLE)
_API_KEYS_FLAG = "openai-api-keys-file"


class Api(enum.Enum):
    """A part of the protocols that can be restricted (SRV docs/customization_guide/inference_protocols.md)."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


Restrictions = dict[Api, tuple[str, str]]  # name and value of the header that each restricted API requires

_NAMES = frozenset(api.value for api in Api)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The PEM files of a TLS service."""

    certificate: Path
    key: Path
    root: Path | None = None  # root certificates that client certificates are verified against
    is_mutual: bool = False


def parse_tls(values: FlagValues, service: str) -> TlsFiles | None:
    """The TLS files of service `grpc` or `http`; None where the service uses no TLS."""
    flag = f"{service}-use-ssl"
    is_mutual = values.switch(f"{flag}-mutual")
    if not is_mutual and not values.switch(flag):
        return None
    required = ["server-cert", "server-key", *(["root-cert"] if is_mutual else [])]
    for name in required:
        if not values.text(f"{service}-{name}"):
            asked = f"{flag}-mutual" if is_mutual else flag
            raise values.invalid(asked, f"--{asked} needs --{service}-{name}, the file of it in PEM format")
    return TlsFiles(
        certificate=Path(values.text(f"{service}-server-cert")),
        key=Path(values.text(f"{service}-server-key")),
        root=values.path(f"{service}-root-cert"),
        is_mutual=is_mutual,
    )


def parse_restrictions(values: FlagValues, flag: str) -> Restrictions:
    """The restrictions of a repeatable flag with values `<api>,<api>:<header>=<value>`."""
    found: Restrictions = {}
    kind = "protocol" if flag.startswith("grpc") else "api"  # the reference's words, also below
    for text in values.texts(flag):
        names, colon, rest = text.partition(":")
        header, equals, value = rest.partition("=")
        if not (colon and equals and header and value):
            raise values.invalid(flag, f"--{flag} option format is '<api>,<api>:<header>=<value>'. Got {text}")
        for name in names.split(","):
            if name not in _NAMES:
                raise values.invalid(
                    flag, f"unknown restricted {kind} '{name}'; there are {', '.join(api.value for api in Api)}"
                )
            if Api(name) in found:
                problem = f"restricted {kind} '{name}' can not be specified in multiple config groups"
                raise values.invalid(flag, problem)
            found[Api(name)] = (header, value)
    return found


def parse_pattern(values: FlagValues, flag: str) -> re.Pattern[str] | None:
    """The pattern of the headers that become request parameters; None without the flag."""
    text = values.text(flag)
    if not text:
        return None
    try:
        return header_pattern(text)
    except re.error as error:
        raise values.invalid(flag, f"invalid regular expression '{text}': {error}") from None


def header_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern of header names, case-insensitive unless it starts with `(?-i)`."""
    # RE2, the reference's library, accepts `(?-i)` at the start for the rest of the pattern. Python's `re` accepts it
    # only for a group, so `(?-i)x` becomes `(?-i:x)`.
    return re.compile(_SWITCHED_OFF.sub(r"(?\1:\2)", text), re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeySources:
    """Where the API keys of the OpenAI API come from. Without any source, no key is required."""

    variable: tuple[str, ...] = ()
    file: Path | None = None


def api_key_sources(values: FlagValues, flag: str) -> ApiKeySources:
    """The sources of API keys: the environment, and the file that *flag* names.

    Not the command line, which every local user can read in /proc.
    """
    if not values.has("openai-port"):
        return ApiKeySources()
    keys = [key.strip() for key in values.environ.get(API_KEYS_VARIABLE, "").split(",")]
    file = values.path(flag)
    if file is not None:
        read_api_keys(file)
    return ApiKeySources(variable=tuple(dict.fromkeys(key for key in keys if key)), file=file)


def read_api_keys(file: Path) -> tuple[str, ...]:
    """The API keys in a file: its lines without empty ones and comments."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the keys of --{_API_KEYS_FLAG}={file}: {error}") from None
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise OptionError(f"--{_API_KEYS_FLAG}={file} holds no key; write one on each line")
    return tuple(dict.fromkeys(found))
