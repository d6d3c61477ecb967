# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "onnxruntime"]
# ///
"""The backend `onnxruntime`: serves ONNX files. See the README beside this file."""

import sys
from pathlib import Path
from typing import Any, Dict

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

from naiad_onnxruntime.session import SessionRunner, interface_of, open_session
from saved_models.execution import BatchRunner, SavedModelBackend
from saved_models.interface import check, complete_from
from saved_models.ragged import RaggedBatches
from saved_models.settings import read


class TritonPythonModel(SavedModelBackend):
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
