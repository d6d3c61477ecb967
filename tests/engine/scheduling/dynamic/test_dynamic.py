"""Dynamic batching: what is promised about queues, priorities, time and instances."""

from __future__ import annotations

import pytest
from engine.scheduling.requests import MS, Request, names

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze
from naiad.core.errors import Code
from naiad.engine.scheduling.dynamic.batch_rule import BatchRule
from naiad.engine.scheduling.dynamic.queue import QueuePolicy
from naiad.engine.scheduling.dynamic.scheduler import DynamicScheduler
from naiad.engine.scheduling.interface import Dispatch, Rejection


def scheduler(*instances, size=8, preferred=(), delay_us=0, policy=None, **levels):
    made: DynamicScheduler[str, Request] = DynamicScheduler(BatchRule(size, preferred, delay_us), policy, **levels)
    for instance in instances:
        assert made.add_instance(instance) == []
    return made


def enqueue(made, *requests, now=0):
    return [action for request in requests for action in made.enqueue(request, now)]


def refused(actions):
    return [(action.item.name, action.error.message) for action in actions if isinstance(action, Rejection)]


def dispatched(actions):
    return [(action.instance, names(action)) for action in actions if isinstance(action, Dispatch)]


def test_requests_gather_while_the_instance_works():
    made = scheduler("a")
    assert dispatched(enqueue(made, *map(Request, range(6)))) == [("a", [0])]
    assert dispatched(made.on_finished("a")) == [("a", [1, 2, 3, 4, 5])]


def test_a_batch_waits_for_its_delay_and_no_longer():
    made = scheduler("a", delay_us=5000)
    assert enqueue(made, Request(0), now=10 * MS) == []
    assert enqueue(made, Request(1), now=12 * MS) == []
    assert made.next_wakeup() == 15 * MS
    assert made.wake(15 * MS - 1) == []
    assert dispatched(made.wake(15 * MS)) == [("a", [0, 1])]
    assert made.next_wakeup() is None
    made.on_finished("a")
    assert enqueue(made, Request(2), now=20 * MS) == []
    assert dispatched(enqueue(made, Request(3), now=25 * MS)) == [("a", [2, 3])], "it comes when the delay is over"


def test_a_batch_that_reaches_a_preferred_size_goes_at_once():
    made = scheduler("a", preferred=[4], delay_us=5000)
    assert enqueue(made, *map(Request, range(3))) == []
    assert dispatched(enqueue(made, Request(3))) == [("a", [0, 1, 2, 3])]
    assert enqueue(made, Request(4)) == []
    assert made.next_wakeup() is None, "its instance works: there is nothing to wait for"


class CountedRule(BatchRule):
    """Counts the decisions, each of which walks over the batch that waits."""

    count = 0

    def decide(self, *arguments):
        self.count += 1
        return super().decide(*arguments)


def test_a_request_that_joins_a_batch_that_waits_is_decided_about_only_if_it_may_send_it():
    rule = CountedRule(100, [50, 100], 5000)
    made: DynamicScheduler[str, Request] = DynamicScheduler(rule)
    made.add_instance("a")
    assert enqueue(made, *(Request(number, batch_size=2, shape_key="x") for number in range(24))) == []
    assert rule.count == 1
    assert dispatched(enqueue(made, Request(24, batch_size=2, shape_key="x"))) == [("a", [*range(25)])]
    assert rule.count == 2
    assert enqueue(made, *map(Request, range(100))) == []
    assert rule.count == 2, "while the instance works, there is nothing to decide"


@pytest.mark.parametrize(
    "options",
    [
        {"levels": 2, "default_level": 1},
        {"policy": QueuePolicy(timeout_us=1000, delays_expired=True)},
    ],
    ids=["of a higher level", "before delayed ones"],
)
def test_a_request_that_comes_before_those_of_the_batch_that_waits_may_be_sent_alone(options):
    made = scheduler("a", preferred=[2, 6], delay_us=5000, **options)
    assert enqueue(made, Request(0, batch_size=3, priority=2)) == []
    assert made.wake(1 * MS) == []
    assert dispatched(enqueue(made, Request(1, batch_size=2, priority=1), now=1 * MS)) == [("a", [1])]


