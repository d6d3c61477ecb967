"""The default scheduler under any order of events, and what its callers rely on."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from naiad.engine.scheduling.fifo import FifoScheduler


class Scheduling(RuleBasedStateMachine):
    """Items are numbers in the order they came; the machine plays guests that work them off, refuse them and die."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: FifoScheduler[str, int] = FifoScheduler()
        self.held: dict[str, list[int]] = {}
        self.depth: dict[str, int] = {}
        self.arrived = 0
        self.instances = 0
        self.gone: set[int] = set()
        self.alone: set[int] = set()

    def take(self, decisions) -> None:
        """Carry decisions out."""
        taken = [item for _, items in decisions for item in items]
        assert taken == sorted(taken), "a later request overtook an earlier one"
        for instance, items in decisions:
            assert len(items) == 1
            assert not self.held[instance] or not self.alone & set(items)
            self.held[instance] += items
            assert len(self.held[instance]) <= self.depth[instance]

    @rule(alone=st.booleans())
    def enqueue(self, alone):
        if alone:
            self.alone.add(self.arrived)
        self.arrived += 1
        self.take(self.scheduler.enqueue(self.arrived - 1, needs_idle=alone))

    @rule()
    def add(self):
        name = f"i{self.instances}"
        self.instances += 1
        self.held[name], self.depth[name] = [], 1
        self.take(self.scheduler.add_instance(name))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), depth=st.integers(1, 4))
    def set_depth(self, data, depth):
        name = data.draw(st.sampled_from(sorted(self.held)))
        # A smaller depth takes effect as work is done; what is held already stays.
        self.depth[name] = max(depth, len(self.held[name]))
        self.scheduler.set_depth(name, self.depth[name])

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def finish(self, data):
        name = data.draw(st.sampled_from(sorted(name for name, items in self.held.items() if items)))
        self.gone.add(self.held[name].pop(0))
        self.take(self.scheduler.on_finished(name))

    @precondition(lambda self: all(self.held.values()) and any(len(items) > 1 for items in self.held.values()))
    @rule(data=st.data())
    def undo_dispatch(self, data):
        """The item dispatched last finds no room in the segment; none was idle, or that one would have been given it."""
        name = data.draw(st.sampled_from(sorted(name for name, items in self.held.items() if len(items) > 1)))
        self.scheduler.undo_dispatch(name, (self.held[name].pop(),))
        self.depth[name] = max(1, len(self.held[name]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def die(self, data):
        name = data.draw(st.sampled_from(sorted(self.held)))
        items = self.held.pop(name)
        self.scheduler.remove_instance(name)
        self.gone.update(items[:1])
        before = list(self.scheduler.waiting)
        decisions = self.scheduler.requeue(tuple(items[1:]))
        taken = [item for _, each in decisions for item in each]
        assert taken + list(self.scheduler.waiting) == items[1:] + before
        self.take(decisions)

    @precondition(lambda self: self.scheduler.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        item = data.draw(st.sampled_from(list(self.scheduler.waiting)))
        assert self.scheduler.withdraw(item)
        assert not self.scheduler.withdraw(item)
        self.gone.add(item)

    @rule()
    def drain(self):
        waiting = list(self.scheduler.waiting)
        assert list(self.scheduler.drain()) == waiting
        self.gone.update(waiting)

    @invariant()
    def no_item_is_lost_or_doubled(self):
        present = [item for items in self.held.values() for item in items] + list(self.scheduler.waiting)
        assert sorted(present + list(self.gone)) == list(range(self.arrived))

    @invariant()
    def nothing_waits_beside_an_idle_instance(self):
        assert not self.scheduler.waiting or all(self.held.values())


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=100, stateful_step_count=40)


def instances(*names: str, depth: int = 1) -> FifoScheduler[str, int]:
    """A scheduler with instances, each of which may hold *depth* requests."""
    scheduler: FifoScheduler[str, int] = FifoScheduler()
    for name in names:
        scheduler.add_instance(name)
        scheduler.set_depth(name, depth)
    return scheduler


def test_the_least_loaded_instance_is_first():
    scheduler = instances("a", "b", depth=3)
    assert [scheduler.enqueue(item)[0].instance for item in range(6)] == ["a", "b"] * 3
    assert scheduler.enqueue(6) == []


def test_a_request_that_has_just_arrived_gets_an_instance_at_once_unless_one_waits():
    scheduler = instances("a", "b")
    assert scheduler.instance_count == 2
    scheduler.set_depth("a", 2)
    for expected in (("a", 0), ("b", 0), ("a", 1)):
        assert scheduler.next_instance() == expected
        assert scheduler.dispatch_at_once() == expected[0]
    assert scheduler.next_instance() is scheduler.dispatch_at_once() is None, "all are full"
    scheduler.set_depth("b", 2)
    assert scheduler.enqueue(1, needs_idle=True) == []
    assert scheduler.next_instance() is scheduler.dispatch_at_once() is None, "it would overtake the one that waits"


def test_an_undone_dispatch_waits_for_the_one_before_and_its_instance_holds_one_from_then_on():
    scheduler = instances("a", depth=2)
    for item in range(3):
        scheduler.enqueue(item)
    scheduler.undo_dispatch("a", (1,))
    assert scheduler.wake() == []
    assert scheduler.on_finished("a") == [("a", (1,))]
    assert scheduler.on_finished("a") == [("a", (2,))]


def test_reports_about_an_instance_that_is_gone_change_nothing():
    scheduler: FifoScheduler[str, int] = FifoScheduler()
    scheduler.remove_instance("never there")
    scheduler.set_depth("never there", 5)
    assert scheduler.on_finished("never there") == []
    scheduler.undo_dispatch("never there", (1,))
    assert scheduler.add_instance("a") == [("a", (1,))]


def test_a_request_that_comes_alone_waits_for_an_instance_that_holds_nothing():
    """A model that waits for the answer must not lie before it in the same instance."""
    scheduler = instances("a", "b", depth=4)
    assert scheduler.enqueue(0) == [("a", (0,))]
    assert scheduler.enqueue(1, needs_idle=True) == [("b", (1,))]
    assert scheduler.enqueue(2, needs_idle=True) == []
    assert scheduler.enqueue(3) == []
    assert scheduler.on_finished("b") == [("b", (2,)), ("a", (3,))]
    scheduler.on_finished("a")
    scheduler.remove_instance("b")
    assert scheduler.requeue((2,)) == [], "it stays so when it is put back"
    assert scheduler.on_finished("a") == [("a", (2,))]


def test_a_withdrawn_request_that_needed_an_idle_instance_does_not_block_others_and_is_forgotten():
    scheduler = instances("a", depth=4)
    scheduler.enqueue(0)
    assert scheduler.enqueue(1, needs_idle=True) == []
    assert scheduler.enqueue(2) == []
    assert scheduler.waiting_count == 2
    assert scheduler.withdraw(1)
    assert scheduler.wake() == [("a", (2,))]
    assert scheduler.next_wakeup() is None
    assert scheduler.enqueue(1) == [("a", (1,))]
