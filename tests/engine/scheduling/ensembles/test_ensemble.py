"""The way of one request through an ensemble: what starts when, what goes out, how it ends."""

from __future__ import annotations

import weakref

import pytest

from naiad.core.errors import Code, NaiadError
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph, EnsembleStep
from naiad.engine.scheduling.ensembles.progress import (
    CancelStep,
    EndResponses,
    EnsembleProgress,
    FailRequest,
    ResponseConsumed,
    SendResponse,
    StartStep,
)
from naiad.engine.scheduling.ensembles.step_limits import StepLimits


def step(model, inputs, outputs, *, decoupled=False):
    """`step("m", "A B", "C")`: takes A and B as IN0 and IN1, makes C as OUT0."""
    return EnsembleStep(
        model=model,
        version=-1,
        inputs=tuple((f"IN{index}", name) for index, name in enumerate(inputs.split())),
        outputs={f"OUT{index}": name for index, name in enumerate(outputs.split())},
        decoupled=decoupled,
    )


def ensemble(inputs, outputs, *steps):
    return EnsembleGraph(name="e", steps=steps, inputs=tuple(inputs.split()), outputs=tuple(outputs.split()))


CHAIN = ensemble("X", "Y", step("first", "X", "A"), step("second", "A", "Y"))
DIAMOND = ensemble(
    "X", "Y", step("split", "X", "A"), step("left", "A", "L"), step("right", "A", "R"), step("join", "L R", "Y")
)
STREAM = ensemble("X", "Y", step("tokens", "X", "A", decoupled=True), step("words", "A", "Y"))


def out(*values):
    return {f"OUT{index}": value for index, value in enumerate(values)}


def test_a_step_starts_when_the_one_before_it_has_answered():
    run = EnsembleProgress(CHAIN)
    assert run.start({"X": 1}) == [StartStep(1, 0, [("IN0", 1)])]
    assert run.on_response(1, out(2), True) == [StartStep(2, 1, [("IN0", 2)])]
    assert run.on_response(2, out(3), True) == [SendResponse([("Y", 3)], True)]
    assert run.is_done


def test_branches_run_side_by_side_and_a_join_waits_for_both():
    run = EnsembleProgress(DIAMOND)
    run.start({"X": 1})
    assert run.on_response(1, out("a"), True) == [StartStep(2, 1, [("IN0", "a")]), StartStep(3, 2, [("IN0", "a")])]
    assert run.on_response(3, out("r"), True) == []
    assert run.on_response(2, out("l"), True) == [StartStep(4, 3, [("IN0", "l"), ("IN1", "r")])]
    assert run.on_response(4, out("y"), True) == [SendResponse([("Y", "y")], True)]


def test_steps_without_a_requested_output_are_left_out():
    graph = ensemble("X", "Y Z", step("a", "X", "A"), step("b", "A", "Y"), step("c", "A", "C"), step("d", "C", "Z"))
    run = EnsembleProgress(graph, ["Y"])
    run.start({"X": 1})
    assert run.on_response(1, out(2), True) == [StartStep(2, 1, [("IN0", 2)])]
    assert run.on_response(2, out(3), True) == [SendResponse([("Y", 3)], True)]


def test_one_tensor_may_go_into_several_inputs_of_a_step():
    run = EnsembleProgress(ensemble("X", "Y", step("twice", "X X", "Y")))
    assert run.start({"X": 1}) == [StartStep(1, 0, [("IN0", 1), ("IN1", 1)])]


def test_each_response_of_a_decoupled_step_starts_what_follows():
    run = EnsembleProgress(STREAM)
    run.start({"X": 1})
    assert run.on_response(1, out("a"), False) == [StartStep(2, 1, [("IN0", "a")])]
    assert run.on_response(1, out("b"), False) == [StartStep(3, 1, [("IN0", "b")])]
    assert run.on_response(3, out("B"), True) == [SendResponse([("Y", "B")], False)]
    assert run.on_response(1, None, True) == []
    assert run.on_response(2, out("A"), True) == [SendResponse([("Y", "A")], True)]


def test_a_stream_whose_end_comes_alone_ends_the_ensemble_with_an_end_mark():
    run = EnsembleProgress(STREAM)
    run.start({"X": 1})
    run.on_response(1, out("a"), False)
    assert run.on_response(2, out("A"), True) == [SendResponse([("Y", "A")], False)]
    assert not run.is_ended
    assert run.on_response(1, None, True) == [EndResponses()]
    assert run.is_done


