"""`naiad.testing`: response senders, decoupled models and coroutines."""

import asyncio
import threading

import pytest
import triton_python_backend_utils as pb_utils
from embedded.testing.classes import DECOUPLED_CLASS, FINAL, Repeat, number
from embedded.testing.models import DECOUPLED, write_model

from naiad.testing import ModelError, load


class Sends:
    """Calls a function of the test with the sender of each request."""

    function: object = None

    def execute(self, requests):
        for request in requests:
            type(self).function(request.get_response_sender())


def values(responses):
    return [response["y"].tolist()[0] for response in responses]


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


def test_a_request_that_never_ends_is_reported_after_the_timeout():
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
