"""Sequence batching: what is promised about rules, slots, batches and time."""

from __future__ import annotations

import pytest
from engine.scheduling.requests import MS, Request
from engine.scheduling.sequences.sequences import END, READY, START, refused, rows, scheduler, send, start_error

from naiad.core.errors import Code
from naiad.engine.scheduling.interface import SchedulerWarning


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": 0}, "inference request to model 'm' must specify a non-zero or non-empty correlation ID"),
        ({"sequence": ""}, "inference request to model 'm' must specify a non-zero or non-empty correlation ID"),
        ({"sequence": 5}, start_error(5)),
        ({"sequence": "x", "flags": END}, start_error("x")),
        (
            {"sequence": 5, "flags": START, "batch_size": 2},
            "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher",
        ),
    ],
)
def test_requests_that_break_the_rules_are_refused(options, message):
    [action] = send(scheduler("a"), **options)
    assert action.error.message == message
    assert action.error.code is Code.INVALID_ARG


def test_requests_of_a_sequence_go_in_order_and_one_at_a_time():
    made = scheduler("a")
    assert rows(send(made, 5, START, "first")) == [("a", ["first"])]
    assert send(made, 5, 0, "second") == []
    assert send(made, 5, END, "third") == []
    assert rows(made.on_finished("a")) == [("a", ["second"])]
    assert rows(made.on_finished("a")) == [("a", ["third"])]
    assert made.on_finished("a") == []
    assert refused(send(made, 5)) == [(5, start_error(5))]


def test_a_sequence_stays_with_its_instance():
    made = scheduler("a", "b", size=1)
    assert rows(send(made, 1, START)) == [("a", [1])]
    assert rows(send(made, 2, START)) == [("b", [2])]
    made.on_finished("a")
    made.on_finished("b")
    assert rows(send(made, 2)) == [("b", [2])]
    assert rows(send(made, "1", START)) == [], "no slot is free, and '1' is not 1"
    assert rows(send(made, 1, END)) == [("a", [1])]
    assert rows(made.on_finished("a")) == [("a", ["1"])]


def test_sequences_are_spread_over_the_instances_that_are_left():
    made = scheduler("a", "b", "c", size=2)
    made.remove_instance("a")
    assert [rows(send(made, number, START)) for number in (1, 2)] == [[("b", [1])], [("c", [2])]]
    send(made, 3, START)
    assert rows(made.on_finished("b")) == [("b", [3])]


def test_direct_fills_slots_without_a_request_if_the_model_has_a_ready_control():
    made = scheduler("a", text=f"direct {{}} {READY}")
    for sequence in (1, 2, 3):
        send(made, sequence, START)
        made.on_finished("a")
    made.on_finished("a")
    [action] = send(made, 3)
    assert rows([action]) == [("a", [None, None, 3])]
    assert [bytes(row.controls[0].data) for row in action.rows] == [b"\0", b"\0", b"\1"]
    assert [(row.correlation_id, row.flags) for row in action.rows] == [(0, 0), (0, 0), (3, 0)]
    assert action.items == (action.rows[2].item,)


def test_direct_leaves_out_slots_without_a_request_if_the_model_has_no_ready_control():
    made = scheduler("a")
    send(made, 1, START)
    send(made, 2, START)
    made.on_finished("a")
    made.on_finished("a")
    assert rows(send(made, 2)) == [("a", [2])]


def test_direct_leaves_a_request_of_another_shape_for_later():
    made = scheduler("a", text=f"direct {{}} {READY}")
    send(made, 0x1, START)
    send(made, 2, START, shape_key="x")
    send(made, 3, START, shape_key="y")
    send(made, 4, START, shape_key="x")
    actions = made.on_finished("a")
    assert rows(actions) == [("a", [None, 2, None, 4])]
    assert [rows([actions[0].first(number)]) for number in (1, 2)] == [[("a", [None, 2])], rows(actions)]
    assert rows(made.on_finished("a")) == [("a", [None, None, 3])]


def test_direct_waits_for_enough_slots_or_for_its_delay():
    delay = "direct {{ max_queue_delay_microseconds: 5000 {} }}"
    made = scheduler("a", text=delay.format("minimum_slot_utilization: 0.5"))
    assert send(made, 1, START) == []
    assert made.next_wakeup() == 5 * MS
    assert rows(send(made, 2, START, now=1 * MS)) == [("a", [1, 2])]
    made.on_finished("a", 2 * MS)
    assert send(made, 2, now=3 * MS) == []
    assert made.wake(8 * MS - 1) == []
    assert rows(made.wake(8 * MS)) == [("a", [2])]
    send(made, 2, now=9 * MS)
    assert made.on_finished("a", 12 * MS) == []
    assert made.next_wakeup() == 14 * MS, "its delay began when it arrived"
    made = scheduler("a", text=delay.format("minimum_slot_utilization: 0.75"))
    assert send(made, 1, START) == send(made, 2, START, now=1 * MS) == []
    assert made.next_wakeup() == 5 * MS, "that of the oldest request"
    made = scheduler("a", text=delay.format(""))
    assert rows(send(made, 1, START)) == [("a", [1])], "it means nothing without a utilization"