def test_a_step_whose_outputs_nothing_uses_ends_the_responses_if_it_is_the_last_one():
    run = EnsembleProgress(ensemble("X", "Y", step("m", "X", "Y"), step("side", "X", "S")))
    run.start({"X": 1})
    assert run.on_response(1, out(2), True) == [SendResponse([("Y", 2)], False)]
    assert run.on_response(2, out(3), True) == [EndResponses()]
    assert run.is_done


def test_a_stream_without_a_response_is_no_deadlock():
    run = EnsembleProgress(STREAM)
    run.start({"X": 1})
    assert run.on_response(1, None, True) == [EndResponses()]


def test_branches_behind_a_stream_join_what_belongs_to_one_response():
    graph = ensemble(
        "X",
        "Y",
        step("tokens", "X", "A", decoupled=True),
        step("left", "A", "L"),
        step("right", "A", "R"),
        step("join", "L R", "Y"),
    )
    run = EnsembleProgress(graph)
    run.start({"X": 1})
    run.on_response(1, out("a"), False)  # starts 2 and 3
    run.on_response(1, out("b"), False)  # starts 4 and 5
    assert run.on_response(4, out("Lb"), True) == []
    assert run.on_response(3, out("Ra"), True) == []
    assert run.on_response(5, out("Rb"), True) == [StartStep(6, 3, [("IN0", "Lb"), ("IN1", "Rb")])]
    assert run.on_response(2, out("La"), True) == [StartStep(7, 3, [("IN0", "La"), ("IN1", "Ra")])]


def test_a_response_counts_as_consumed_once_all_responses_made_from_it_were_sent():
    run = EnsembleProgress(STREAM)
    run.start({"X": 1})
    run.on_response(1, out("a"), False)
    run.on_response(1, out("b"), False)
    run.on_response(2, out("A"), True)
    run.on_response(3, out("B"), True)
    assert run.on_responses_consumed(1) == [ResponseConsumed(1)]
    assert run.on_responses_consumed(5) == [ResponseConsumed(1)]


def test_a_response_that_no_step_uses_counts_as_consumed_at_once():
    graph = ensemble("X", "Y", step("tokens", "X", "A", decoupled=True), step("more", "A", "Y", decoupled=True))
    run = EnsembleProgress(graph)
    run.start({"X": 1})
    run.on_response(1, out("a"), False)
    assert run.on_response(2, None, True) == [ResponseConsumed(1)]


def test_a_response_counts_as_consumed_when_those_of_a_stream_made_from_it_are_and_that_has_ended():
    graph = ensemble("X", "Y", step("tokens", "X", "A", decoupled=True), step("more", "A", "Y", decoupled=True))
    run = EnsembleProgress(graph)
    run.start({"X": 1})
    for number in (2, 3):
        run.on_response(1, out("a"), False)
        assert run.on_response(number, out("y"), False) == [SendResponse([("Y", "y")], False)]
    assert run.on_responses_consumed(1) == [ResponseConsumed(2)]
    assert run.on_response(2, None, True) == [ResponseConsumed(1)]
    assert run.on_response(3, None, True) == []
    assert run.on_responses_consumed(1) == [ResponseConsumed(1)]


def test_inputs_that_were_left_out_are_left_out_of_the_steps_too():
    run = EnsembleProgress(ensemble("X Z", "Y", step("m", "X Z", "Y")))
    assert run.start({"X": 1}) == [StartStep(1, 0, [("IN0", 1)])]


def test_outputs_that_a_model_leaves_out_are_left_out_of_what_follows():
    run = EnsembleProgress(ensemble("X", "Y Z", step("m", "X", "A Z"), step("n", "A", "Y")))
    run.start({"X": 1})
    assert run.on_response(1, {"OUT0": 2}, True) == [StartStep(2, 1, [("IN0", 2)])]
    assert run.on_response(2, out(3), True) == [SendResponse([("Y", 3)], True)]


class Tensor:
    """A tensor of which it is seen whether anything keeps it."""


@pytest.mark.parametrize("outputs", ["Y", "Y A"])
def test_a_tensor_is_kept_until_all_that_it_goes_to_have_it(outputs):
    """Its bytes may be borrowed from the segment of a guest."""
    graph = ensemble("X", outputs, step("m", "X", "A"), step("left", "A", "L"), step("join", "L A", "Y"))
    run, x, a = EnsembleProgress(graph), Tensor(), Tensor()
    gone = [weakref.ref(x), weakref.ref(a)]
    run.start({"X": x})
    del x
    assert gone[0]() is None
    run.on_response(1, {"OUT0": a}, True)
    del a
    assert gone[1]() is not None, "two more use it"
    run.on_response(2, out(1), True)
    assert (gone[1]() is None) is (outputs == "Y")
    assert run.on_response(3, out(2), True)
    assert gone[1]() is None


