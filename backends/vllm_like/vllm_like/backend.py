"""What the server calls: the class that every `model.py` of this backend hands on."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import triton_python_backend_utils as pb_utils

from vllm_like import tensors
from vllm_like.service import Service


class TritonPythonModel:
    """One model and its engine; requests are answered as the engine gets on with them."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Every model of this backend has the same inputs and outputs; its config.pbtxt need not repeat them."""
        return tensors.complete(config)

    def initialize(self, args: Dict[str, str]) -> None:
        """Read `model.json` and start the engine."""
        self._service = Service(args, json.loads(args["model_config"]), pb_utils.get_model_dir())

    def execute(self, requests: List[Any]) -> None:
        """Hand the requests to the engine; their senders answer them."""
        for request in requests:
            self._service.take(request)

    def is_ready(self) -> bool:
        """Whether the engine can work."""
        return self._service.is_alive()

    def finalize(self) -> None:
        """Wait for requests under way, then stop the engine."""
        self._service.close()
