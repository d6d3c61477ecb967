"""The class that the server calls for each model of this backend."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import triton_python_backend_utils as pb_utils

from vllm_like import settings, tensors
from vllm_like.service import Service


class TritonPythonModel:
    """One model and its engine. Responses are sent by response senders, so `execute` returns at once."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the inputs and outputs, which all models of this backend share, to the configuration."""
        return tensors.complete_config(config, has_paths=settings.has_paths(pb_utils.get_model_dir()))

    def initialize(self, args: Dict[str, str]) -> None:
        try:
            self._service = Service(args, json.loads(args["model_config"]), pb_utils.get_model_dir())
        except ValueError as error:  # a sentence for the operator, without frames; Triton has no such class
            raise getattr(pb_utils, "ModelLoadError", ValueError)(str(error)) from None

    def execute(self, requests: List[Any]) -> None:
        for request in requests:
            self._service.submit(request)

    def is_ready(self) -> bool:
        return self._service.is_healthy()

    def finalize(self) -> None:
        self._service.close()
