"""The class that the server calls for each model of this backend."""

from __future__ import annotations

from typing import Any, Dict, List

from saved_models.execution import BatchRunner
from saved_models.ragged import RaggedBatches
from saved_models.settings import read

from naiad_pytorch.completion import complete_config
from naiad_pytorch.files import open_model
from naiad_pytorch.options import apply_options, read_options
from naiad_pytorch.runner import ModelRunner
from naiad_pytorch.tensors import TorchTensors


class TritonPythonModel:
    """One instance of a model, with weights of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add what the file says about inputs and outputs, and what a trial says about outputs."""
        return complete_config(config)

    def initialize(self, args: Dict[str, str]) -> None:
        settings = read(args)
        options = read_options(settings)
        apply_options(options, settings)
        model = open_model(settings, options)
        run = ModelRunner(model, settings, options).run
        self._runner = BatchRunner(settings, run, TorchTensors(), ragged=RaggedBatches(settings))

    def execute(self, requests: List[Any]) -> List[Any]:
        return self._runner.execute(requests)
