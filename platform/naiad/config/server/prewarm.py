"""`--prewarm` and a model's parameter PREWARM: which modules are imported once for all instances of a model.

A prewarmed model has a fork server that imports these modules; its instances are forked from it and start faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from naiad.config.model.prewarm import DEFAULT_MODULES

__all__ = ["PrewarmOption", "parse_prewarm"]


@dataclass(frozen=True, slots=True)
class PrewarmOption:
    """Which models without a parameter PREWARM are prewarmed.

    Attributes:
        every: Whether all of them are.
        models: Otherwise, the names of those that are.
    """

    every: bool = False
    models: frozenset[str] = frozenset()

    def modules_for(self, model: str, given: tuple[str, ...] | None) -> tuple[str, ...]:
        """The modules to import once for all instances of a model; empty where the model is not prewarmed.

        Args:
            model: The model's name.
            given: Those that its parameter PREWARM names; None without the parameter.
        """
        if given is not None:
            return given
        return DEFAULT_MODULES if self.every or model in self.models else ()


def parse_prewarm(text: str) -> PrewarmOption:
    """The value of `--prewarm`: `true`, `false`, or model names separated by commas."""
    if text.strip().lower() in {"true", "false", ""}:
        return PrewarmOption(every=text.strip().lower() == "true")
    return PrewarmOption(models=frozenset(name.strip() for name in text.split(",") if name.strip()))
