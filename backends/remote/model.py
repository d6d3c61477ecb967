# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "tritonclient[grpc]"]
# ///
"""A backend whose models are models of other servers of the KServe v2 protocol, over HTTP or gRPC.

A model of this backend is a `config.pbtxt` with `parameters`, see `docs/reference/remote.md`.
"""

from typing import Any, Dict, List

import triton_python_backend_utils as pb_utils
from naiad_remote import completion
from naiad_remote.service import Service


class TritonPythonModel:
    """One model of other servers. Responses are sent by response senders, so `execute` returns at once."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Complete the configuration from the targets' own."""
        return completion.complete(config, pb_utils.get_model_dir())

    def initialize(self, args: Dict[str, str]) -> None:
        self._service = Service(args, pb_utils.get_model_dir())

    def execute(self, requests: List[Any]) -> None:
        self._service.submit(requests)

    def is_ready(self) -> bool:
        return self._service.is_ready()

    def finalize(self) -> None:
        self._service.close()
