"""One model of this backend at work: its engine, its metrics, and what becomes of each request."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any, Dict, Mapping

import triton_python_backend_utils as pb_utils

from vllm_like import engines, settings, tensors, wishes
from vllm_like.answering import FINAL, Answer, embedding_answer, refuse
from vllm_like.engines.base import CallerError, EmbeddingRequest, EngineDeadError
from vllm_like.metrics import Metrics

_DEAD_STATUS = 70
UNHEALTHY_TEXT = "Model is unavailable due to unhealthy vLLM engine"


class Service:
    """Takes requests for one model.

    Args:
        args: What `initialize` was given.
        config: The model's configuration.
        directory: The version's directory.

    Raises:
        ValueError: If `model.json` is missing or wrong, or the configuration not of a decoupled model.
    """

    def __init__(self, args: Mapping[str, str], config: Mapping[str, Any], directory: str) -> None:
        if not pb_utils.using_decoupled_model_transaction_policy(dict(config)):
            raise ValueError("vLLM Triton backend must be configured to use decoupled model transaction policy")
        self._name = args["model_name"]
        self._numbers = itertools.count(1)
        self._settings = settings.read(directory, args, _parameter(config, "GPU_DEVICE_IDS"))
        self._checks_health = _is_set(config, "ENABLE_VLLM_HEALTH_CHECK")
        self._engine = engines.start(self._settings, _log, _die)
        self._metrics = Metrics()
        if _is_set(config, "REPORT_CUSTOM_METRICS") and not self._settings.flag("disable_log_stats"):
            labels = {"model": self._name, "version": args["model_version"]}
            if not self._metrics.open(labels, self._engine.max_model_len):
                _log("the server shows no metrics, so there are none of this model")

    def take(self, request: Any) -> None:
        """Have a request answered, now or later; never fails."""
        sender = request.get_response_sender()
        try:
            if self._checks_health and not self.is_alive():
                self._unload(sender)
                return
            question = wishes.read(request, f"{self._name}-{next(self._numbers)}")
            if isinstance(question, EmbeddingRequest):
                self._engine.embed(question, embedding_answer(sender, counts=question.wants_counts))
                return
            self._check_lora(question.generation.lora)
            self._engine.generate(question.generation, Answer(sender, question.wishes, self._metrics))
        except EngineDeadError as error:
            refuse(sender, error)
            _die(str(error))
        except Exception as error:  # noqa: BLE001 - one request's trouble is not to be another's
            refuse(sender, error)

    def is_alive(self) -> bool:
        """Whether the engine can work."""
        try:
            self._engine.check_health()
        except Exception as error:  # noqa: BLE001 - engines raise what they like
            pb_utils.Logger.log_error(f"the engine of '{self._name}' is not healthy: {error}")
            return False
        return True

    def close(self) -> None:
        """Wait for requests under way, then stop the engine."""
        self._engine.shutdown()

    def _check_lora(self, name: str) -> None:
        if not name:
            return
        if self._engine.loras is None:
            raise CallerError("LoRA feature is not enabled.")
        if name not in self._engine.loras:
            raise CallerError(f"LoRA {name} is not supported, we currently support {list(self._engine.loras)}")

    def _unload(self, sender: Any) -> None:
        """Refuse, and have the server start the model anew: by unloading it where it may, else by ending here."""
        sender.send(tensors.error(UNHEALTHY_TEXT, pb_utils.TritonError.UNAVAILABLE), flags=FINAL)
        try:
            pb_utils.unload_model(self._name)
        except pb_utils.TritonModelException:  # only with --model-control-mode=explicit
            _die("the engine is not healthy")


def _is_set(config: Mapping[str, Any], name: str) -> bool:
    return _parameter(config, name).lower() in {"true", "yes", "1"}


def _parameter(config: Mapping[str, Any], name: str) -> str:
    parameters: Dict[str, Any] = dict(config.get("parameters", {}))
    return str(parameters.get(name, {}).get("string_value", ""))


def _log(text: str) -> None:
    pb_utils.Logger.log_info(text)


def _die(reason: str) -> None:
    """End this process: the server tells waiting clients the reason, and starts another."""
    sys.stderr.write(f"the engine is dead: {reason}\n")
    sys.stderr.flush()
    os._exit(_DEAD_STATUS)
