"""A model's parameter PREWARM: the modules that are imported once for all its instances."""

from __future__ import annotations

import re

from naiad.core.errors import ParameterError

__all__ = ["PREWARM", "modules_to_prewarm", "parse_prewarmed_modules"]

PREWARM = "PREWARM"
_DEFAULT_MODULES = ("numpy",)
"""Those of a model that does not name its own. The stub imports numpy in any case."""
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def parse_prewarmed_modules(model: str, parameter: str) -> tuple[str, ...] | None:
    """The modules; empty for none, None if the server's option decides.

    Args:
        model: The model's name.
        parameter: Its parameter: `true`, `false`, or modules separated by commas; "" without one.

    Raises:
        ParameterError: If the parameter contains an invalid module name.
    """
    text = parameter.strip()
    if not text:
        return None
    if text.lower() in {"true", "false"}:
        return _DEFAULT_MODULES if text.lower() == "true" else ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _MODULE.fullmatch(name):
            raise ParameterError(
                f"parameter {PREWARM} of model '{model}' is '{parameter}', in which '{name}' is not a module's name: "
                'give "true", "false", or modules of its environment separated by commas, such as "numpy,torch"',
                parameter=PREWARM,
            )
    return tuple(dict.fromkeys((*_DEFAULT_MODULES, *names)))


def modules_to_prewarm(given: tuple[str, ...] | None, *, by_default: bool) -> tuple[str, ...]:
    """The modules to import once for all instances of a model; empty where it is not prewarmed.

    Args:
        given: Those that its parameter names, as parsed; None without the parameter.
        by_default: Whether models without the parameter are prewarmed (`--prewarm`).
    """
    if given is not None:
        return given
    return _DEFAULT_MODULES if by_default else ()
