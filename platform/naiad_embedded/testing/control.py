"""Loading and unloading of models by the model under test: recorded, and answered by the fakes that the test gave."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from naiad_stub.exceptions import TritonModelException
from naiad_stub.runtime import ModelControl


@dataclass(frozen=True, slots=True)
class ControlAction:
    """One `pb_utils.load_model` or `unload_model`."""

    action: str
    model_name: str
    config: str = ""
    files: dict[str, Any] | None = None
    unload_dependents: bool = False


@dataclass
class RecordedControl(ModelControl):
    """What one model did to others, and which of them are ready."""

    models: Collection[str]
    actions: list[ControlAction] = field(default_factory=list)
    unloaded: set[str] = field(default_factory=set)

    def load_model(self, model_name: str, config: str, files: dict[str, Any] | None) -> None:
        """Record a load."""
        if model_name not in self.models:
            raise TritonModelException(
                f"Failed to load model: failed to load '{model_name}', failed to poll from model repository (the test "
                f"has fakes for: {', '.join(self.models) or 'none'})"
            )
        self.actions.append(ControlAction("load", model_name, config, files))
        self.unloaded.discard(model_name)

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:  # noqa: FBT001 - the API's signature
        """Record an unload; unknown names succeed, as in a server."""
        self.actions.append(ControlAction("unload", model_name, unload_dependents=unload_dependents))
        self.unloaded.add(model_name)

    def is_model_ready(self, model_name: str, model_version: str) -> bool:  # noqa: ARG002 - fakes have no versions
        """Whether the model has a fake that was not unloaded."""
        if model_name not in self.models:
            raise TritonModelException(
                f"Failed to check model readiness: Request for unknown model: '{model_name}' is not found (the test "
                f"has fakes for: {', '.join(self.models) or 'none'})"
            )
        return model_name not in self.unloaded
