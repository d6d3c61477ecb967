"""`--prewarm` and a model's parameter PREWARM: which modules are imported once for all instances of a model.

A prewarmed model has a fork server that imports these modules; its instances are forked from it and start faster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from naiad.core.errors import ConfigError

__all__ = ["PARAMETER", "PrewarmOption", "modules_to_prewarm", "parse_prewarm"]

PARAMETER = "PREWARM"
_DEFAULT_MODULE = "numpy"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class PrewarmOption:
    """Which models without a parameter PREWARM are prewarmed.

    Attributes:
        every: Whether all of them are.
        models: Otherwise, the names of those that are.
    """

    every: bool = False
    models: frozenset[str] = frozenset()


def parse_prewarm(text: str) -> PrewarmOption:
    """The value of `--prewarm`: `true`, `false`, or model names separated by commas."""
    if text.strip().lower() in {"true", "false", ""}:
        return PrewarmOption(every=text.strip().lower() == "true")
    return PrewarmOption(models=frozenset(name.strip() for name in text.split(",") if name.strip()))


def modules_to_prewarm(model: str, parameter: str, option: PrewarmOption) -> tuple[str, ...]:
    """The modules to import once for all instances of a model; empty where the model is not prewarmed.

    Args:
        model: The model's name.
        parameter: The model's parameter PREWARM: `true`, `false`, or modules separated by commas; "" without one.
        option: The server's option, for models without the parameter.

    Raises:
        ConfigError: If the parameter contains an invalid module name.
    """
    text = parameter.strip()
    if not text:
        return (_DEFAULT_MODULE,) if option.every or model in option.models else ()
    if text.lower() in {"true", "false"}:
        return (_DEFAULT_MODULE,) if text.lower() == "true" else ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _MODULE.fullmatch(name):
            raise ConfigError(
                f"parameter {PARAMETER} of model '{model}' is '{parameter}', in which '{name}' is not a module's name: "
                'give "true", "false", or modules of its environment separated by commas, such as "numpy,torch"'
            )
    return tuple(dict.fromkeys((_DEFAULT_MODULE, *names)))  # the stub imports numpy in any case
