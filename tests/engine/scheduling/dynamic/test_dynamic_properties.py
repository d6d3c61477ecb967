"""Dynamic batching under any order of events: nothing lost, nothing doubled, every limit kept."""

from __future__ import annotations

from engine.scheduling.clocked import Clocked
from engine.scheduling.requests import MS, Request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from naiad.engine.scheduling.dynamic.batch_rule import BatchRule
from naiad.engine.scheduling.dynamic.queue import QueuePolicy
from naiad.engine.scheduling.dynamic.scheduler import DynamicScheduler
from naiad.engine.scheduling.interface import Dispatch, Rejection

POLICIES = st.builds(
    QueuePolicy,
    max_size=st.sampled_from([0, 3]),
    timeout_us=st.sampled_from([0, 2000, 5000]),
    delays_expired=st.booleans(),
    allow_override=st.booleans(),
)


class Batching(Clocked):
    """The machine plays clients, guests that work batches off in order, refuse them and die, and a clock."""

    @initialize(
        size=st.integers(0, 6),
        preferred=st.lists(st.integers(1, 6), max_size=2),
        delay=st.sampled_from([0, 0, 3]),
        levels=st.sampled_from([0, 0, 2]),
        policy=POLICIES,
        special=POLICIES,
    )
    def start(self, size, preferred, delay, levels, policy, special):
        self.limit = max(size, 1)
        self.delay = delay * MS
        self.policies = {0: policy, 1: special, 2: policy} if levels else {0: policy}
        rule = BatchRule(size, [each for each in preferred if each <= self.limit], delay * 1000)
        self.scheduler: DynamicScheduler[str, Request] = DynamicScheduler(
            rule, policy, levels=levels, default_level=min(levels, 1), policies={1: special}
        )
        self.levels = levels
        self.now = 0
        self.arrived: list[Request] = []
        self.waiting: dict[Request, int] = {}
        self.requeue: set[Request] = set()
        self.alone: set[Request] = set()
        self.held: dict[str, list[tuple[Request, ...]]] = {}
        self.depth: dict[str, int] = {}
        self.gone: list[Request] = []

    def level(self, request):
        return (request.priority if 0 < request.priority <= self.levels else 1) if self.levels else 0

    def deadline(self, request):
        policy = self.policies[self.level(request)]
        timeout = policy.timeout_us
        if policy.allow_override and 0 < request.timeout_us < timeout:
            timeout = request.timeout_us
        return self.waiting[request] + timeout * 1000 if timeout and request not in self.requeue else None

    def take(self, actions):
        for action in actions:
            if isinstance(action, Dispatch):
                self.take_batch(action)
            else:
                assert isinstance(action, Rejection)
                self.gone.append(action.item)
                if action.error.message == "Request timeout expired":
                    assert self.deadline(action.item) <= self.now
                    assert not self.policies[self.level(action.item)].delays_expired
                self.waiting.pop(action.item, None)
        assert self.scheduler.wake(self.now) == [], "a decision was missed"

    def take_batch(self, action):
        assert action.items
        held = self.held[action.instance]
        assert len(held) < self.depth[action.instance]
        assert held == [] or not self.alone & set(action.items)
        assert all(self.held.values()) or held == [], "another instance holds nothing"
        assert sum(request.batch_size for request in action.items) <= self.limit
        assert len({request.shape_key for request in action.items} - {None}) <= 1
        self.check_order(action.items)
        for request in action.items:
            del self.waiting[request]
            self.requeue.discard(request)
        held.append(action.items)

    def check_order(self, items):
        """Nothing of the same level that came before and is not delayed is left behind."""
        for request in items:
            for other in self.waiting:
                if other in items or other in self.requeue or self.level(other) != self.level(request):
                    continue
                if self.arrived.index(other) < self.arrived.index(request) and request not in self.requeue:
                    assert self.deadline(other) is not None
                    assert self.deadline(other) <= self.now

    @rule(
        size=st.integers(1, 6),
        key=st.sampled_from([None, "x", "x", "y"]),
        priority=st.integers(0, 3),
        timeout=st.sampled_from([0, 1000, 9000]),
        alone=st.sampled_from([False, False, True]),
    )
    def enqueue(self, size, key, priority, timeout, alone):
        request = Request(len(self.arrived), min(size, self.limit), key, priority, timeout)
        self.arrived.append(request)
        self.waiting[request] = self.now
        if alone:
            self.alone.add(request)
        self.take(self.scheduler.enqueue(request, self.now, needs_idle=alone))

    @precondition(lambda self: len(self.depth) < 6)
    @rule()
    def add(self):
        name = f"i{len(self.depth)}"
        self.held[name], self.depth[name] = [], 1
        self.take(self.scheduler.add_instance(name, self.now))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), depth=st.integers(1, 3))
    def set_depth(self, data, depth):
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.depth[name] = max(depth, len(self.held[name]))
        self.scheduler.set_depth(name, self.depth[name])
        self.take(self.scheduler.wake(self.now))

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def finish(self, data):
        name = data.draw(st.sampled_from(sorted(name for name, batches in self.held.items() if batches)))
        self.gone += self.held[name].pop(0)
        self.take(self.scheduler.on_finished(name, self.now))

    @precondition(lambda self: all(self.held.values()) and any(len(batches) > 1 for batches in self.held.values()))
    @rule(data=st.data())
    def undo_dispatch(self, data):
        name = data.draw(st.sampled_from(sorted(name for name, batches in self.held.items() if len(batches) > 1)))
        items = self.held[name].pop()
        self.scheduler.undo_dispatch(name, items)
        self.return_to_queue(items)
        self.depth[name] = max(1, len(self.held[name]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def die(self, data):
        name = data.draw(st.sampled_from(sorted(self.held)))
        batches = self.held.pop(name)
        self.scheduler.remove_instance(name)
        for batch in batches[:1]:
            self.gone += batch
        items = tuple(request for batch in batches[1:] for request in batch)
        self.return_to_queue(items)
        self.take(self.scheduler.requeue(items, self.now))

    def return_to_queue(self, items):
        self.requeue.update(items)
        self.alone.update(items)
        self.waiting.update(dict.fromkeys(items, self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        request = data.draw(st.sampled_from(list(self.waiting)))
        assert self.scheduler.withdraw(request)
        del self.waiting[request]
        self.gone.append(request)
        assert not self.scheduler.withdraw(request)
        at = self.scheduler.next_wakeup()
        if at is not None and at <= self.now:
            self.take(self.scheduler.wake(self.now))

    @rule()
    def drain(self):
        drained = list(self.scheduler.drain())
        assert set(drained) == set(self.waiting)
        self.gone += drained
        self.waiting.clear()

    @invariant()
    def no_request_is_lost_or_doubled(self):
        if hasattr(self, "held"):
            present = [request for batches in self.held.values() for batch in batches for request in batch]
            everywhere = [request.name for request in (*present, *self.waiting, *self.gone)]
            assert sorted(everywhere) == list(range(len(self.arrived)))
            assert self.scheduler.waiting_count == len(self.waiting)

    @invariant()
    def nothing_waits_beside_an_idle_instance_but_for_its_delay(self):
        if hasattr(self, "held") and self.waiting and not all(self.held.values()):
            oldest = min(0 if request in self.requeue else at for request, at in self.waiting.items())
            assert self.delay
            assert self.now < oldest + self.delay
            assert self.scheduler.next_wakeup() <= oldest + self.delay

    @invariant()
    def nothing_waits_beyond_its_deadline(self):
        if hasattr(self, "held"):
            for request in self.waiting:
                deadline = self.deadline(request)
                delays = self.policies[self.level(request)].delays_expired
                assert deadline is None or delays or deadline > self.now
                assert deadline is None or delays or self.scheduler.next_wakeup() <= deadline


TestBatching = Batching.TestCase
TestBatching.settings = settings(max_examples=150, stateful_step_count=40)