def test_a_request_of_another_shape_sends_the_batch_that_waits():
    made = scheduler("a", delay_us=5000)
    assert enqueue(made, Request(0, shape_key="x"), Request(1, shape_key="x")) == []
    assert dispatched(enqueue(made, Request(2, shape_key="y"))) == [("a", [0, 1])]


def test_the_freest_instance_is_given_the_batch():
    made = scheduler("a", "b")
    assert dispatched(enqueue(made, Request(0), Request(1), Request(2))) == [("a", [0]), ("b", [1])]
    assert dispatched(made.on_finished("b")) == [("b", [2])]


def test_an_instance_that_works_is_given_complete_batches_only():
    made = scheduler("a", size=2)
    made.set_depth("a", 2)
    assert dispatched(enqueue(made, Request(0), Request(1))) == [("a", [0])]
    assert dispatched(enqueue(made, Request(2))) == [("a", [1, 2])]
    assert enqueue(made, Request(3), Request(4)) == [], "it holds as many as it may"


def test_a_request_that_comes_alone_goes_to_an_instance_that_holds_nothing():
    made = scheduler("a", size=1)
    made.set_depth("a", 4)
    assert dispatched(enqueue(made, Request(0), Request(1))) == [("a", [0]), ("a", [1])]
    assert made.enqueue(Request(2), 0, needs_idle=True) == []
    assert made.on_finished("a") == []
    assert dispatched(made.on_finished("a")) == [("a", [2])]


def test_a_request_that_needs_an_idle_instance_keeps_its_batch_from_one_that_works():
    made = scheduler("a", size=2)
    made.set_depth("a", 2)
    enqueue(made, Request(0))
    assert made.enqueue(Request(1), 0, needs_idle=True) == []
    assert enqueue(made, Request(2)) == [], "as many as fit, and one of them may not follow other work"
    assert dispatched(made.on_finished("a")) == [("a", [1, 2])]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ({"levels": 3, "default_level": 2}, [1, 2, 0, 4, 3]),
        ({"policies": {1: QueuePolicy(max_size=1)}}, [3, 2, 0, 1, 4]),
    ],
    ids=["three levels", "without levels"],
)
def test_higher_priorities_go_first_and_unknown_ones_are_the_default(levels, expected):
    made = scheduler(size=8, **levels)
    enqueue(made, *(Request(number, priority=number) for number in (3, 2, 0, 1, 4)))
    assert dispatched(made.add_instance("a")) == [("a", expected)]


def test_a_full_level_refuses_and_others_do_not():
    made = scheduler(policy=QueuePolicy(max_size=1), levels=2, default_level=1, policies={2: QueuePolicy()})
    actions = enqueue(
        made, Request("a", priority=1), Request("b", priority=1), *(Request(i, priority=2) for i in range(3))
    )
    assert refused(actions) == [("b", "[request id: b] Exceeds maximum queue size")]
    assert actions[0].error.code is Code.UNAVAILABLE
    assert made.waiting_count == 4


def test_a_request_that_waited_too_long_is_refused_and_makes_room_for_a_new_one():
    made = scheduler(policy=QueuePolicy(timeout_us=5000, max_size=2))
    enqueue(made, Request(0), now=0)
    enqueue(made, Request(1), now=1 * MS)
    assert made.next_wakeup() == 5 * MS
    actions = made.wake(5 * MS)
    assert refused(actions) == [(0, "Request timeout expired")]
    assert actions[0].error.code is Code.UNAVAILABLE
    assert made.next_wakeup() == 6 * MS
    enqueue(made, Request(2), now=5 * MS)
    assert refused(enqueue(made, Request(3), now=6 * MS)) == [(1, "Request timeout expired")]
    assert made.waiting_count == 2


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        (QueuePolicy(timeout_us=5), 0),
        (QueuePolicy(timeout_us=5000, allow_override=True), 5),
        (QueuePolicy(timeout_us=5, delays_expired=True), 0),
    ],
)
def test_a_timeout_of_a_few_microseconds_expires_though_an_instance_is_idle(policy, asked):
    made = scheduler("a", policy=policy)
    assert enqueue(made, Request(0, timeout_us=asked)) == []
    assert made.next_wakeup() == 5000
    actions = made.wake(5000)
    if policy.delays_expired:
        assert dispatched(actions) == [("a", [0])]
    else:
        assert refused(actions) == [(0, "Request timeout expired")]
    assert dispatched(enqueue(scheduler("a", policy=QueuePolicy(timeout_us=100)), Request(1))) == [("a", [1])]


