"""A model's parameter PREWARM: the modules that are imported once for all its instances."""

from __future__ import annotations

import re

from naiad.core.errors import ParameterError

PREWARM = "PREWARM"
_DEFAULT_MODULES = ("numpy",)  # Those of a model that does not name its own. The stub imports numpy in any case.
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def parse_prewarmed_modules(model: str, parameter: str) -> tuple[str, ...] | None:
    """The modules of `true`, `false`, or names with commas; empty for none, None if the server's option decides."""
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
    """The modules to import once for all instances; *by_default* (`--prewarm`) for models without the parameter."""
    if given is not None:
        return given
    return _DEFAULT_MODULES if by_default else ()
