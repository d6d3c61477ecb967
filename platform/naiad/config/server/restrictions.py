"""Which parts of the protocols need a header: `--http-restricted-api` and `--grpc-restricted-protocol`."""

from __future__ import annotations

import enum
import re

from naiad.config.server.given import GivenFlags

__all__ = ["Api", "Restrictions", "header_pattern", "parse_pattern", "parse_restrictions"]

_SWITCHED_OFF = re.compile(r"^\(\?([a-zA-Z]*-[a-zA-Z]+)\)(.*)$", re.DOTALL)


class Api(enum.Enum):
    """A part of the protocols (SRV docs/customization_guide/inference_protocols.md)."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


Restrictions = dict[Api, tuple[str, str]]
"""Name and value of the header that each restricted part needs."""

_NAMES = frozenset(api.value for api in Api)


def parse_restrictions(given: GivenFlags, flag: str) -> Restrictions:
    """Read all uses of a flag, each `<api>,<api>:<header>=<value>`.

    Raises:
        UsageError: If one has another form, or a part is unknown or named twice.
    """
    found: Restrictions = {}
    for text in given.texts(flag):
        names, colon, rest = text.partition(":")
        header, equals, value = rest.partition("=")
        if not (colon and equals and header and value):
            raise given.bad(flag, f"--{flag} option format is '<api>,<api>:<header>=<value>'. Got {text}")
        for name in names.split(","):
            if name not in _NAMES:
                raise given.bad(
                    flag, f"unknown restricted api '{name}'; there are {', '.join(api.value for api in Api)}"
                )
            if Api(name) in found:
                raise given.bad(flag, f"restricted api '{name}' can not be specified more than once")
            found[Api(name)] = (header, value)
    return found


def parse_pattern(given: GivenFlags, flag: str) -> re.Pattern[str] | None:
    """The pattern of names of headers that a flag gives; None for none.

    Raises:
        UsageError: If it is no regular expression.
    """
    text = given.text(flag)
    if not text:
        return None
    try:
        return header_pattern(text)
    except re.error as error:
        raise given.bad(flag, f"invalid regular expression '{text}': {error}") from None


def header_pattern(text: str) -> re.Pattern[str]:
    """The pattern of names of headers, which are the same in upper and lower case unless it says `(?-i)`.

    Raises:
        re.error: If it is no regular expression.
    """
    # RE2, the reference's library, lets flags be switched off for all that follows; Python only for a group.
    return re.compile(_SWITCHED_OFF.sub(r"(?\1:\2)", text), re.IGNORECASE)
