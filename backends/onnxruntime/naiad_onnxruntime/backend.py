"""The class that the server calls for each model of this backend."""

from __future__ import annotations

from typing import Any, Dict, List

from saved_models.execution import BatchRunner
from saved_models.interface import check, complete_from
from saved_models.settings import ModelSettings, read

from naiad_onnxruntime.session import interface_of, open_session
from naiad_onnxruntime.tensors import SessionRunner


class TritonPythonModel:
    """One instance of a model, with a session of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add what the file says about inputs, outputs and batches, unless inputs and outputs are configured."""
        return complete_from(config, lambda settings: interface_of(open_session(settings), settings))

    def initialize(self, args: Dict[str, str]) -> None:
        """Open the file, and compare it with the configuration."""
        settings = read(args)
        _refuse_ragged_batches(settings)
        session = open_session(settings)
        interface = interface_of(session, settings)
        check(settings, interface)
        self._runner = BatchRunner(settings, SessionRunner(session, settings, interface).run)

    def execute(self, requests: List[Any]) -> List[Any]:
        """Run the session once for all requests that the server has batched."""
        return self._runner.execute(requests)


def _refuse_ragged_batches(settings: ModelSettings) -> None:
    """Refuse inputs whose requests are laid one behind the other, with inputs that say where each begins."""
    ragged = [tensor.name for tensor in settings.inputs if tensor.is_ragged]
    named = [key for key in ("batch_input", "batch_output") if settings.config.get(key)]
    if ragged or named:
        where = f"allow_ragged_batch of input '{ragged[0]}'" if ragged else named[0]
        raise settings.error(
            f"this backend makes no ragged batches, which {where} asks for; remove it, and let clients pad their "
            "inputs or send one request at a time"
        )
