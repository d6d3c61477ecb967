"""Guests with little room for outputs: they wait for what comes back, and say so where nothing can."""

from __future__ import annotations

from functools import partial

import pytest
from support.waiting import until_async

from naiad.guests import worker as worker_module
from naiad.guests.memory.instance import InstanceMemory

from .guests import launch_spec, request, run, started

pytestmark = pytest.mark.server

ROOM = 1 << 20

FILLS = """
    def execute(self, requests):
        '''Each IN names how many floats its OUT has; a negative one puts it there twice, once in a block of its own.'''
        return [self.answer(int(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()[0])) for r in requests]

    def answer(self, number):
        import numpy as np
        array = np.full(abs(number), number, dtype=np.float32)
        if number > 0:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
        own = pb_utils.Tensor.allocate("OUT", [abs(number)], np.float32)
        return pb_utils.InferenceResponse([own, own])
"""


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    monkeypatch.setattr(worker_module, "InstanceMemory", partial(InstanceMemory, capacity=ROOM))


def answers_to(tmp_path, *numbers, keep=True, after=1):
    """What a batch is answered with, if one of *after* floats can be answered then, too.

    Without *keep*, the host lets go of each answer as it comes.
    """

    async def ask():
        worker, delegate = await started(launch_spec(tmp_path, FILLS))
        seen = []

        def on_response(worker, answer, *times):
            response = answer.response
            seen.append((answer.key, response.error.message if response.error else len(response.outputs[0].data)))
            if keep:
                delegate.answers.append(answer)

        delegate.on_response = on_response
        worker.execute([(key, request(number), None) for key, number in enumerate(numbers)], len(numbers))
        await until_async(lambda: delegate.done, "the batch")
        delegate.answers.clear()
        worker.execute([(99, request(after), None)], 1)
        await until_async(lambda: seen[-1][0] == 99, "the next batch")
        assert seen[-1] == (99, 4 * after)
        await worker.stop(10)
        return seen[:-1]

    return run(ask())


def test_outputs_of_one_batch_may_exceed_the_segment(tmp_path):
    number = ROOM // 4 // 2 - 64
    assert answers_to(tmp_path, *[number] * 5, keep=False) == [(key, 4 * number) for key in range(5)]


def test_many_small_outputs_of_one_batch_may_exceed_the_segment(tmp_path):
    assert answers_to(tmp_path, *[4000] * 200) == [(key, 16000) for key in range(200)]


def test_a_response_that_would_never_fit_is_an_error_and_others_are_not(tmp_path):
    first, second, third = answers_to(tmp_path, 10, ROOM, 20)
    assert (first, third) == ((0, 40), (2, 80))
    assert f"outputs of {4 * ROOM} bytes do not fit into the output segment of {ROOM} bytes" in second[1]


def test_outputs_that_the_model_wrote_in_place_leave_no_room_taken_where_the_rest_does_not_fit(tmp_path):
    number = ROOM // 4 * 3 // 4
    [(_, message)] = answers_to(tmp_path, -number, after=ROOM // 4 - 64)
    assert f"outputs of {4 * number} bytes do not fit into the output segment" in message
