"""Sequences when instances come and go, models ask to see a request again, and the server stops."""

from __future__ import annotations

import pytest
from engine.scheduling.requests import MS, Request
from engine.scheduling.sequences.sequences import END, START, config, refused, rows, scheduler, send, start_error

from naiad.core.errors import Code, NaiadError
from naiad.engine.scheduling.dynamic.scheduler import DynamicScheduler
from naiad.engine.scheduling.factory import preserves_order, scheduler_for
from naiad.engine.scheduling.fifo import FifoScheduler
from naiad.engine.scheduling.sequences.rules import SequenceRules
from naiad.engine.scheduling.sequences.states import StateTensor
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InputTensor, OutputTensor


def test_sequences_end_with_the_instance_they_began_on():
    made = scheduler("a", "b", size=1)
    send(made, 1, START)
    send(made, 1, 0, "queued")
    send(made, 2, START)
    made.on_finished("b")
    made.remove_instance("a")
    lost = "sequence 1 of model 'm' was lost: the instance that held it ended; begin it again with the START flag"
    actions = made.requeue(())
    assert refused(actions) == [("queued", lost)]
    assert actions[0].error.code is Code.UNAVAILABLE
    assert refused(send(made, 1)) == [(1, lost)]
    assert rows(send(made, 2)) == [("b", [2])]
    assert rows(send(made, 1, START)) == []
    assert rows(made.add_instance("c")) == [("c", [1])]


HALF = 1 << 19


@pytest.mark.parametrize(
    ("ids", "forgotten"),
    [
        (range(1, 1025), 0),
        (range(1, 1026), 1),
        (["a" * HALF, "b" * HALF], 0),
        (["a" * HALF, "b" * HALF, "c"], 1),
        (["a" * HALF, "b" * HALF, "c" * HALF, "d" * HALF], 2),
        (["a" * HALF, "a" * HALF, "b" * HALF], 0),
    ],
)
def test_the_last_lost_sequences_are_remembered_as_long_as_their_ids_are_few_and_short(ids, forgotten):
    def is_lost(number):
        with pytest.raises(NaiadError) as caught:
            rules.admit(Request("r", correlation_id=number), ())
        return "was lost" in caught.value.message

    rules = SequenceRules("m")
    for number in ids:
        rules.remember_lost(number)
    assert [is_lost(number) for number in ids] == [False] * forgotten + [True] * (len(ids) - forgotten)
    rules.admit(Request("r", correlation_id=ids[-1], flags=START), ())
    rules.remember_lost("e" * HALF)
    assert not is_lost(ids[-1])
    assert is_lost(ids[-2])


@pytest.mark.parametrize("size", [1, 2])
def test_an_instance_is_in_use_as_long_as_it_has_a_sequence(size):
    made = scheduler("a", "b", text=f"oldest {{ max_candidate_sequences: {size} }}")
    assert not made.is_in_use("a")
    send(made, 1, START)
    made.on_finished("a")
    assert (made.is_in_use("a"), made.is_in_use("b")) == (True, False)
    send(made, 1, END)
    made.on_finished("a")
    assert not made.is_in_use("a")
    assert not made.is_in_use("unknown")


def test_a_sequence_that_had_not_begun_moves_to_another_instance():
    made = scheduler("a", text="oldest { max_candidate_sequences: 3 }", size=1)
    send(made, 1, START | END)
    for number in (2, 3, 4):
        send(made, number, START)
    made.remove_instance("a")
    assert made.requeue(()) == []
    assert refused(send(made, 1)) == [(1, start_error(1))], "it had ended, and is not lost"
    assert rows(made.add_instance("b")) == [("b", [2])]
    assert [rows(made.on_finished("b")) for _ in range(2)] == [[("b", [3])], [("b", [4])]], "in their order"


def test_a_sequence_that_lost_its_slot_has_the_timeouts_of_further_requests():
    made = scheduler("a", text="oldest { max_candidate_sequences: 2 }", size=1)
    send(made, 1, START | END)
    send(made, 2, START, timeout_us=1000)
    made.remove_instance("a")
    assert made.wake(2 * MS) == []
    assert send(made, 2, timeout_us=3000, now=2 * MS) == []
    assert made.next_wakeup() == 5 * MS


def test_reports_about_an_instance_that_is_gone_or_idle_change_nothing():
    made = scheduler("idle")
    for name in ("gone", "idle"):
        made.undo_dispatch(name, ())
        assert made.on_finished(name) == []
    made.remove_instance("gone")
    assert rows(send(made, 1, START)) == [("idle", [1])]


def test_a_sequence_keeps_its_state_until_it_begins_again():
    initial = InputTensor("S_IN", Datatype.INT32, (1,), b"first")
    made = scheduler_for(config("sequence_batching {}"), [StateTensor("S_OUT", initial)])
    made.add_instance("a")
    [first] = send(made, 1, START)
    assert first.rows[0].state.inputs == [initial]
    first.rows[0].state.update([OutputTensor("S_OUT", Datatype.INT32, (1,), b"second")])
    made.on_finished("a")
    [second] = send(made, 1)
    assert second.rows[0].state is first.rows[0].state
    made.on_finished("a")
    _, third = send(made, 1, START)
    assert third.rows[0].state.inputs == [initial]
    assert first.rows[0].state.inputs[0].data == b"second"


