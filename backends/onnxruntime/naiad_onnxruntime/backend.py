"""The class that the server calls for each model of this backend."""

from __future__ import annotations

from typing import Any, Dict, List

from saved_models.execution import BatchRunner
from saved_models.interface import check, complete_from
from saved_models.ragged import RaggedBatches
from saved_models.settings import read

from naiad_onnxruntime.session import interface_of, open_session
from naiad_onnxruntime.tensors import SessionRunner


class TritonPythonModel:
    """One instance of a model, with a session of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add what the file says about inputs, outputs and batches, unless inputs and outputs are configured."""
        return complete_from(config, lambda settings: interface_of(open_session(settings), settings))

    def initialize(self, args: Dict[str, str]) -> None:
        settings = read(args)
        session = open_session(settings)
        interface = interface_of(session, settings)
        check(settings, interface)
        run = SessionRunner(session, settings, interface).run
        self._runner = BatchRunner(settings, run, ragged=RaggedBatches(settings))

    def execute(self, requests: List[Any]) -> List[Any]:
        return self._runner.execute(requests)
