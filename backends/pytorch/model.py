# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "torch==2.13.*"]
# ///
"""The backend `pytorch`: serves TorchScript, packages of torch.export, and modules. See the README beside this file."""

import sys
from pathlib import Path
from typing import Any, Dict

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

from naiad_pytorch.completion import complete_config
from naiad_pytorch.files import open_model
from naiad_pytorch.options import prepare_process, read_options
from naiad_pytorch.runner import ModelRunner
from naiad_pytorch.tensors import TorchTensors
from saved_models.execution import BatchRunner, SavedModelBackend
from saved_models.ragged import RaggedBatches
from saved_models.settings import read


class TritonPythonModel(SavedModelBackend):
    """One instance of a model, with weights of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add what the file says about inputs and outputs, and what a trial says about outputs."""
        return complete_config(config)

    def initialize(self, args: Dict[str, str]) -> None:
        settings = read(args)
        options = read_options(settings)
        prepare_process(settings)
        model = open_model(settings, options)
        run = ModelRunner(model, settings, options).run
        self._runner = BatchRunner(settings, run, TorchTensors(), ragged=RaggedBatches(settings))
