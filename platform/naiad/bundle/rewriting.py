"""Configurations and manifests of backends that name an environment, rewritten to name the one in the bundle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from google.protobuf import text_format

from naiad.config.model.text import parse_text

__all__ = ["rewrite_backend", "rewrite_config"]

_PARAMETER = "EXECUTION_ENV_PATH"
_VERSION_DIRECTORY = "$$NAIAD_VERSION_DIRECTORY"


def rewrite_config(text: str, source: str, versions: Iterable[int], place: Callable[[str, str, int], str]) -> str:
    """A configuration with other environments; the same text if it names none.

    Args:
        text: The configuration.
        source: Where it comes from, for errors.
        versions: The model's versions.
        place: Gives the new text for the parameter's name, its text and a version.

    Raises:
        ConfigError: If it cannot be read.
    """
    message = parse_text(text, source)
    named = {key: one.string_value for key, one in message.parameters.items() if _is_environment(key)}
    for key, old in named.items():
        if not old:
            continue
        if key == _PARAMETER and _VERSION_DIRECTORY in old:
            # One text, but an environment for each version.
            del message.parameters[key]
            for version in versions:
                own = f"{_PARAMETER}.{version}"
                if not named.get(own):
                    message.parameters[own].string_value = place(key, old, version)
            continue
        _, _, number = key.partition(".")
        version = int(number) if number.isdecimal() else max(versions, default=1)
        message.parameters[key].string_value = place(key, old, version)
    return text_format.MessageToString(message) if any(named.values()) else text


def rewrite_backend(text: str, new: str) -> str:
    """A `backend.toml` with another environment; comments stay."""
    return re.sub(r"""(?m)^(\s*environment\s*=\s*)(?:"[^"\n]*"|'[^'\n]*')""", lambda match: f'{match[1]}"{new}"', text)


def _is_environment(key: str) -> bool:
    return key == _PARAMETER or key.startswith(f"{_PARAMETER}.")