def test_an_expired_request_may_be_delayed_behind_the_others():
    made = scheduler(size=1, policy=QueuePolicy(timeout_us=5000, delays_expired=True))
    late = Request("late")
    enqueue(made, Request(0), late, Request(1))
    enqueue(made, Request(2), now=1 * MS)
    assert made.wake(5 * MS) == []
    assert made.withdraw(late)
    assert made.waiting_count == 3
    enqueue(made, Request(3), now=5 * MS)
    assert dispatched(made.add_instance("a", 5 * MS)) == [("a", [2])]
    assert dispatched(made.on_finished("a", 6 * MS)) == [("a", [3])]
    assert dispatched(made.on_finished("a", 90 * MS)) == [("a", [0])]


@pytest.mark.parametrize(
    ("default", "override", "asked", "expected"),
    [
        (5000, True, 3000, 3 * MS),
        (5000, True, 9000, 5 * MS),
        (5000, True, 0, 5 * MS),
        (5000, False, 3000, 5 * MS),
        (0, True, 3000, None),
    ],
)
def test_a_request_may_shorten_its_timeout_where_that_is_allowed(default, override, asked, expected):
    made = scheduler(policy=QueuePolicy(timeout_us=default, allow_override=override))
    enqueue(made, Request(0, timeout_us=asked))
    assert made.next_wakeup() == expected


@pytest.mark.parametrize(
    ("policy", "priority", "asked", "expected"),
    [
        (QueuePolicy(), 0, 3000, None),
        (QueuePolicy(timeout_us=5000), 0, 0, 9 * MS),
        (QueuePolicy(timeout_us=5000), 2, 0, 6 * MS),
        (QueuePolicy(timeout_us=5000, allow_override=True), 1, 3000, 7 * MS),
        (QueuePolicy(timeout_us=5000, delays_expired=True), 0, 0, None),
    ],
)
def test_when_a_request_will_be_refused_is_known_before_it_is_queued(policy, priority, asked, expected):
    made = scheduler(policy=policy, levels=2, default_level=1, policies={2: QueuePolicy(timeout_us=2000)})
    assert made.deadline_of(Request(0, priority=priority, timeout_us=asked), 4 * MS) == expected


def test_a_withdrawn_request_does_not_block_others():
    made = scheduler("a", delay_us=5000, size=2)
    big = Request("big", batch_size=2, shape_key="x")
    enqueue(made, Request("busy", batch_size=2))
    enqueue(made, big, Request(1, shape_key="y"), Request(2, shape_key="y"))
    assert made.withdraw(big)
    assert not made.withdraw(big)
    assert dispatched(made.on_finished("a")) == [("a", [1, 2])]


def test_after_a_withdrawal_the_scheduler_asks_to_be_woken():
    made = scheduler("a", delay_us=5000, size=4, preferred=[2])
    first = Request(0, batch_size=3, shape_key="x")
    made.set_depth("a", 0)
    enqueue(made, first, Request(1, batch_size=2, shape_key="y"))
    made.set_depth("a", 1)
    assert made.withdraw(first)
    assert made.next_wakeup() == 0
    assert dispatched(made.wake(0)) == [("a", [1])]


