"""`naiad.testing`: response senders, coroutines, and calls to other models that the test answers."""

import asyncio
import threading

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from naiad.testing import ModelError, Response, load
from testing_door.models import DECOUPLED, write_model

DECOUPLED_CLASS = {"model_transaction_policy": {"decoupled": True}}
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def number(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([value]))])


class Repeat:
    """Answers a request as often as its input says, from a thread after `execute` has returned."""

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.send, args=(request.get_response_sender(), request)).start()

    def send(self, sender, request):
        for value in range(int(request.inputs()[0].as_numpy()[0])):
            if sender.is_cancelled():
                break
            sender.send(number(value))
        sender.send(flags=FINAL)


class Sends:
    """Calls a function of the test with the sender of each request."""

    function: object = None

    def execute(self, requests):
        for request in requests:
            type(self).function(request.get_response_sender())


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


def values(responses):
    return [response["y"].tolist()[0] for response in responses]


# -- senders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 2000])
def test_all_responses_of_a_decoupled_model_are_collected(count):
    with load(Repeat, config=DECOUPLED_CLASS) as model:
        assert values(model.stream({"x": [count]})) == list(range(count))


def test_infer_wants_exactly_one_response():
    with load(Repeat, config=DECOUPLED_CLASS) as model:
        assert model.infer({"x": [1]})["y"].tolist() == [0]
        with pytest.raises(ValueError, match=r"answered with 2 responses; use stream\(\) to get them"):
            model.infer({"x": [2]})


def test_a_sender_learns_that_the_request_is_cancelled():
    asked = iter([False, False, True])
    with load(Repeat, config=DECOUPLED_CLASS) as model:
        assert values(model.stream({"x": [9]}, is_cancelled=lambda: next(asked))) == [0, 1]


@pytest.mark.parametrize(
    ("config", "send", "text"),
    [
        (DECOUPLED_CLASS, [((), 2)], "Unable to send response. Unsupported flag provided."),
        (DECOUPLED_CLASS, [((), 0)], "Inference Response object must be provided when the response flags is set to"),
        (DECOUPLED_CLASS, [((1,), 1), ((1,), 0)], "Unable to send response. Response sender has been closed."),
        (None, [((1,), 0), ((1,), 0)], "Non-decoupled model cannot send more than one response."),
        (None, [((), 1)], "Non-decoupled model cannot send complete final before sending a response."),
    ],
)
def test_senders_keep_the_rules_of_the_server(config, send, text):
    said = []

    def function(sender):
        try:
            for response, flags in send:
                sender.send(number(1) if response else None, flags)
        except pb_utils.TritonModelException as error:
            said.append(str(error))
            raise

    with load(Sends, config=config) as model:
        model.instance.__class__.function = staticmethod(function)
        model.stream({"x": [1]})

    assert len(said) == 1
    assert text in said[0]


def test_a_default_model_may_use_a_sender_for_its_one_response():
    def function(sender):
        sender.send(number(5))
        sender.send(flags=FINAL)

    with load(Sends) as model:
        model.instance.__class__.function = staticmethod(function)
        assert values(model.stream({"x": [1]})) == [5]


def test_an_error_in_the_middle_of_a_stream_is_one_of_its_responses():
    def function(sender):
        sender.send(number(1))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("oops", pb_utils.TritonError.UNAVAILABLE)))
        sender.send(number(2), FINAL)

    with load(Sends, config=DECOUPLED_CLASS) as model:
        model.instance.__class__.function = staticmethod(function)
        first, middle, last = model.stream({"x": [1]})

    assert values([first, last]) == [1, 2]
    assert (middle.error.message, middle.error.code.name) == ("oops", "UNAVAILABLE")


def test_a_dropped_sender_ends_its_request_as_in_the_server():
    with load(Sends, config=DECOUPLED_CLASS) as model:
        model.instance.__class__.function = staticmethod(lambda sender: sender.send(number(1)))
        assert values(model.stream({"x": [1]})) == [1]

    assert "dropped a response sender without TRITONSERVER_RESPONSE_COMPLETE_FINAL" in model.logs[0].message


def test_a_request_that_never_ends_is_told_of_after_the_timeout():
    kept = []
    with load(Sends, config=DECOUPLED_CLASS, timeout=0.05) as model:
        model.instance.__class__.function = staticmethod(kept.append)
        with pytest.raises(
            ModelError, match=r"the model did not end its request within 0\.05 s \(0 responses so far\)"
        ):
            model.stream({"x": [1]})


def test_a_decoupled_model_must_not_return_responses(tmp_path):
    returns = "def execute(self, requests):\n    return []\n"
    with load(write_model(tmp_path, "m", returns, more=DECOUPLED)) as model:
        (response,) = model.stream({"IN": [1]})

    assert (
        "Python model 'm_0' is using the decoupled mode and the execute function must return None."
        in response.error.message
    )


def test_a_request_may_be_scheduled_again():
    class Counts:
        count = 0

        def execute(self, requests):
            self.count += 1
            if self.count < 3:
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None]
            return [number(self.count)]

    with load(Counts) as model:
        assert model.infer({"x": [1]})["y"].tolist() == [3]


# -- coroutines ---------------------------------------------------------------------------------------------------


def test_async_execute_is_awaited():
    class Later:
        async def execute(self, requests):
            await asyncio.sleep(0)
            self.thread = threading.current_thread()
            return [number(1)]

    with load(Later) as model:
        assert model.infer({"x": [1]})["y"].tolist() == [1]
        assert model.instance.thread is not threading.current_thread()

    assert not any(thread.name == "naiad-testing-loop" for thread in threading.enumerate())


def test_async_execute_works_under_a_running_loop_as_in_a_notebook():
    class Later:
        async def execute(self, requests):
            return [number(1)]

    async def cell():
        with load(Later) as model:
            return model.infer({"x": [1]})

    assert asyncio.run(cell())["y"].tolist() == [1]


def test_async_decoupled_models_send_and_fail_late():
    class Later:
        async def execute(self, requests):
            sender = requests[0].get_response_sender()
            await asyncio.sleep(0)
            sender.send(number(1))
            raise ValueError("later")

    with load(Later, config=DECOUPLED_CLASS) as model:
        first, last = model.stream({"x": [1]})

    assert values([first]) == [1]
    assert "ValueError: later" in last.error.message


# -- calls --------------------------------------------------------------------------------------------------------


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


def test_a_response_may_be_a_fakes_answer():
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


def test_a_fake_that_answers_nonsense_is_told_what_to_answer():
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


def test_async_iteration_over_a_decoupled_call():
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


def test_a_received_request_cannot_be_run_on():
    class Forwards:
        def execute(self, requests):
            return [requests[0].exec()]

    with (
        load(Forwards, models={"other": lambda call: {}}) as model,
        pytest.raises(ModelError, match="Only requests that the model made itself can be run on other models"),
    ):
        model.infer({"x": [1]})


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
