"""A repository of models that fail, each in one way, of one `model.py` that reads its name."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from serving.ensembles.ensembles import write_ensemble
from support.model_files import parameters, tensors, write_files

_CODE = '''
import gc, json, os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
gc.disable()  # what only the collector frees stays in the guest, too


def failure():
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("no luck", pb_utils.TritonError.INVALID_ARG))


def small(request):
    if any(tensor.name() == "IN" for tensor in request.inputs()):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))])
    return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array(["some"], object))])


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.kind = config["parameters"]["kind"]["string_value"]
        self.called = config["parameters"].get("calls", {}).get("string_value", "")
        self.waiting = os.path.join(os.path.dirname(os.path.dirname(args["model_repository"])), "waiting")
        if self.kind == "not_loaded":
            raise ValueError("not now")

    def execute(self, requests):
        return getattr(self, self.kind)(requests)

    def raises(self, requests):
        data = [tensor.as_numpy() for request in requests for tensor in request.inputs()]
        raise ValueError(f"no luck with {len(data)} inputs")

    def answers_error(self, requests):
        return [failure() for _ in requests]

    def counts_wrong(self, requests):
        return [small(request) for request in requests] * 2

    def wrong_type(self, requests):
        return [request.request_id() for request in requests]

    def exits(self, requests):
        os._exit(3)

    def answers(self, requests):
        return [small(request) for request in requests]

    def returns_all(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests
        ]

    def holds(self, requests):
        """Occupy the instance until a client creates the file beside the one that tells it so."""
        open(self.waiting, "w").close()
        while not os.path.exists(self.waiting + ".end"):
            time.sleep(0.005)
        os.remove(self.waiting)
        os.remove(self.waiting + ".end")
        return [small(request) for request in requests]

    def waits(self, requests):
        self.wait_for(requests)
        return [failure() for _ in requests]

    def wait_for(self, cancelled):
        """Wait until all are cancelled, with a file that tells clients of it."""
        open(self.waiting, "w").close()
        end = time.monotonic() + 20
        while time.monotonic() < end and not all(each.is_cancelled() for each in cancelled):
            time.sleep(0.005)
        os.remove(self.waiting)

    # -- decoupled

    def sends_error(self, requests):
        for request in requests:
            request.get_response_sender().send(failure(), flags=FINAL)

    def sends_error_later(self, requests):
        for request in requests:
            threading.Thread(target=self.later, args=[request, request.get_response_sender()]).start()

    def later(self, request, sender):
        sender.send(small(request))
        sender.send(failure(), flags=FINAL)

    def sends_none(self, requests):
        for request in requests:
            request.get_response_sender().send(flags=FINAL)

    def sends_three(self, requests):
        for request in requests:
            for flags in (0, 0, FINAL):
                request.get_response_sender().send(small(request), flags=flags)

    def sends_then_raises(self, requests):
        for request in requests:
            request.get_response_sender().send(small(request))
        raise ValueError("no luck any more")

    def sends_waits(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(small(request))
            self.wait_for([sender])
            sender.send(failure(), flags=FINAL)

    # -- calls

    def call(self, request):
        return pb_utils.InferenceRequest(
            model_name=self.called, inputs=request.inputs(), requested_output_names=["OUT"]
        )

    def calls(self, requests):
        responses = []
        for request in requests:
            called = self.call(request).exec()
            responses.append(pb_utils.InferenceResponse(error=called.error()) if called.has_error() else small(request))
        return responses

    def calls_many(self, requests):
        for request in requests:
            for called in self.call(request).exec(decoupled=True):
                if called.has_error():
                    raise pb_utils.TritonModelException(called.error().message())
        return [small(request) for request in requests]

    async def calls_async(self, requests):
        responses = []
        for request in requests:
            called = await self.call(request).async_exec()
            responses.append(pb_utils.InferenceResponse(error=called.error()) if called.has_error() else small(request))
        return responses

    def calls_wrongly(self, requests):
        called = pb_utils.InferenceRequest(
            model_name=self.called,
            inputs=[pb_utils.Tensor("OTHER", requests[0].inputs()[0].as_numpy())],
            requested_output_names=["OUT"],
        ).exec()
        return [pb_utils.InferenceResponse(error=called.error()) if called.has_error() else small(requests[0])]
'''
_NUMBERS = tensors("input", "IN FP32 -1") + tensors("output", "OUT FP32 -1")
_TEXTS = ("text_input", "messages", "sampling_parameters", "embedding_request", "rerank_request", "tokenizer_request")
_FLAGS = ("stream", "exclude_input_in_output")
_TEXT = "".join(
    [
        *(tensors("input", f"{name} STRING 1 optional") for name in _TEXTS),
        *(tensors("input", f"{name} BOOL 1 optional") for name in _FLAGS),
        tensors("output", "text_output STRING -1"),
    ]
)
_DECOUPLED = "model_transaction_policy { decoupled: true }\n"
_BATCHING = """
max_batch_size: 1
dynamic_batching {
  max_queue_delay_microseconds: 0
  default_queue_policy {
    timeout_action: REJECT default_timeout_microseconds: 60000000 allow_timeout_override: true
  }
}
"""
_SEQUENCES = """
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  control_input [ {
    name: "START"
    control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ]
  } ]
}
"""
ONE = ("raises", "answers_error", "counts_wrong", "wrong_type", "exits", "answers", "returns_all", "waits")
MANY = ("sends_error", "sends_error_later", "sends_none", "sends_three", "sends_then_raises", "sends_waits")
CALLS = {
    "calls_raises": ("calls", "raises"),
    "calls_error": ("calls", "answers_error"),
    "calls_exits": ("calls", "exits"),
    "calls_unknown": ("calls", "no_such_model"),
    "calls_wrongly": ("calls_wrongly", "answers"),
    "calls_async_raises": ("calls_async", "raises"),
    "calls_many_error": ("calls_many", "sends_error_later"),
    "calls_many_raises": ("calls_many", "sends_then_raises"),
    "calls_calls": ("calls", "calls_raises"),
    "calls_ensemble": ("calls", "ensemble_of_raises"),
    "calls_remote": ("calls", "remote_http"),
}
ENSEMBLES = {"ensemble_of_raises": "raises", "ensemble_of_error": "answers_error", "ensemble_of_exits": "exits"}


def _add(root: Path, name: str, config: str, kind: str = "", calls: str = "", more: str = "") -> None:
    if kind:
        given = {"kind": kind, **({"calls": calls} if calls else {})}
        config = f'backend: "python"\n{config}{more}{parameters(given)}'
    write_files(root, name, config, _CODE if kind else "")


def _add_remote(root: Path, name: str, **given: str) -> None:
    _add(root, name, f'backend: "remote"\n{_NUMBERS}{parameters(given)}')


def write_failing_models(
    root: Path, remotes: Mapping[str, Mapping[str, str]], *, is_on_demand: bool = False, only: Collection[str] = ()
) -> Path:
    """The repository *root*; *remotes* are models of the backend `remote`, with their parameters.

    With *is_on_demand* one of them cannot be loaded. If there are *only* some, the others are left out.
    """
    for kind in ONE:
        _add(root, kind, _NUMBERS, kind)
        _add(root, f"text_{kind}", _TEXT, kind)
    for kind in MANY:
        _add(root, kind, _NUMBERS + _DECOUPLED, kind)
        _add(root, f"text_{kind}", _TEXT + _DECOUPLED, kind)
    if is_on_demand:
        _add(root, "not_loaded", _NUMBERS, "not_loaded")
    for name, (kind, called) in CALLS.items():
        _add(root, name, _NUMBERS, kind, called)
    for name, called in ENSEMBLES.items():
        steps = ("returns_all IN=IN > OUT=MIDDLE", f"{called} IN=MIDDLE > OUT=OUT")
        write_ensemble(root, name, *steps, inputs="IN FP32 -1", outputs="OUT FP32 -1")
    _add(root, "queues", _NUMBERS, "holds", more=_BATCHING)
    _add(root, "sequences", _NUMBERS, "raises", more=_SEQUENCES)
    _add(root, "cached", _NUMBERS, "raises", more="response_cache { enable: true }\n")
    for name, given in remotes.items():
        _add_remote(root, name, **given)
    if only:
        assert (unknown := {*only} - {each.name for each in root.iterdir()}) == set(), f"unknown models {unknown}"
        for folder in root.iterdir():
            if folder.name not in only:
                shutil.rmtree(folder)
    return root