def test_oldest_batches_what_has_waited_longest_but_never_one_sequence_twice():
    made = scheduler("a", text="oldest { max_candidate_sequences: 3 }", size=2)
    send(made, 1, START, "busy")
    for sequence, flags, name in ((3, 0x1, "c1"), (2, 0x1, "b1"), (1, 0, "a2"), (3, 0, "c2")):
        send(made, sequence, flags, name)
    assert rows(made.on_finished("a")) == [("a", ["c1", "b1"])]
    assert rows(made.on_finished("a")) == [("a", ["a2", "c2"])]


def test_oldest_waits_for_preferred_sizes_and_its_delay():
    text = "oldest { max_candidate_sequences: 4 preferred_batch_size: 2 max_queue_delay_microseconds: 5000 }"
    made = scheduler("a", text=text)
    assert send(made, 1, START) == []
    assert made.next_wakeup() == 5 * MS
    assert rows(send(made, 2, START, now=1 * MS)) == [("a", [1, 2])]
    send(made, 1, 0, now=2 * MS)
    assert made.on_finished("a", 4 * MS) == []
    assert rows(made.wake(9 * MS)) == [("a", [1])], "its delay began when the request before it was done"


def test_a_sequence_without_a_slot_waits_in_the_backlog_in_order():
    made = scheduler("a", size=1)
    send(made, 1, START)
    for sequence, flags in ((2, START), (3, START | END), (2, END)):
        assert send(made, sequence, flags) == []
    assert made.on_finished("a") == []
    send(made, 1, END)
    assert rows(made.on_finished("a")) == [("a", [2])]
    assert rows(made.on_finished("a")) == [("a", [2])]
    assert rows(made.on_finished("a")) == [("a", [3])]


def test_a_second_start_restarts_the_sequence_in_the_same_slot():
    made = scheduler("a", size=1)
    send(made, 1, START, "first")
    send(made, 1, 0, "late")
    [warning] = send(made, 1, START, "again")
    assert warning == SchedulerWarning(
        "sequence 1 for model 'm' has a conflict. The previous sequence did not end before this sequence start. "
        "Previous sequence will be terminated early."
    )
    assert rows(made.on_finished("a")) == [("a", ["late"])]
    [action] = made.on_finished("a")
    assert (action.rows[0].item.name, action.rows[0].flags) == ("again", START)


def test_an_id_may_begin_again_while_its_end_is_executed():
    made = scheduler("a", size=1)
    send(made, 1, START | END, "old")
    assert send(made, 1, START | END, "new") == []
    assert rows(made.on_finished("a")) == [("a", ["new"])]


def test_an_idle_sequence_loses_its_slot():
    made = scheduler("a", size=1, text="max_sequence_idle_microseconds: 5000")
    send(made, 1, START)
    send(made, 2, START, now=1)
    assert made.next_wakeup() is None, "what is executed is not idle"
    assert made.on_finished("a", 2 * MS) == []
    assert made.next_wakeup() == 7 * MS
    assert rows(made.wake(7 * MS)) == [("a", [2])]
    assert refused(send(made, 1, now=7 * MS)) == [(1, start_error(1))]
    made.on_finished("a", 8 * MS)
    assert refused(send(made, 2, now=13 * MS)) == [(2, start_error(2))], "no one has woken the scheduler"


@pytest.mark.parametrize(("timeout_us", "expected"), [(3000, 5), (9000, 7)])
def test_the_scheduler_is_woken_for_what_comes_first(timeout_us, expected):
    made = scheduler("a", size=1, text="max_sequence_idle_microseconds: 5000")
    send(made, 1, START)
    made.on_finished("a", 2 * MS)
    send(made, 2, START, timeout_us=timeout_us, now=2 * MS)
    assert made.next_wakeup() == expected * MS


def test_an_idle_sequence_ends_with_its_instance():
    made = scheduler("a", text="max_sequence_idle_microseconds: 5000")
    send(made, 1, START)
    made.on_finished("a")
    made.remove_instance("a")
    assert made.next_wakeup() is None
    assert made.wake(5 * MS) == []
    assert made.open_count == 0