def test_an_error_of_a_step_is_returned_with_the_ensembles_name_in_front():
    run = EnsembleProgress(CHAIN)
    run.start({"X": 1})
    [action] = run.on_step_failed(1, NaiadError("no such thing", code=Code.NOT_FOUND), True)
    assert isinstance(action, FailRequest)
    assert action.error.message == "in ensemble 'e', no such thing"
    assert action.error.code is Code.NOT_FOUND
    assert run.is_done


def test_after_an_error_streams_are_cancelled_and_single_answers_are_awaited():
    graph = ensemble(
        "X",
        "Y Z W",
        step("fails", "X", "Y"),
        step("single", "X", "Z"),
        step("tokens", "X", "W", decoupled=True),
    )
    run = EnsembleProgress(graph)
    run.start({"X": 1})
    fail, cancel = run.on_step_failed(1, NaiadError("oh"), True)
    assert isinstance(fail, FailRequest)
    assert cancel == CancelStep(3)
    assert run.is_ended
    assert not run.is_done
    assert run.on_response(2, out(1), True) == []
    assert run.on_response(3, out(1), False) == [ResponseConsumed(3)]
    assert run.on_response(3, None, False) == []
    assert run.cancel() == []
    assert run.on_step_failed(3, NaiadError("cancelled"), True) == []
    assert run.is_done


def test_a_step_that_ends_without_a_response_is_a_deadlock():
    run = EnsembleProgress(CHAIN, prefix="[request id: 7] ")
    run.start({"X": 1})
    [action] = run.on_response(1, None, True)
    assert isinstance(action, FailRequest)
    assert action.error.message == (
        "in ensemble 'e', [request id: 7] unexpected deadlock, at least one output is not set while no more ensemble "
        "steps can be made"
    )
    assert action.error.code is Code.INVALID_ARG


def test_cancelling_reaches_the_steps_in_progress_and_starts_no_other():
    run = EnsembleProgress(CHAIN)
    run.start({"X": 1})
    assert run.cancel() == [CancelStep(1)]
    assert run.cancel() == []
    [action] = run.on_response(1, out(2), True)
    assert isinstance(action, FailRequest)
    assert action.error.message == "in ensemble 'e', Request was cancelled"
    assert action.error.code is Code.CANCELLED


def test_a_last_step_that_ignores_the_cancellation_still_answers():
    run = EnsembleProgress(CHAIN)
    run.start({"X": 1})
    run.on_response(1, out(2), True)
    assert run.cancel() == [CancelStep(2)]
    assert run.on_response(2, out(3), True) == [SendResponse([("Y", 3)], True)]


def test_a_failed_ensemble_responds_with_the_given_error_and_cancels_its_steps():
    run = EnsembleProgress(CHAIN)
    run.start({"X": 1})
    error = NaiadError("a ring")
    assert run.fail(error) == [FailRequest(error), CancelStep(1)]
    assert run.fail(error) == []
    assert run.on_response(1, out(2), True) == []
    assert run.is_done


@pytest.mark.parametrize("report", ["on_response", "on_step_failed"])
def test_reports_about_unknown_steps_are_ignored(report):
    run = EnsembleProgress(CHAIN)
    run.start({"X": 1})
    about = out(1) if report == "on_response" else NaiadError("late")
    assert getattr(run, report)(9, about, True) == []


def test_without_a_limit_all_requests_enter_a_step():
    limits = StepLimits(0)
    assert all(limits.enter(0, token) for token in range(100))
    assert limits.leave(0, 5) is None


def test_with_a_limit_further_requests_wait_in_order_for_each_step():
    limits = StepLimits(2)
    assert [limits.enter(0, token) for token in "abcd"] == [True, True, False, False]
    assert limits.enter(1, "e")
    assert list(limits.inside(0)) == ["a", "b"]
    assert limits.is_waiting(0, "d")
    assert limits.leave(0, "b") == "c"
    assert limits.leave(0, "d") is None  # gave up waiting
    assert limits.leave(0, "a") is None
    assert limits.leave(0, "c") is None
    assert limits.enter(0, "f")
