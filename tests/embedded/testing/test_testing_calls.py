"""`naiad.testing`: calls to other models, and what is asked about them, answered by the test."""

import asyncio
import threading

import pytest
import triton_python_backend_utils as pb_utils
from embedded.testing.classes import DECOUPLED_CLASS, Repeat, number
from embedded.testing.models import write_model

from naiad.testing import ModelError, Response, load


class Caller:
    """Calls `other` and adds one."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        call = pb_utils.InferenceRequest(
            model_name="other",
            inputs=[pb_utils.Tensor("x", request.inputs()[0].as_numpy())],
            requested_output_names=["y"],
            request_id=request.request_id(),
            parameters={"p": 1},
        )
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return number(response.output_tensors()[0].as_numpy()[0] + 1)


class StreamCaller(Caller):
    def answer(self, request):
        call = pb_utils.InferenceRequest(
            model_name="other", inputs=request.inputs(), requested_output_names=[], flags=3
        )
        self.iterator = call.exec(decoupled=True)
        return number(sum(int(r.output_tensors()[0].as_numpy()[0]) for r in self.iterator if r.output_tensors()))


def test_a_function_of_the_test_answers_calls():
    with load(Caller, models={"other": lambda call: {"y": call["x"] * 10, "z": [0]}}) as model:
        assert model.infer({"x": [4]}, request_id="r")["y"].tolist() == [41]
        (call,) = model.calls

    assert (call.model_name, call.model_version, call.request_id, call.parameters) == ("other", -1, "r", {"p": 1})
    assert (call.requested_outputs, call.decoupled, list(call), len(call)) == (("y",), False, ["x"], 1)


def test_another_model_under_test_answers_calls():
    with load(Caller, name="inner", models={"other": lambda call: {"y": call["x"]}}) as inner:
        assert inner.models
        with load(Caller, models={"other": inner}) as model:
            assert model.infer({"x": [1]})["y"].tolist() == [3]
        assert len(inner.calls) == 1


def test_errors_of_fakes_reach_the_model():
    error = pb_utils.TritonError("busy", pb_utils.TritonError.UNAVAILABLE)
    with load(Caller, models={"other": lambda call: error}) as model, pytest.raises(ModelError) as caught:
        model.infer({"x": [1]})
    assert (caught.value.message, caught.value.code.name) == ("busy", "UNAVAILABLE")


def test_a_fake_may_return_a_response():
    answer = Response({}, error=ModelError("as recorded"))
    with load(Caller, models={"other": lambda call: answer}) as model, pytest.raises(ModelError, match="as recorded"):
        model.infer({"x": [1]})


def test_a_model_without_a_fake_is_unknown_as_in_the_server():
    with load(Caller, models={"another": Caller}) as model, pytest.raises(ModelError) as caught:
        model.infer({"x": [1]})

    assert "Request for unknown model: 'other' is not found" in caught.value.message
    assert "fakes for: another" in caught.value.message


def test_an_exception_of_a_fake_is_seen_by_the_test():
    def fails(call):
        raise AssertionError("the model should not call this")

    with load(Caller, models={"other": fails}) as model, pytest.raises(ModelError) as caught:
        model.infer({"x": [1]})

    assert isinstance(caught.value.__cause__, AssertionError)


def test_an_invalid_answer_of_a_fake_is_an_error_that_says_what_to_return():
    with load(Caller, models={"other": lambda call: [3]}) as model, pytest.raises(ModelError) as caught:
        model.infer({"x": [1]})
    assert "Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls" in caught.value.message
    with load(StreamCaller, models={"other": lambda call: [3]}) as model, pytest.raises(ModelError) as caught:
        model.infer({"x": [1]})
    assert "the fake of 'other' answered with int: give a dict of arrays by output name" in caught.value.message


@pytest.mark.parametrize(
    "other",
    [lambda call: ({"y": [n]} for n in range(4)), lambda call: [{"y": [1]}, {"y": [5]}], lambda call: {"y": [6]}],
)
def test_decoupled_calls_iterate_over_what_a_fake_yields(other):
    with load(StreamCaller, models={"other": other}) as model:
        assert model.infer({"x": [1]})["y"].tolist() == [6]
        assert len(list(model.instance.iterator)) in {1, 2, 4}  # anew from the first
        assert model.calls[0].flags == 3


def test_decoupled_calls_reach_a_decoupled_model_under_test():
    with load(Repeat, config=DECOUPLED_CLASS) as repeat, load(StreamCaller, models={"other": repeat}) as model:
        assert model.infer({"x": [4]})["y"].tolist() == [6]


def test_a_plain_call_of_a_decoupled_model_is_refused_as_by_the_server():
    with load(Repeat, config=DECOUPLED_CLASS) as repeat, load(Caller, models={"other": repeat}) as model:
        (response,) = model.stream({"x": [4]})

    assert response.error.message.startswith(
        "Model other - Error when running inference: Model other is using the decoupled. "
    )


def test_async_calls_overlap():
    barrier = threading.Barrier(3, timeout=20)

    def other(call):
        barrier.wait()
        return {"y": call["x"]}

    class Gathers:
        async def execute(self, requests):
            calls = [
                pb_utils.InferenceRequest(model_name="other", inputs=requests[0].inputs(), requested_output_names=[])
                for _ in range(3)
            ]
            responses = await asyncio.gather(*(call.async_exec() for call in calls))
            return [number(sum(response.output_tensors()[0].as_numpy()[0] for response in responses))]

    with load(Gathers, models={"other": other}) as model:
        assert model.infer({"x": [2]})["y"].tolist() == [6]
        assert len(model.calls) == 3


def test_a_decoupled_call_can_be_iterated_asynchronously():
    class Iterates:
        async def execute(self, requests):
            call = pb_utils.InferenceRequest(model_name="other", inputs=requests[0].inputs(), requested_output_names=[])
            total = 0
            async for response in await call.async_exec(decoupled=True):
                total += int(response.output_tensors()[0].as_numpy()[0])
            return [number(total)]

    with load(Iterates, models={"other": lambda call: ({"y": [n]} for n in range(4))}) as model:
        assert model.infer({"x": [2]})["y"].tolist() == [6]


def test_calls_from_threads_of_two_models_go_to_their_own_fakes():
    class Threads(Caller):
        def execute(self, requests):
            found = []
            thread = threading.Thread(target=lambda: found.extend(super(Threads, self).execute(requests)))
            thread.start()
            thread.join()
            return found

    with load(Threads, models={"other": lambda call: {"y": call["x"] * 10}}) as model:
        assert model.infer({"x": [4]})["y"].tolist() == [41]


def test_calls_are_refused_in_initialize():
    class Early:
        def initialize(self, args):
            pb_utils.InferenceRequest(model_name="other", inputs=[], requested_output_names=[]).exec()

    with pytest.raises(ModelError, match="BLS is only supported during the 'execute' function"):
        load(Early, models={"other": lambda call: {}})


def test_the_older_dialect_runs_under_test(tmp_path):
    methods = """
    def execute(self, requests):
        return [[triton_backend.Tensor(name="OUT", data=triton_backend.infer("other", request.inputs)[0])] for request in requests]
    """
    folder = write_model(tmp_path, "old", methods, head="import triton_python_backend.api as triton_backend\n\n\n")

    with load(folder, models={"other": lambda call: {"OUT": call["IN"] + 1}}) as model:
        assert model.infer({"IN": [1]})["OUT"].tolist() == [2]


def test_loading_and_unloading_is_noted_and_changes_readiness():
    class Controls:
        def initialize(self, args):
            self.ready = [pb_utils.is_model_ready("other")]
            pb_utils.unload_model("other", unload_dependents=True)
            self.ready.append(pb_utils.is_model_ready("other", "1"))
            pb_utils.load_model("other", config="{}", files={"file:1/model.py": b""})
            self.ready.append(pb_utils.is_model_ready("other"))

    with load(Controls, models={"other": lambda call: {}}) as model:
        assert model.instance.ready == [True, False, True]
        assert [(done.action, done.model_name, done.config, done.files) for done in model.control.actions] == [
            ("unload", "other", "", None),
            ("load", "other", "{}", {"file:1/model.py": b""}),
        ]


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: pb_utils.is_model_ready("no"), "Failed to check model readiness: Request for unknown model: 'no' is"),
        (
            lambda: pb_utils.load_model("no"),
            "Failed to load model: failed to load 'no', failed to poll from model repo",
        ),
        (
            lambda: pb_utils.load_model("other", files=[]),
            "files should be a dictionary of file paths and file contents",
        ),
    ],
)
def test_control_of_unknown_models_fails_as_in_the_server(ask, text):
    class Asks:
        def initialize(self, args):
            ask()

    with pytest.raises(ModelError, match=text):
        load(Asks, models={"other": lambda call: {}})
