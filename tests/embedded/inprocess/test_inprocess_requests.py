"""Requests and responses of a server in this process."""

from __future__ import annotations

import asyncio
import json
import queue

import numpy as np
import pytest

import naiad as tritonserver

NUMBERS = np.array([1.5, -2.0, 3.25], np.float32)


def told(response):
    return json.loads(response.outputs["OUT"].to_string_array()[0])


def test_a_model_answers_with_tensors_that_numpy_reads(shared):
    (response,) = shared.model("identity").infer(inputs={"IN": NUMBERS}, request_id="7")

    assert np.from_dlpack(response.outputs["OUT"]).tolist() == NUMBERS.tolist()
    assert (response.request_id, response.final, response.error) == ("7", True, None)
    assert (response.model.name, response.model.version) == ("identity", 1)


def test_the_model_that_was_asked_keeps_its_version(shared):
    model = shared.model("identity")

    (response,) = model.infer(inputs={"IN": NUMBERS})

    assert (model.version, response.model.version) == (-1, 1)


def test_a_request_made_before_is_sent_as_it_is(shared):
    request = shared.models()["identity"].create_request()
    request.inputs["IN"] = [0.5, 0.25]

    with pytest.raises(tritonserver.InvalidArgumentError, match="inference input 'IN' data-type is 'FP64'"):
        shared.model("identity").infer(request)

    request.inputs["IN"] = np.array([0.5, 0.25], np.float32)
    (response,) = shared.model("identity").infer(request)
    assert response.outputs["OUT"].to_numpy().tolist() == [0.5, 0.25]


def test_all_fields_of_a_request_reach_the_model(shared):
    parameters = {"i": 3, "f": 0.5, "b": False, "s": "text"}

    (response,) = shared.model("says_what_it_got").infer(
        inputs={"IN": NUMBERS},
        request_id="r1",
        correlation_id="chat",
        flags=3,
        timeout=5_000_000,
        parameters=parameters,
        output_memory_type="cpu",
    )

    assert told(response) == {
        "id": "r1",
        "correlation": "chat",
        "flags": 3,
        "timeout": 5_000_000,
        "parameters": parameters,
        "outputs": ["MORE", "OUT"],
    }


@pytest.mark.parametrize("value", [None, {"a": 1}, [1]])
def test_a_parameter_of_another_type_is_refused(shared, value):
    with pytest.raises(tritonserver.InvalidArgumentError, match=r"Can't convert .* to Request Parameter"):
        shared.model("identity").infer(inputs={"IN": NUMBERS}, parameters={"p": value})


@pytest.mark.parametrize("place", ["gpu", "gpu:0", tritonserver.MemoryType.GPU, (tritonserver.DLDeviceType.kDLCUDA, 0)])
def test_outputs_in_memory_of_a_gpu_are_refused(shared, place):
    with pytest.raises(tritonserver.InvalidArgumentError, match="not supported: naiad leaves GPUs to the models"):
        shared.model("identity").infer(inputs={"IN": NUMBERS}, output_memory_type=place)


@pytest.mark.parametrize("place", ["unsupported", "cpu:x", "cpu:0:0"])
def test_an_unknown_type_of_memory_is_refused(shared, place):
    with pytest.raises(tritonserver.InvalidArgumentError, match=r"[Mm]emory [Tt]ype [Ss]tring"):
        shared.model("identity").infer(inputs={"IN": NUMBERS}, output_memory_type=place)


@pytest.mark.parametrize(
    ("model", "inputs", "kind", "text"),
    [
        ("nobody", {}, tritonserver.NotFoundError, "'nobody' is not found"),
        ("identity", {}, tritonserver.InvalidArgumentError, "expected 1 inputs but got 0 inputs for model 'identity'"),
        ("identity", {"X": NUMBERS}, tritonserver.InvalidArgumentError, "unexpected inference input 'X'"),
        ("identity", {"IN": object()}, tritonserver.InvalidArgumentError, "Input type .* not supported"),
        ("identity", {"IN": [[1], [1, 2]]}, tritonserver.InvalidArgumentError, "its lists differ in length"),
        (
            "identity",
            {"IN": np.array(["2026"], "M8[Y]")},
            tritonserver.InvalidArgumentError,
            "Can't convert datetime64",
        ),
    ],
)
def test_an_invalid_request_is_refused_at_once(shared, model, inputs, kind, text):
    with pytest.raises(kind, match=text):
        shared.model(model).infer(inputs=inputs)


def test_a_models_error_is_raised_with_the_response(shared):
    responses = shared.model("raises_in_execute").infer(inputs={"IN": NUMBERS})

    with pytest.raises(tritonserver.InternalError) as raised:
        next(responses)

    message, response = raised.value.args
    assert "Traceback" in message or "At:" in message
    assert response.error.args[0] == message
    assert response.final