def test_requests_not_begun_fail_because_their_sequence_is_lost():
    made = scheduler("a")
    [action] = send(made, 1, START)
    made.remove_instance("a")
    [(name, message)] = refused(made.requeue(action.items))
    assert name == 1
    assert message == (
        "the sequence of this request to model 'm' was lost: the instance that held it ended; begin it again "
        "with the START flag"
    )


def test_a_dispatch_that_could_not_be_carried_out_waits_first():
    made = scheduler("a", text="oldest { max_candidate_sequences: 4 }", size=2)
    send(made, 1, START, "busy")
    send(made, 2, START)
    send(made, 3, START)
    [action] = made.on_finished("a")
    send(made, 4, START)
    made.undo_dispatch("a", action.items)
    assert made.waiting_count == 3
    assert rows(send(made, 4)) == [("a", [2, 3])]


def test_what_is_left_of_a_dispatch_waits_first_while_its_first_requests_are_executed():
    made = scheduler("a", text="oldest { max_candidate_sequences: 4 }")
    send(made, 1, START, "busy")
    for number in (2, 3, 4):
        send(made, number, START)
    [action] = made.on_finished("a")
    send(made, 1)
    assert made.requeue(action.items[1:]) == []
    assert send(made, 2) == []
    assert made.waiting_count == 4
    assert rows(made.on_finished("a")) == [("a", [3, 4, 1, 2])]


ITERATIVE = "iterative_sequence: true oldest { max_candidate_sequences: 2 }"


def test_iterative_requests_are_sequences_of_their_own():
    made = scheduler("a", text=ITERATIVE)
    [first] = send(made, 0, name="x")
    assert (first.rows[0].correlation_id, first.rows[0].flags) == (1, START)
    made.reschedule(first.items[0])
    [second] = made.on_finished("a")
    assert (second.rows[0].correlation_id, second.rows[0].flags) == (1, 0)
    assert second.items == first.items
    assert made.on_finished("a") == []
    assert refused(send(made, 1)) == [(1, start_error(1))]
    for number in (2, 3):
        send(made, number, START)
    send(made, "", name="y")
    [third] = made.on_finished("a")
    assert [row.correlation_id for row in third.rows] == [3, 4], "an id that no sequence has"


def test_a_rescheduled_request_fails_with_the_instance_that_exits_before_its_batch_is_done():
    made = scheduler("a", text=ITERATIVE)
    [first] = send(made, 0, name="x")
    made.reschedule(first.items[0])
    made.remove_instance("a")
    assert [name for name, _ in refused(made.add_instance("b"))] == ["x"]
    assert made.open_count == made.waiting_count == 0


def test_new_iterative_requests_join_those_in_progress():
    made = scheduler("a", text=ITERATIVE)
    [first] = send(made, 0, name="x")
    send(made, 0, name="y")
    send(made, 0, name="z")
    made.reschedule(first.items[0])
    assert rows(made.on_finished("a")) == [("a", ["y", "x"])]
    assert rows(made.on_finished("a")) == [("a", ["z"])]


def test_a_closed_scheduler_completes_its_sequences():
    made = scheduler("a")
    send(made, 1, START)
    made.on_finished("a")
    made.close()
    assert refused(send(made, 2, START)) == [
        (2, "Server is stopping, scheduler for model has stopped accepting new inference requests")
    ]
    assert rows(send(made, 1, END)) == [("a", [1])]


def test_draining_ends_all_sequences():
    made = scheduler("a", size=1)
    send(made, 1, START)
    for sequence, flags, name in ((1, 0, "a"), (2, START, "b"), (1, 0, "c")):
        send(made, sequence, flags, name)
    assert [request.name for request in made.drain()] == ["a", "b", "c"]
    assert made.waiting_count == 0
    made.on_finished("a")
    assert refused(send(made, 1)) == [(1, start_error(1))]
    assert rows(send(made, 3, START)) == [("a", [3])]


@pytest.mark.parametrize(
    ("text", "kind", "ordered"),
    [
        ("", FifoScheduler, False),
        ("dynamic_batching { preserve_ordering: true }", DynamicScheduler, True),
        ("sequence_batching { oldest { preserve_ordering: true } }", type(scheduler()), True),
        ("sequence_batching { }", type(scheduler()), False),
        ("sequence_batching { oldest { } }", type(scheduler()), False),
    ],
)
def test_a_configuration_chooses_its_scheduler(text, kind, ordered):
    made = scheduler_for(config(text))
    assert type(made) is kind
    assert (made.singly is made) is (kind is FifoScheduler)
    assert (made.sequences is made) is (kind is type(scheduler()))
    assert preserves_order(config(text)) is ordered
