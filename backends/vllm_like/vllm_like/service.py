"""One loaded model: its engine, its metrics, and the submission of its requests."""

from __future__ import annotations

import itertools
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Mapping

import triton_python_backend_utils as pb_utils
from naiad_stub.template_rules import TemplateRules

from vllm_like import engines, questions, requests, settings, tensors
from vllm_like.constraints import ConstraintRules
from vllm_like.engines.base import CallerError, EmbeddingRequest, EngineDeadError, PathRequest, RankRequest
from vllm_like.metrics import Metrics
from vllm_like.responses import FINAL, PathResponse, ResponseSink, json_sink, send_error

_DEAD_STATUS = 70  # exit status of a guest whose engine has died: EX_SOFTWARE of sysexits.h
UNHEALTHY_TEXT = "Model is unavailable due to unhealthy vLLM engine"


class TritonPythonModel:
    """One model and its engine. Responses are sent by response senders, so `execute` returns at once."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the inputs and outputs, which all models of this backend share, to the configuration."""
        return tensors.complete_config(config, has_paths=settings.has_paths(pb_utils.get_model_dir()))

    def initialize(self, args: Mapping[str, str]) -> None:
        try:
            self._start(args, json.loads(args["model_config"]))
        except ValueError as error:  # a sentence for the operator, without frames; Triton has no such class
            raise getattr(pb_utils, "ModelLoadError", ValueError)(str(error)) from None

    def _start(self, args: Mapping[str, str], config: Mapping[str, Any]) -> None:
        if not pb_utils.using_decoupled_model_transaction_policy(dict(config)):
            raise ValueError("vLLM Triton backend must be configured to use decoupled model transaction policy")
        self._name = args["model_name"]
        self._numbers = itertools.count(1)
        self._settings = settings.read(pb_utils.get_model_dir(), args, _parameter(config, "GPU_DEVICE_IDS"))
        self._checks_health = _is_set(config, "ENABLE_VLLM_HEALTH_CHECK")
        self._engine = engines.start(self._settings, pb_utils.Logger.log_info, _exit_process)
        self._rules = ConstraintRules(TemplateRules(self._engine.render), self._engine)
        self._tokenizer = ThreadPoolExecutor(1, "tokenizer")  # its thread starts with the first request
        self._metrics = Metrics()
        if _is_set(config, "REPORT_CUSTOM_METRICS") and not self._settings.flag("disable_log_stats"):
            labels = {"model": self._name, "version": args["model_version"]}
            if not self._metrics.open(labels, self._engine):
                pb_utils.Logger.log_info("REPORT_CUSTOM_METRICS has no effect: the server has metrics disabled")

    def execute(self, requests: List[Any]) -> None:
        for request in requests:
            self._submit(request)

    def _submit(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            if self._checks_health and not self.is_ready():
                self._reject_and_restart(sender)
                return
            request_id = f"{self._name}-{next(self._numbers)}"
            given = requests.read_request(request, request_id, self._rules, self._settings.paths)
            if isinstance(given, EmbeddingRequest):
                self._engine.embed(given, json_sink(sender, counts=given.wants_counts))
            elif isinstance(given, RankRequest):
                self._engine.rank(given, json_sink(sender, counts=given.wants_counts))
            elif isinstance(given, questions.Question):
                self._tokenizer.submit(self._respond, given, sender)
            elif isinstance(given, PathRequest):
                self._engine.forward(given, PathResponse(sender))
            else:
                self._generate(given, sender)
        except EngineDeadError as error:
            send_error(sender, error)
            _exit_process(str(error))
        except Exception as error:  # noqa: BLE001 - sent to the client; other requests go on
            send_error(sender, error)

    def _generate(self, request: requests.TextRequest, sender: Any) -> None:
        self._check_lora(request.generation.lora)
        sink = ResponseSink(sender, request.options, self._metrics)
        try:
            self._engine.generate(request.generation, sink)
        except BaseException:
            sink.discard()
            raise

    def _respond(self, question: questions.Question, sender: Any) -> None:
        try:
            document = tensors.to_json(question.respond(self._engine, question.given))
            sender.send(tensors.response({"text_output": [document]}), flags=FINAL)
        except Exception as error:  # noqa: BLE001 - sent to the client
            send_error(sender, error)

    def is_ready(self) -> bool:
        try:
            self._engine.check_health()
        except Exception as error:  # noqa: BLE001 - engines raise exceptions of any class
            pb_utils.Logger.log_error(f"the engine of model '{self._name}' is unhealthy: {error}")
            return False
        return True

    def finalize(self) -> None:
        self._tokenizer.shutdown(wait=True)
        self._engine.shutdown()
        self._metrics.close()

    def _check_lora(self, name: str) -> None:
        if not name:
            return
        if self._engine.loras is None:
            raise CallerError("LoRA feature is not enabled.")
        if name not in self._engine.loras:
            raise CallerError(f"LoRA {name} is not supported, we currently support {list(self._engine.loras)}")

    def _reject_and_restart(self, sender: Any) -> None:
        """Reject the request and unload the model; exit if unloading is not permitted: the server restarts it."""
        sender.send(tensors.error_response(UNHEALTHY_TEXT, pb_utils.TritonError.UNAVAILABLE), flags=FINAL)
        try:
            pb_utils.unload_model(self._name)
        except pb_utils.TritonModelException:  # only with --model-control-mode=explicit
            _exit_process("the engine is unhealthy")


def _is_set(config: Mapping[str, Any], name: str) -> bool:
    return _parameter(config, name).lower() in {"true", "yes", "1"}


def _parameter(config: Mapping[str, Any], name: str) -> str:
    parameters: Dict[str, Any] = dict(config.get("parameters", {}))
    return str(parameters.get(name, {}).get("string_value", ""))


def _exit_process(reason: str) -> None:
    """Exit: the server fails the running requests with the last lines of stderr, and starts another process."""
    sys.stderr.write(f"the engine is dead: {reason}\n")
    sys.stderr.flush()
    os._exit(_DEAD_STATUS)
