"""Loading and unloading of models by the model under test: noted, and answered from what the test has fakes for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from naiad_stub.exceptions import TritonModelException


@dataclass(frozen=True, slots=True)
class Control:
    """One `pb_utils.load_model` or `unload_model`.

    Attributes:
        action: `load` or `unload`.
        model_name: The model.
        config: The configuration given to `load_model`, or empty.
        files: The files given to it, or None.
        unload_dependents: As given to `unload_model`.
    """

    action: str
    model_name: str
    config: str = ""
    files: dict[str, Any] | None = None
    unload_dependents: bool = False


@dataclass(slots=True)
class ControlDesk:
    """What one model does to others, and which of them are ready.

    Attributes:
        models: Names of the models that there are.
        actions: What the model did.
        unloaded: Models that it unloaded and did not load again.
    """

    models: Collection[str]
    actions: list[Control] = field(default_factory=list)
    unloaded: set[str] = field(default_factory=set)

    def load(self, name: str, config: str, files: dict[str, Any] | None) -> None:
        """Note a load.

        Raises:
            TritonModelException: If the test has no fake for the model.
        """
        if name not in self.models:
            raise TritonModelException(
                f"Failed to load model: failed to load '{name}', failed to poll from model repository (the test has "
                f"fakes for: {', '.join(self.models) or 'none'})"
            )
        self.actions.append(Control("load", name, config, files))
        self.unloaded.discard(name)

    def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Note an unload; unknown names are a success, as in a server."""
        self.actions.append(Control("unload", name, unload_dependents=unload_dependents))
        self.unloaded.add(name)

    def is_ready(self, name: str) -> bool:
        """Whether the model has a fake that was not unloaded.

        Raises:
            TritonModelException: If the test has no fake for the model.
        """
        if name not in self.models:
            raise TritonModelException(
                f"Failed to check model readiness: Request for unknown model: '{name}' is not found (the test has "
                f"fakes for: {', '.join(self.models) or 'none'})"
            )
        return name not in self.unloaded