def test_a_sequence_in_use_is_not_idle_and_another_may_be_for_a_second_by_default():
    made = scheduler("a", text="max_sequence_idle_microseconds: 5000")
    send(made, 1, START)
    made.on_finished("a", 1 * MS)
    send(made, 1, now=4 * MS)
    assert made.wake(40 * MS) == []
    made.on_finished("a", 50 * MS)
    assert rows(send(made, 1, now=54 * MS)) == [("a", [1])]
    made = scheduler("a")
    send(made, 1, START)
    made.on_finished("a", 2 * MS)
    assert made.next_wakeup() == 1002 * MS


def test_a_sequence_waits_in_the_backlog_no_longer_than_its_timeout():
    made = scheduler("a", size=1)
    send(made, 1, START)
    send(made, 2, START, "b1", timeout_us=9000)
    send(made, 2, 0, "b2", timeout_us=3000, now=2 * MS)
    send(made, 3, START | END)
    assert made.next_wakeup() == 5 * MS
    actions = made.wake(5 * MS)
    text = "timeout of the corresponding sequence has been expired"
    assert refused(actions) == [("b1", text), ("b2", text)]
    assert actions[0].error.code is Code.UNAVAILABLE
    assert refused(send(made, 2, END, now=5 * MS)) == [(2, start_error(2))]
    send(made, 1, END, now=6 * MS)
    made.on_finished("a", 6 * MS)
    assert rows(made.on_finished("a", 6 * MS)) == [("a", [3])]


def test_cancelling_a_request_cancels_what_waits_of_its_sequence():
    made = scheduler("a", size=1)
    requests = [Request(number, correlation_id=1, flags=START if not number else 0) for number in range(3)]
    for request in requests:
        made.enqueue(request, 0)
    send(made, 2, START)
    assert not made.withdraw(requests[0]), "it is being executed"
    assert made.withdraw(requests[2])
    assert not made.withdraw(requests[2])
    assert made.next_wakeup() == 0
    actions = made.wake(0)
    assert refused(actions) == [(1, "")]
    assert actions[0].error.code is Code.CANCELLED
    assert rows(made.on_finished("a")) == [("a", [2])]
    assert refused(send(made, 1)) == [(1, start_error(1))]


def test_a_cancelled_sequence_leaves_the_backlog():
    made = scheduler("a", size=1)
    send(made, 1, START | END)
    request = Request(2, correlation_id=2, flags=START)
    made.enqueue(request, 0)
    assert made.withdraw(request)
    assert made.wake(0) == made.on_finished("a") == []
    assert made.waiting_count == 0
    assert rows(send(made, 3, START)) == [("a", [3])], "it took no slot with it"


def test_a_slot_that_a_cancelled_sequence_left_is_the_backlogs():
    made = scheduler("a", size=1)
    requests = [Request(number, correlation_id=1, flags=START if not number else 0) for number in range(2)]
    made.enqueue(requests[0], 0)
    made.on_finished("a")
    [first] = made.enqueue(requests[1], 0)
    made.undo_dispatch("a", first.items)
    send(made, 2, START)
    made.withdraw(requests[1])
    assert rows(send(made, 3, START)) == [("a", [2])]


def test_a_sequence_that_was_given_a_slot_in_time_does_not_expire():
    made = scheduler("a", size=1)
    send(made, 1, START | END)
    send(made, 2, START, "b1", timeout_us=3000)
    send(made, 2, 0, "b2")
    assert rows(made.on_finished("a", 1 * MS)) == [("a", ["b1"])]
    assert made.next_wakeup() is None
    assert made.wake(9 * MS) == []
    assert rows(made.on_finished("a", 9 * MS)) == [("a", ["b2"])]


def test_timeouts_of_sequences_that_left_the_backlog_are_not_kept():
    made = scheduler("a", size=1)
    send(made, 5000, START)
    for number in range(1, 1000):
        request = Request(number, correlation_id=number, flags=START | END, timeout_us=10**9)
        made.enqueue(request, 0)
        assert made.withdraw(request)
        made.wake(0)
    assert len(made._backlog._expiries) < 100


def test_sequences_in_the_backlog_expire_in_time_after_many_others_have_left_it():
    made = scheduler()
    requests = {
        number: Request(number, correlation_id=number, flags=START, timeout_us=number) for number in range(200, 0, -1)
    }
    for request in requests.values():
        made.enqueue(request, 0)
    for number in set(requests) - set(range(1, 200, 5)):
        assert made.withdraw(requests[number])
    send(made, 201, START, timeout_us=201)
    for number in (*range(1, 200, 5), 201):
        assert made.next_wakeup() == number * 1000
        assert [name for name, _ in refused(made.wake(number * 1000))] == [number]