def test_a_models_error_is_returned_where_that_is_asked_for(shared):
    (response,) = shared.model("raises_in_execute").infer(inputs={"IN": NUMBERS}, raise_on_error=False)

    assert isinstance(response.error, tritonserver.InternalError)
    assert response.outputs == {}


@pytest.mark.parametrize(("with_last", "finals"), [(1.0, [False, False, True]), (0.0, [False, False, False, True])])
def test_a_decoupled_model_streams(shared, with_last, finals):
    responses = list(shared.model("repeats").infer(inputs={"IN": np.array([3, with_last], np.float32)}))

    assert [response.final for response in responses] == finals
    assert [float(each.outputs["OUT"].to_numpy()[0]) for each in responses if each.outputs] == [0.0, 1.0, 2.0]


def test_an_iterator_ends_after_the_last_response(shared):
    responses = shared.model("identity").infer(inputs={"IN": NUMBERS})

    assert len(list(responses)) == 1
    assert list(responses) == []


def test_more_responses_than_a_model_may_be_ahead_come_through(shared):
    """A model is held back while too many of its responses wait; reading them lets it go on."""
    responses = shared.model("repeats").infer(inputs={"IN": np.array([3000, 0], np.float32)})

    assert [float(each.outputs["OUT"].to_numpy()[0]) for each in responses if each.outputs] == list(range(3000))


def test_a_model_is_not_held_back_if_responses_are_not_iterated(shared):
    copies = queue.SimpleQueue()

    shared.model("repeats").infer(inputs={"IN": np.array([3000, 0], np.float32)}, response_queue=copies)

    finals = [copies.get(timeout=60).final for _ in range(3001)]
    assert finals == [False] * 3000 + [True]


def test_a_queue_gets_every_response_beside_the_iterator(shared):
    copies = queue.SimpleQueue()
    iterators = [shared.model("identity").infer(inputs={"IN": NUMBERS}, response_queue=copies) for _ in range(2)]

    assert [copies.get(timeout=60).outputs["OUT"].to_numpy().tolist() for _ in range(2)] == [NUMBERS.tolist()] * 2
    assert [len(list(iterator)) for iterator in iterators] == [1, 1]
    assert copies.empty()


def test_queues_of_the_other_kind_are_refused(shared):
    with pytest.raises(tritonserver.InvalidArgumentError, match=r"^queue\.SimpleQueue must be used"):
        shared.model("identity").infer(inputs={"IN": NUMBERS}, response_queue=asyncio.Queue())
    with pytest.raises(tritonserver.InvalidArgumentError, match=r"^asyncio\.Queue must be used"):
        shared.model("identity").async_infer(inputs={"IN": NUMBERS}, response_queue=queue.SimpleQueue())


def test_a_cancelled_request_ends(shared):
    responses = shared.model("repeats").infer(inputs={"IN": np.array([1e6, 0], np.float32)}, raise_on_error=False)
    next(responses)

    responses.cancel()

    *_, last = responses
    assert last.final


def test_coroutines_ask_several_at_a_time(shared):
    async def ask(number):
        inputs = {"IN": np.array([number], np.float32)}
        return [
            response.outputs["OUT"].to_numpy()[0]
            async for response in shared.model("identity").async_infer(inputs=inputs)
        ]

    async def ask_all():
        return await asyncio.gather(*map(ask, range(20)))

    assert asyncio.run(ask_all()) == [[number] for number in range(20)]


def test_coroutines_read_streams_and_queues(shared):
    async def ask():
        copies = asyncio.Queue(maxsize=1)  # smaller than what comes: the rest waits
        responses = shared.model("repeats").async_infer(
            inputs={"IN": np.array([3, 1], np.float32)}, response_queue=copies
        )
        read = [response.final async for response in responses]
        return read, [(await copies.get()).final for _ in range(3)]

    assert asyncio.run(ask()) == ([False, False, True], [False, False, True])


def test_coroutines_get_errors_raised(shared):
    async def ask():
        async for _ in shared.model("raises_in_execute").async_infer(inputs={"IN": NUMBERS}):
            pass

    with pytest.raises(tritonserver.InternalError):
        asyncio.run(ask())


def test_large_outputs_stay_valid_after_their_iterator(shared):
    large = np.arange(1_000_000, dtype=np.float32)
    kept = [next(shared.model("identity").infer(inputs={"IN": large + step})).outputs["OUT"] for step in range(3)]

    for step, tensor in enumerate(kept):
        np.testing.assert_array_equal(tensor.to_numpy(), large + step)
