"""`--prewarm` and a model's parameter PREWARM: for which models imports are done once, and which imports."""

from __future__ import annotations

import re
from dataclasses import dataclass

from naiad.errors import ConfigError

__all__ = ["PARAMETER", "PrewarmOption", "modules_to_prewarm", "parse_prewarm"]

PARAMETER = "PREWARM"
_USUAL = "numpy"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class PrewarmOption:
    """The server's word on models that say nothing themselves.

    Attributes:
        every: Whether all of them are prewarmed.
        models: Else those of these names.
    """

    every: bool = False
    models: frozenset[str] = frozenset()


def parse_prewarm(text: str) -> PrewarmOption:
    """Read `--prewarm`: `true`, `false`, or names of models separated by commas."""
    if text.strip().lower() in {"true", "false", ""}:
        return PrewarmOption(every=text.strip().lower() == "true")
    return PrewarmOption(models=frozenset(name.strip() for name in text.split(",") if name.strip()))


def modules_to_prewarm(model: str, parameter: str, option: PrewarmOption) -> tuple[str, ...]:
    """What to import once for all instances of a model; nothing where each of them is to start by itself.

    Args:
        model: Its name.
        parameter: Its parameter PREWARM, "" where it has none: `true`, `false`, or modules separated by commas.
        option: The server's.

    Raises:
        ConfigError: If the parameter names what cannot be a module.
    """
    text = parameter.strip()
    if not text:
        return (_USUAL,) if option.every or model in option.models else ()
    if text.lower() in {"true", "false"}:
        return (_USUAL,) if text.lower() == "true" else ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _MODULE.fullmatch(name):
            raise ConfigError(
                f"parameter {PARAMETER} of model '{model}' is '{parameter}', in which '{name}' is not a module's name: "
                'give "true", "false", or modules of its environment separated by commas, such as "numpy,torch"'
            )
    return tuple(dict.fromkeys((_USUAL, *names)))  # the stub imports it in any case