def test_requests_put_back_are_dispatched_first_and_without_another_delay():
    made = scheduler("a", delay_us=5000)
    requests = [Request(number) for number in range(3)]
    enqueue(made, *requests)
    [dispatch] = made.wake(5 * MS)
    enqueue(made, Request(3), now=5 * MS)
    made.remove_instance("a")
    assert made.requeue(dispatch.items, 5 * MS) == []
    assert dispatched(made.add_instance("b", 5 * MS)) == [("b", [0, 1, 2, 3])]


def test_an_undone_dispatch_waits_for_the_one_before():
    made = scheduler("a", size=2)
    made.set_depth("a", 2)
    enqueue(made, Request(0))
    [dispatch] = enqueue(made, Request(1), Request(2))
    assert names(dispatch.first(1)) == [1]
    made.undo_dispatch("a", dispatch.items)
    assert enqueue(made, Request(3), Request(4)) == []
    assert dispatched(made.on_finished("a")) == [("a", [1, 2])], "one batch at a time from now on"


def test_draining_returns_all_requests_in_order():
    made = scheduler(levels=2, default_level=1, policy=QueuePolicy(timeout_us=1))
    enqueue(made, Request("low", priority=2), Request("high", priority=1))
    assert [request.name for request in made.drain()] == ["high", "low"]
    assert made.waiting_count == 0
    assert made.next_wakeup() is None
    made = scheduler("a", delay_us=5000)
    enqueue(made, Request(0), Request(1))
    assert [request.name for request in made.drain()] == [0, 1]
    assert made.next_wakeup() is None


def test_a_thousand_levels_leave_nothing_behind():
    made = scheduler("a", size=1, levels=2**64 - 1, default_level=5)
    enqueue(made, *(Request(number, priority=number) for number in range(1, 1000)))
    while made.waiting_count:
        made.on_finished("a")
    assert repr(made) == "<DynamicScheduler <WaitingQueue waiting=0 size=0 levels=[5]> <InstanceLoads load=[1]>>"


def test_deadlines_of_requests_that_left_in_time_are_not_kept():
    made = scheduler("a", size=1, policy=QueuePolicy(timeout_us=10**9))
    for number in range(1000):
        enqueue(made, Request(number))
        made.on_finished("a")
    assert len(made._queue._deadlines) < 200


def test_requests_expire_in_time_after_many_others_have_left():
    made = scheduler(policy=QueuePolicy(timeout_us=10**6, allow_override=True))
    requests = {number: Request(number, timeout_us=number) for number in range(200, 0, -1)}
    enqueue(made, *requests.values())
    for number in set(requests) - set(range(1, 200, 5)):
        assert made.withdraw(requests[number])
    made.wake(0)
    enqueue(made, Request(201, timeout_us=201))
    for number in (*range(1, 200, 5), 201):
        assert made.next_wakeup() == number * 1000
        assert [name for name, _ in refused(made.wake(number * 1000))] == [number]


def config(text):
    from google.protobuf import text_format

    return freeze(text_format.Parse(text, pb.ModelConfig()))


def test_a_scheduler_takes_all_settings_from_the_configuration():
    made = DynamicScheduler.of(
        config("""
        max_batch_size: 4
        dynamic_batching {
          preferred_batch_size: 2
          max_queue_delay_microseconds: 100
          priority_levels: 2
          default_priority_level: 2
          default_queue_policy { max_queue_size: 1 }
          priority_queue_policy { key: 1 value { default_timeout_microseconds: 7 timeout_action: DELAY } }
        }""")
    )
    assert made.add_instance("a") == []
    assert enqueue(made, Request(0, priority=1)) == []
    assert made.next_wakeup() == 7000
    assert made.wake(7000) == []
    assert made.next_wakeup() == 100_000
    assert dispatched(enqueue(made, Request(1), now=50_000)) == [("a", [0, 1])]
    assert refused(enqueue(made, Request(2), Request(3), now=50_000)) == [
        (3, "[request id: 3] Exceeds maximum queue size")
    ]


def test_without_dynamic_batching_batches_are_of_one():
    made = DynamicScheduler.of(config("max_batch_size: 4"))
    enqueue(made, Request(0), Request(1))
    assert dispatched(made.add_instance("a")) == [("a", [0])]
