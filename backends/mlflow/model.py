"""The backend `mlflow`: serves models that MLflow saved. See the README beside this file."""

import os
import sys
from pathlib import Path
from typing import Any, Dict

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

# A server reports nothing about its models to others unless its operator says so.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from naiad_mlflow.files import load, read_metadata
from naiad_mlflow.inputs import InputReader
from naiad_mlflow.outputs import OutputWriter
from naiad_mlflow.predictor import Predictor
from naiad_mlflow.signature import interface_of, signature_of
from saved_models.execution import BatchRunner, SavedModelBackend
from saved_models.interface import complete_from
from saved_models.settings import read


class TritonPythonModel(SavedModelBackend):
    """One instance of a model, loaded by MLflow."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the tensors of the signature, unless inputs and outputs are configured."""
        return complete_from(config, lambda settings: interface_of(read_metadata(settings), settings))

    def initialize(self, args: Dict[str, str]) -> None:
        settings = read(args)
        metadata = read_metadata(settings)
        signature = signature_of(metadata, settings)
        predictor = Predictor(
            load(metadata, settings),
            InputReader(settings, signature),
            OutputWriter(settings, signature.optional),
            signature.parameters,
        )
        self._runner = BatchRunner(
            settings, predictor.run, arguments=predictor.arguments, is_joining=not metadata.is_agent
        )
