"""The rate limiter: resources are never overdrawn, nobody waits for ever, turns go by priority."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from naiad.core.errors import Code, ConfigError
from naiad.engine.scheduling.rate_limit import RateLimiter, ResourceCapacity, ResourceNeed

R1 = [ResourceNeed("R", 1)]


def limiter(*limits, **instances):
    made: RateLimiter[str, object] = RateLimiter(limits)
    for name, options in instances.items():
        made.register(name, **options)
    return made


def test_an_instance_waits_for_the_resource_another_uses():
    made = limiter(a={"resources": R1}, b={"resources": R1})
    assert made.stage("a", 1) == [("a", 1)]
    assert made.stage("b", 2) == []
    assert made.on_finished("a") == [("b", 2)]
    assert made.on_finished("b") == []


def test_the_default_capacity_is_the_largest_need_of_an_instance():
    made = limiter(a={"resources": [ResourceNeed("R", 3)]}, b={"resources": R1}, c={"resources": R1})
    assert made.stage("b", 1) == [("b", 1)]
    assert made.stage("c", 2) == [("c", 2)]
    assert made.stage("a", 3) == []
    assert made.on_finished("b") == []
    assert made.on_finished("c") == [("a", 3)]


def test_the_operator_may_set_the_capacity():
    made = limiter(ResourceCapacity("R", 2), a={"resources": R1}, b={"resources": R1}, c={"resources": R1})
    assert [made.stage(name, name) for name in "abc"] == [[("a", "a")], [("b", "b")], []]


def test_devices_have_their_own_resources_and_share_global_ones():
    made = limiter(a={"resources": R1, "device": 0}, b={"resources": R1, "device": 1})
    assert made.stage("a", 1) == [("a", 1)]
    assert made.stage("b", 2) == [("b", 2)]
    shared = [ResourceNeed("G", 1, is_global=True)]
    made = limiter(a={"resources": shared, "device": 0}, b={"resources": shared, "device": 1})
    assert made.stage("a", 1) == [("a", 1)]
    assert made.stage("b", 2) == []
    made = limiter(a={"resources": [ResourceNeed("R", 3)], "device": 1}, b={"resources": [*shared, *R1], "device": 1})
    assert made.describe_capacities() == (
        "\nMax Resource Map===>\n\tDevice: GLOBAL\n\t\tResource: G\t Count: 1\n"
        "\tDevice: 1\n\t\tResource: R\t Count: 3\n"
    )
    made.unregister("a")
    assert "R\t Count: 1\n" in made.describe_capacities()


def test_work_without_resources_never_waits():
    made = limiter(a={"resources": R1}, b={"resources": R1}, free={})
    made.stage("a", 1)
    made.stage("b", 2)
    assert made.stage("free", 3) == [("free", 3)]
    assert made.on_finished("free") == []


def test_a_request_that_cannot_be_granted_is_not_overtaken():
    made = limiter(a={"resources": [ResourceNeed("R", 2)]}, b={"resources": R1}, c={"resources": R1})
    made.stage("b", 1)
    assert made.stage("a", 2) == []
    assert made.stage("c", 3) == []
    assert made.on_finished("b") == [("a", 2)]
    assert made.on_finished("a") == [("c", 3)]


@pytest.mark.parametrize(("first", "second", "share"), [(1, 2, 200), (0, 2, 200), (1, 1, 150), (5, 1, 50)])
def test_turns_go_by_priority(first, second, share):
    """Both always have work; of 300 turns those of the first are its share."""
    made = limiter(a={"resources": R1, "priority": first}, b={"resources": R1, "priority": second})
    grants = [*made.stage("a", None), *made.stage("b", None)]
    turns = 0
    for _ in range(300):
        [(instance, _)] = grants
        turns += instance == "a"
        made._members[instance].work.append(None)
        grants = made.on_finished(instance)
    assert abs(turns - share) <= 2


def test_a_lost_instance_gives_back_what_it_used_and_reports_about_it_change_nothing():
    made = limiter(a={"resources": R1}, b={"resources": R1})
    made.stage("a", 1)
    made.stage("b", 2)
    assert made.unregister("a") == [("b", 2)]
    assert made.unregister("a") == made.on_finished("a") == []
    assert made.withdraw("a", 1) is None


def test_turns_of_the_others_stay_in_order_when_an_instance_is_lost():
    made = limiter(holder={"resources": R1}, lost={"resources": R1})
    names = {"twice": 2, "once": 1, "thrice": 3}
    for name, count in names.items():
        made.register(name, R1)
        for _ in range(count):
            made.stage(name, None)
            made.on_finished(name)
    for name in ("holder", "lost", *names):
        made.stage(name, None)
    assert made.unregister("lost") == []
    for before, name in (("holder", "once"), ("once", "twice"), ("twice", "thrice")):
        assert made.on_finished(before) == [(name, None)]


def test_a_withdrawn_request_is_not_granted_and_does_not_block_others():
    made = limiter(a={"resources": R1}, b={"resources": [ResourceNeed("R", 2)]}, c={"resources": R1})
    made.stage("a", 1)
    made.stage("b", 2)
    assert made.stage("c", 3) == []
    assert made.withdraw("b", 2) == [("c", 3)]
    assert made.withdraw("b", 2) is made.withdraw("a", 1) is None
    assert made.on_finished("a") == []


def test_it_is_known_which_instances_staged_work_waits_for():
    both = [*R1, ResourceNeed("S", 2)]
    s1 = [ResourceNeed("S", 1)]
    made = limiter(ResourceCapacity("R", 1), ResourceCapacity("S", 2), a={"resources": R1}, b={"resources": s1})
    made.register("both", both)
    made.register("last", s1)
    assert made.stage("a", 1) == [("a", 1)]
    assert made.stage("b", 2) == [("b", 2)]
    assert made.holders_before("a") == [["a"]], "its own work is done first"
    assert made.holders_before("both") == [], "it has no work"
    assert made.stage("both", 3) == made.stage("last", 4) == []
    assert made.holders_before("both") == made.holders_before("last") == [["a"], ["b"]]
    assert made.on_finished("b") == []
    assert made.holders_before("last") == [["a"]]


def test_needs_beyond_the_capacity_are_refused():
    with pytest.raises(ConfigError) as caught:
        limiter(ResourceCapacity("R", 2), ResourceCapacity("S", 9), a={"resources": [ResourceNeed("R", 4)]})
    assert caught.value.message == (
        'Resource count for "R" is limited to 2 which will prevent scheduling of one or more model instances, '
        "the minimum required count is 4"
    )
    assert caught.value.code is Code.INVALID_ARG


def test_a_limit_of_one_device_does_not_apply_to_another():
    limits = [ResourceCapacity("R", number, device=device) for device, number in ((1, 2), (2, 1))]
    with pytest.raises(ConfigError, match="is limited to 0"):
        limiter(*limits, a={"resources": R1, "device": 0})
    with pytest.raises(ConfigError, match="is limited to 1"):
        limiter(*limits, a={"resources": [ResourceNeed("R", 2)], "device": 2})
    limits.append(ResourceCapacity("R", 1))
    made = limiter(*limits, a={"resources": R1, "device": 1}, b={"resources": R1, "device": 3})
    assert "Device: 1\n\t\tResource: R\t Count: 2\n" in made.describe_capacities(), "the larger one"
    assert "Device: 3\n\t\tResource: R\t Count: 1\n" in made.describe_capacities()
    limiter(ResourceCapacity("R", 2, device=1), a={"resources": [ResourceNeed("R", 2, is_global=True)]})


def test_a_resource_is_either_global_or_of_a_device():
    made = limiter(a={"resources": R1})
    with pytest.raises(ConfigError) as caught:
        made.register("b", [ResourceNeed("R", 1, is_global=True)])
    assert caught.value.message == (
        'Resource "R" is present as both global and device-specific resource in the model configuration.'
    )
    assert made.stage("a", 1) == [("a", 1)]
    made.register("c", R1)  # nothing is left of the one that was refused


class Limiting(RuleBasedStateMachine):
    """Instances of three kinds come, work and go."""

    @initialize(limit=st.sampled_from([(), (ResourceCapacity("R", 4), ResourceCapacity("G", 3))]))
    def start(self, limit):
        self.limiter: RateLimiter[str, int] = RateLimiter(limit)
        self.amount = {"R": 4, "G": 3} if limit else None
        self.needs: dict[str, list[ResourceNeed]] = {}
        self.waiting: dict[str, list[int]] = {}
        self.working: dict[str, list[int]] = {}
        self.staged = 0

    def take(self, grants):
        for instance, work in grants:
            assert self.waiting[instance].pop(0) == work, "an instance's work is done in order"
            assert not self.working[instance] or not self.needs[instance]
            self.working[instance].append(work)

    @precondition(lambda self: len(self.needs) < 6)
    @rule(r=st.integers(0, 3), g=st.integers(0, 3), priority=st.integers(0, 3), number=st.integers(0, 9))
    def register(self, r, g, priority, number):
        name = f"i{number}"
        if name not in self.needs:
            needs = [ResourceNeed("R", r)] * bool(r) + [ResourceNeed("G", g, is_global=True)] * bool(g)
            self.limiter.register(name, needs, priority=priority)
            self.needs[name], self.waiting[name], self.working[name] = needs, [], []

    @precondition(lambda self: self.needs)
    @rule(data=st.data())
    def stage(self, data):
        name = data.draw(st.sampled_from(sorted(self.needs)))
        self.staged += 1
        self.waiting[name].append(self.staged)
        self.take(self.limiter.stage(name, self.staged))

    @precondition(lambda self: any(self.working.values()))
    @rule(data=st.data())
    def finish(self, data):
        name = data.draw(st.sampled_from(sorted(name for name, work in self.working.items() if work)))
        self.working[name].pop(0)
        self.take(self.limiter.on_finished(name))

    @precondition(lambda self: self.needs)
    @rule(data=st.data())
    def unregister(self, data):
        name = data.draw(st.sampled_from(sorted(self.needs)))
        del self.needs[name], self.waiting[name], self.working[name]
        self.take(self.limiter.unregister(name))

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def withdraw(self, data):
        name = data.draw(st.sampled_from(sorted(name for name, work in self.waiting.items() if work)))
        grants = self.limiter.withdraw(name, self.waiting[name].pop())
        assert grants is not None
        self.take(grants)

    @invariant()
    def no_resource_is_overdrawn(self):
        if hasattr(self, "needs"):
            for resource in ("R", "G"):
                each = {
                    name: sum(need.number for need in needs if need.name == resource)
                    for name, needs in self.needs.items()
                }
                used = sum(number for name, number in each.items() if self.working[name])
                # An instance that is gone may have been the one that needed most: then others still use what it had.
                assert used <= (self.amount[resource] if self.amount else max(3, *each.values(), 0))

    @invariant()
    def somebody_works_while_anybody_waits(self):
        if hasattr(self, "needs") and any(self.waiting.values()):
            assert any(work and self.needs[name] for name, work in self.working.items())


TestLimiting = Limiting.TestCase
TestLimiting.settings = settings(max_examples=100, stateful_step_count=40)
