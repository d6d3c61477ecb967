"""The life of a loaded version, with guests and a clock of the test: no process is started, and no sleep takes time."""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import Any

import pytest
from engine.submitting import WeakRequest, submit
from fakes.clock import Clock, turns
from fakes.guests import PLAIN, Answers, FakeGuest, FakeServices, config, exited, launch_spec, native_code, request
from naiad_stub.wire import LOG_ONCE

from naiad.core.errors import ModelError, NaiadError, NotReadyError
from naiad.core.logs import GUEST_LEVELS, GuestName
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.lifecycle.scaling import InstanceLoad
from naiad.engine.open_request import OpenRequest
from naiad.engine.response_cache import ResponseCache
from naiad.engine.serving import instance, version_log
from naiad.engine.serving.device_use import device_use
from naiad.engine.serving.readiness import describe_stalls, stalls_of
from naiad.engine.serving.version import ModelVersion
from naiad.engine.serving.warmup import WarmupSample
from naiad.guests.launch import LaunchSpec
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import SEQUENCE_START, InferRequest, InputTensor
from naiad.protocol.metadata import InstanceStatus, MemoryUse, ModelCondition

WINDOW = 60.0


class Life(Clock):
    """A clock, and the guests that were started.

    Attributes:
        made: All guests, in the order of their starts.
        failures: Why the next guests do not start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[FakeGuest] = []
        self.failures: list[Exception] = []

    def make(self, *arguments: Any) -> FakeGuest:
        """A guest, in the place of `Worker`."""
        guest = FakeGuest(*arguments)
        guest.problem = self.failures.pop(0) if self.failures else None
        self.made.append(guest)
        return guest


@pytest.fixture
def clock(monkeypatch) -> Life:
    life = Life()
    monkeypatch.setattr(instance, "Worker", life.make)
    life.install(monkeypatch)
    return life


def model(text: str = PLAIN, more: str = "", names: tuple[str, ...] = ("m_0_0",), **arguments: Any) -> ModelVersion:
    """A version whose guests are not started yet."""
    shared = {name: arguments.pop(name) for name in ("lease", "inputs") if name in arguments}
    return ModelVersion(
        config(text, more),
        1,
        [launch_spec(name, **shared) for name in names],
        arguments.pop("policy", RestartPolicy(window=WINDOW)),
        arguments.pop("services", FakeServices()),
        **arguments,
    )


def give_up(served: ModelVersion, pause: float | None = 30.0) -> None:
    """The version's only instance is given up, and tried again after *pause* seconds."""
    (only,) = served.instances
    only.worker, only.reason = None, "it died too often"
    served.on_given_up(only, pause)


def recover(served: ModelVersion) -> None:
    """A guest that was tried serves."""
    (only,) = served.instances
    only.worker, only.reason = FakeGuest(only.spec, served), ""
    served.on_restart(only)


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        ((None,) * 4, [False, False, False, True]),
        ((1,) * 4, [False, False, False, True]),
        ((None, None, WINDOW - 1, None), [False, False, False, True]),
        ((None, None, WINDOW, None), [False, False, False, False]),
    ],
    ids=["none starts", "each exits soon", "one nearly lasts", "one lasts for a window"],
)
async def test_a_version_is_lost_after_three_recoveries_in_a_row_that_failed(clock, seconds, found):
    served = model()
    await served.start()
    clock.advance(10 * WINDOW)
    for served_for, is_lost in zip(seconds, found, strict=True):
        give_up(served)
        assert served.is_lost is is_lost
        if served_for is not None:
            recover(served)
            clock.advance(served_for)


async def test_a_version_that_is_never_tried_again_is_lost_at_once_until_it_serves_again(clock):
    served = model()
    await served.start()
    give_up(served, None)
    assert served.is_lost
    recover(served)
    assert (served.is_lost, served.reason) == (False, "")


# -- start and stop -------------------------------------------------------------------------------------------------


class Lease:
    """Counts how often an environment, or what is shared, was released."""

    number = 1

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1

    close = release


def ask(served: ModelVersion, **more: Any) -> tuple[OpenRequest, Answers]:
    """Submit a request; what it gets."""
    answers = Answers()
    return submit(served, request(**more), answers), answers


def guests(served: ModelVersion) -> list[FakeGuest]:
    return [each.worker for each in served.instances]


def test_a_version_serves_once_all_its_guests_have_started_and_executed_the_samples(clock):
    async def check() -> None:
        sample = WarmupSample("s", (request(),), 1)
        served = model(names=("m_0_0", "m_0_1"), samples=(sample,))
        assert (served.is_ready(), served.are_all_ready()) == (False, False)
        _, early = ask(served)
        starting = asyncio.ensure_future(served.start())
        await turns()
        for guest in made:
            assert guest.calls == [], "it is watched only once it is warmed up"
            guest.answer()
        await starting
        assert (served.is_ready(), served.are_all_ready()) == (True, True)
        assert guests(served) == made
        assert [guest.calls for guest in made] == [[("watch",)]] * 2
        made[0].answer()
        assert early.is_ended, "a request that came before waited for a guest"
        assert served.statistics().inference_count == 1

    made = clock.made
    clock.run(check())


async def test_if_one_guest_does_not_start_all_are_stopped_and_the_environment_is_released(clock):
    lease = Lease()
    served = model(names=("m_0_0", "m_0_1"), lease=lease)
    clock.failures.append(ModelError("no luck"))
    with pytest.raises(ModelError, match="no luck"):
        await served.start()
    assert clock.made[1].calls == [("watch",), ("stop", 0)]
    assert lease.released == 1
    assert not served.is_ready()


async def test_a_version_that_stops_lets_requests_finish_and_rejects_others(clock):
    lease, shared = Lease(), Lease()
    served = model(lease=lease, inputs=shared)
    assert served.shared_inputs is shared
    await served.start()
    (guest,) = guests(served)
    _, answers = ask(served)
    began = clock.monotonic()
    stopping = asyncio.ensure_future(served.stop(30))
    await asyncio.sleep(2)
    assert served.reason == "", "it serves until then: a client may have sent a request before it could know"
    guest.answer()
    await stopping
    assert clock.monotonic() - began < 3
    assert answers.error is None
    assert served.reason == "it is being unloaded"
    with pytest.raises(NotReadyError, match="model 'm' cannot serve: it is being unloaded"):
        ask(served)
    ((name, timeout),) = guest.calls[1:]
    assert name == "stop"
    assert 27 < timeout <= 28.1
    assert (lease.released, shared.released) == (1, 0)
    await asyncio.sleep(4.9)
    assert shared.released == 0, "a frontend process may still write there"
    await asyncio.sleep(0.2)
    assert shared.released == 1


async def test_requests_that_do_not_finish_in_time_fail_and_finalize_has_a_little_time_nevertheless(clock):
    served = model()
    await served.start()
    (guest,) = guests(served)
    _, sent = ask(served)
    _, waiting = ask(served)
    await served.stop(3)
    assert guest.calls[1:] == [("stop", 0.1)]
    for answers in (sent, waiting):
        assert answers.error.message == "model 'm' is being unloaded"
    assert len(sent.responses) == 1


async def test_a_guest_that_executes_cancelled_requests_only_is_killed_after_five_seconds(clock, caplog):
    served = model()
    await served.start()
    (guest,) = guests(served)
    opened, _ = ask(served)
    opened.cancel()
    began = clock.monotonic()
    await served.stop(30)
    assert clock.monotonic() - began == pytest.approx(5, abs=0.1)
    assert guest.calls[1:] == [("stop", 0)]
    assert "'m_0_0' still executes requests that were cancelled and is killed after 5 s" in caplog.text


async def test_a_cancelled_request_that_ends_soon_lets_its_guest_finalize(clock):
    served = model()
    await served.start()
    (guest,) = guests(served)
    opened, _ = ask(served)
    opened.cancel()
    asyncio.get_running_loop().call_later(1, guest.answer)
    await served.stop(30)
    ((_, timeout),) = guest.calls[1:]
    assert 28 < timeout < 29.1


async def test_requests_are_not_waited_for_where_no_guest_can_answer_them(clock):
    served = model()
    await served.start()
    give_up(served)
    began = clock.monotonic()
    served.instances[0].reason = ""
    served._admission.reason = ""
    _, answers = ask(served)
    await served.stop(30)
    assert clock.monotonic() == began
    assert answers.is_ended


# -- instances ------------------------------------------------------------------------------------------------------

TWO = "instance_group { name: 'm_0' count: 2 kind: KIND_CPU }"
THREE = "instance_group { name: 'm_0' count: 3 kind: KIND_CPU }"


async def started(more: str = "", *names: str, **arguments: Any) -> ModelVersion:
    served = model(more=more, names=names or ("m_0_0",), **arguments)
    await served.start()
    return served


def specs(*names: str) -> list[LaunchSpec]:
    return [launch_spec(name) for name in names]


async def test_instances_are_added_while_those_that_stay_serve_on(clock):
    served = await started(TWO, "m_0_0", "m_0_1")
    before = guests(served)
    new = specs("m_0_0", "m_0_1", "m_0_2")
    await served.change_instances(config(PLAIN, THREE), new, {"m_0_0", "m_0_1"})
    assert guests(served)[:2] == before
    assert [each.spec for each in served.instances] == new
    assert served.config.json["instance_group"][0]["count"] == 3
    for _ in range(3):
        ask(served)
    assert [len(guest.executed) for guest in guests(served)] == [1, 1, 1]
    assert served.is_idle is False
    assert served.are_all_ready()


async def test_removed_instances_finish_their_requests_and_get_no_more(clock):
    served = await started(TWO, "m_0_0", "m_0_1")
    kept, removed = guests(served)
    asked = [ask(served) for _ in range(3)]
    (of_removed,) = [answers for opened, answers in asked if opened.key in removed.open]
    await served.change_instances(config(PLAIN, TWO), specs("m_0_0"), {"m_0_0"})
    assert guests(served) == [kept]
    assert served.is_finishing_requests()
    assert not served.is_idle
    ending = asyncio.ensure_future(served.end_removed(30))
    await asyncio.sleep(1)
    assert not ending.done()
    removed.answer()
    await ending
    assert of_removed.error is None
    assert removed.executed == [[next(opened.key for opened, answers in asked if answers is of_removed)]]
    ((name, timeout),) = removed.calls[1:]
    assert name == "stop"
    assert 28 < timeout < 29.1
    kept.answer()
    kept.answer()
    assert served.is_idle
    assert not served.is_finishing_requests()


async def test_requests_of_a_removed_instance_that_do_not_finish_in_time_fail(clock):
    served = await started(TWO, "m_0_0", "m_0_1")
    asked = [ask(served) for _ in range(2)]
    removed = guests(served)[1]
    await served.change_instances(config(PLAIN, TWO), specs("m_0_0"), {"m_0_0"})
    await served.end_removed(2)
    ended = [answers for _, answers in asked if answers.is_ended]
    assert [answers.error.message for answers in ended] == ["instance 'm_0_1' was removed"]
    assert removed.calls[1:] == [("stop", 0.1)]
    assert not served._changing


async def test_if_an_added_instance_does_not_start_the_instances_stay_as_they_were(clock):
    served = await started(TWO, "m_0_0", "m_0_1")
    before, message = guests(served), served.config
    clock.failures.append(ModelError("no luck"))
    with pytest.raises(ModelError, match="no luck"):
        await served.change_instances(config(PLAIN, THREE), specs("m_0_0", "m_0_2"), {"m_0_0"})
    assert guests(served) == before
    assert served.config is message
    assert served.is_idle


async def test_no_instance_is_added_to_a_version_that_stops(clock):
    served = await started(TWO, "m_0_0", "m_0_1")
    adding = asyncio.ensure_future(
        served.change_instances(config(PLAIN, THREE), specs("m_0_0", "m_0_1", "m_0_2"), {"m_0_0", "m_0_1"})
    )
    await served.stop(0)
    with pytest.raises(NotReadyError, match="model 'm' is being unloaded"):
        await adding
    assert ("stop", 0) in clock.made[-1].calls


async def test_the_log_names_the_instances_that_were_added_and_removed(clock, caplog):
    served = await started(TWO, "m_0_0", "m_0_1")
    with caplog.at_level(logging.INFO, "naiad.engine"):
        await served.change_instances(config(PLAIN, THREE), specs("m_0_0", "m_0_1", "m_0_2"), {"m_0_0", "m_0_1"})
        await served.change_instances(config(PLAIN, TWO), specs("m_0_0", "m_0_1"), {"m_0_0"})
    assert [each for each in caplog.messages if "added" in each] == [
        "instances of 'm' version 1: added: m_0_2; removed: none",
        "instances of 'm' version 1: added: m_0_1; removed: m_0_1, m_0_2",
    ]


async def test_how_much_the_instances_have_to_do(clock):
    served = await started(THREE, "m_0_0", "m_0_1", "m_0_2")
    assert served.instance_load() == InstanceLoad(count=3, in_use=0, waited=0, removable=3)
    asked = [ask(served)[0] for _ in range(4)]
    clock.advance(0.5)
    assert served.instance_load() == InstanceLoad(count=3, in_use=3, waited=0.5, removable=0)
    for guest in guests(served):
        guest.answer()
    (busy,) = [guest for guest in guests(served) if guest.open]
    assert busy.executed[-1] == [asked[3].key]
    place = guests(served).index(busy)
    assert served.instance_load() == InstanceLoad(count=3, in_use=1, waited=0, removable=2 - place)
    assert served.is_in_use([busy.spec.name])
    assert not served.is_in_use([guest.spec.name for guest in guests(served) if guest is not busy])


PASSIVE = """instance_group [{ name: 'm_0' count: 1 kind: KIND_CPU },
                           { name: 'm_1' count: 1 kind: KIND_CPU passive: true }]"""


async def test_a_passive_instance_serves_no_requests_and_is_not_warmed_up(clock):
    sample = WarmupSample("s", (request(),), 1)
    served = model(more=PASSIVE, names=("m_0_0", "m_1_0"), samples=(sample,))
    starting = asyncio.ensure_future(served.start())
    await turns()
    clock.made[0].answer()
    await starting
    ask(served)
    ask(served)
    active, passive = guests(served)
    assert (len(active.executed), passive.executed) == (2, [])
    assert served.reserve_input(8, 0) is not None
    assert passive.calls == [("watch",)]
    passive.is_hung = True
    assert (served.is_ready(), served.are_all_ready()) == (True, False)
    active.is_hung, passive.is_hung = True, False
    assert not served.is_ready()


async def test_a_version_is_idle_when_nothing_is_in_progress_and_no_guest_waits_for_a_call(clock):
    services = FakeServices()
    served = await started(services=services)
    assert served.is_idle
    assert not served.is_finishing_requests()
    opened, _ = ask(served)
    assert not served.is_idle
    assert served.is_finishing_requests()
    opened.cancel()
    assert not served.is_idle
    assert not served.is_finishing_requests()
    guests(served)[0].answer()
    services.calling += guests(served)
    assert not served.is_idle
    services.calling.clear()
    assert served.is_idle


# -- statistics and memory ------------------------------------------------------------------------------------------


async def test_a_version_whose_execute_makes_no_progress_serves_and_says_so(clock, caplog):
    served = await started(TWO, "m_0_0", "m_0_1")
    found = served.statistics()
    assert (found.condition, found.stalled, stalls_of(served)) == (ModelCondition.READY, "", "")
    (opened, _), (first, second) = ask(served, request_id="abc"), guests(served)
    clock.advance(75)
    first.owner.on_stall(first, (opened.key,), 61.0)
    assert caplog.messages[-1] == (
        "'m_0_0' (pid 7) of model 'm' version 1 makes no progress: execute of request 'abc', which is 75 s old, has "
        "not returned for 61 s; if it should not take so long, set HANG_SECONDS in config.pbtxt: then the stacks of "
        "its threads are logged, and the process is restarted"
    )
    first.stalled_seconds = 61.0
    said = "execute of 'm_0_0' (pid 7) has made no progress for 1 min"
    found = served.statistics()
    assert (found.condition, found.stalled, stalls_of(served)) == (ModelCondition.STALLED, said, said)
    assert (served.is_ready(), served.are_all_ready()) == (True, True)
    assert [each.stalled_seconds for each in served.statuses()] == [61.0, 0.0]
    second.is_hung = True
    assert served.statistics().condition is ModelCondition.DEGRADED
    first.is_hung = True
    assert served.statistics().condition is ModelCondition.NOT_SERVING


def test_a_sentence_names_the_three_instances_that_have_made_no_progress_for_longest():
    statuses = [
        InstanceStatus(
            model="m", version="1", name=f"m_{number}", pid=number, restarts={}, input_byte_size=0, borrowed_outputs=0,
            stalled_seconds=60.0 * number,
        )
        for number in range(6)
    ]  # fmt: skip
    first, *_, last = describe_stalls(statuses).split("; ")
    assert first == "execute of 'm_5' (pid 5) has made no progress for 5 min"
    assert last == "so have 2 more instances"


async def test_requests_that_wait_and_that_are_executed_are_counted(clock):
    served = await started()
    asked = [ask(served)[0] for _ in range(3)]
    found = served.statistics()
    assert (found.name, found.version, found.pending_count, found.running_count) == ("m", "1", 2, 1)
    served.requests.on_progress(asked[0].key, 0)
    found = served.statistics()
    assert (found.pending_count, found.running_count) == (3, 0), "it waits inside its model"


async def test_memory_that_guests_report_is_added_up_by_kind(clock):
    served = await started(TWO, "m_0_0", "m_0_1")
    first, second = guests(served)
    first.memory_usage = (MemoryUse("GPU", 0, 5), MemoryUse("CPU", 0, 1))
    second.memory_usage = (MemoryUse("GPU", 0, 7), MemoryUse("GPU", 1, 2))
    served.instances[0].worker = first
    assert served.statistics().memory_usage == (
        MemoryUse("CPU", 0, 1),
        MemoryUse("GPU", 0, 12),
        MemoryUse("GPU", 1, 2),
    )


@pytest.mark.parametrize("reads_late", [False, True])
async def test_idle_memory_is_freed_twice_in_a_pause_and_log_levels_are_passed_on_each_time(clock, reads_late):
    """A pause after a request, or after a client has read responses late."""
    served = await started()
    (guest,) = guests(served)
    if not reads_late:
        ask(served)
    found = []
    for number in range(6):
        guest.has_released = reads_late and number == 1
        served.maintain()
        found.append(guest.calls[-2][1])
        assert guest.calls[-1] == ("follow_log_level",)
        if number == 0 and not reads_late:
            guest.answer()
    assert found == [False, False, True, True, False, False], "not while it is busy, nor at the first look after"


async def test_the_input_of_a_request_is_read_to_the_guest_with_the_fewest_batches(clock):
    served = await started(TWO, "m_0_0", "m_0_1")
    first, second = guests(served)
    ask(served)
    idle = second if first.open else first
    assert len(served.reserve_input(100, 5)) == 100
    assert idle.calls[-1] == ("reserve_input", 100, 5)
    assert served.direct is served
    for each in served.instances:
        each.worker = None
    assert served.reserve_input(100, 5) is None


async def test_inputs_that_a_scheduler_lays_side_by_side_are_not_read_to_a_guest(clock):
    served = await started(" max_batch_size: 2 dynamic_batching {}")
    assert served.reserve_input(100, 5) is None
    assert served.forwarding is None
    assert (await started()).forwarding is not None


# -- requests -------------------------------------------------------------------------------------------------------


async def test_a_request_waits_for_its_guest_or_for_any_that_serves(clock):
    served = await started(TWO, "m_0_0", "m_0_1")
    asked = [ask(served)[0] for _ in range(3)]
    sent, waiting = asked[0], asked[2]
    assert [each.is_waiting for each in asked] == [False, False, True]
    (holder,) = [guest for guest in guests(served) if sent.key in guest.open]
    assert sent.waits() == ((holder,),)
    assert waiting.waits() == (guests(served),)
    first, second = served.instances
    first.reason = "it is given up"
    assert waiting.waits() == ([second.worker],)
    first.reason, first.worker = "", None
    assert [*map(list, waiting.waits())] == [[]], "a guest that is being started will take it"
    waiting.reject_waiting(NaiadError("a deadlock"))
    assert not waiting.is_waiting
    assert waiting.waits() == ()


async def test_sequences_are_those_of_its_tracker(clock):
    served = await started(" max_batch_size: 4 sequence_batching { direct {} }")
    inputs = [InputTensor("IN", Datatype.FP32, (1, 2), bytes(8))]
    started_one = InferRequest("m", -1, inputs, correlation_id=1, flags=SEQUENCE_START)
    opened = submit(served, started_one, Answers())
    assert (served.has_sequence(1), served.has_sequence(2), served.open_sequences) == (True, False, 1)
    assert served.finish_sequences() == 1
    guests(served)[0].answer()
    assert not served.is_idle
    assert served.is_finishing_requests()
    opened.confirm_sent()
    opened.drop_responses()


async def test_responses_are_kept_where_the_model_asks_for_that(clock):
    served = await started(" response_cache { enable: true }")
    served.keep_responses(ResponseCache(1 << 20))
    ask(served)
    guests(served)[0].answer()
    asked, answers = WeakRequest("m", -1, request().inputs), Answers()
    gone = weakref.ref(asked)
    opened = submit(served, asked, answers)
    assert answers.is_ended
    assert len(guests(served)[0].executed) == 1
    del asked
    assert gone() is None, f"{opened} has ended and keeps its request"


# -- guests that exit -----------------------------------------------------------------------------------------------


async def test_a_guest_that_exits_is_replaced_after_a_pause_and_its_request_fails(clock):
    served = await started()
    (gone,) = guests(served)
    _, sent = ask(served)
    _, waiting = ask(served)
    served.on_exit(gone, exited())
    assert sent.error.message == "'m_0_0' exited with code 1"
    assert not served.is_ready()
    await asyncio.sleep(0.09)
    assert not served.is_ready()
    await asyncio.sleep(0.02)
    assert served.is_ready()
    (guest,) = guests(served)
    guest.answer()
    assert waiting.error is None
    assert served.instances[0].restarts == {"exit 1": 1}


async def test_an_instance_whose_guests_exit_too_often_is_given_up_and_tried_after_a_pause(clock, caplog):
    served = await started(policy=RestartPolicy(limit=1, window=WINDOW, recovery=30))
    for _ in range(2):
        _, waiting = ask(served), ask(served)[1]
        served.on_exit(guests(served)[0], exited())
        await asyncio.sleep(0.2)
    assert served.reason.startswith("'m_0_0' exited with code 1 It died 2 times within 60 s")
    assert waiting.error.message == served.reason
    assert served.recovery_delay() == pytest.approx(29.8)
    with pytest.raises(NotReadyError, match="model 'm' cannot serve: 'm_0_0' exited"):
        ask(served)
    await asyncio.sleep(30)
    assert served.is_ready()
    assert served.recovery_delay() == 0
    assert served.reason == ""
    ask(served)
    assert len(guests(served)[0].executed) == 1


async def test_while_another_instance_serves_one_that_is_given_up_takes_nothing_from_it(clock):
    policy = RestartPolicy(limit=0)
    served = await started(TWO, "m_0_0", "m_0_1", policy=policy)
    first, second = guests(served)
    served.on_exit(first, exited())
    assert served.instances[0].reason
    assert served.reason == ""
    assert not served.is_lost
    _, answers = ask(served)
    second.answer()
    assert answers.error is None
    served.on_exit(second, exited())
    assert served.reason == served.instances[1].reason
    assert served.is_lost, "it is never tried again"


async def test_a_request_that_ends_guest_after_guest_is_refused_and_its_exits_do_not_count(clock):
    served = await started(policy=RestartPolicy(limit=2, window=WINDOW))
    for _ in range(3):
        ask(served)
        served.on_exit(guests(served)[0], exited())
        await asyncio.sleep(1)
    assert served.is_ready()
    with pytest.raises(NaiadError, match="this request ended 3 processes of model 'm'"):
        ask(served)
    assert served.statistics().condition is ModelCondition.REFUSING
    assert "it refuses 1 request that ended 3 of its processes" in served.statistics().refused
    served.on_exit(guests(served)[0], exited())
    await asyncio.sleep(1)
    assert served.is_ready()


async def test_a_guest_that_starts_while_the_version_stops_serves_nothing(clock):
    served = await started()
    give_up(served)
    await served.stop(0)
    reason = served.reason
    recover(served)
    assert served.reason == reason


# -- what guests log ------------------------------------------------------------------------------------------------


async def test_a_model_logs_under_its_own_file_and_line_and_at_most_256_messages_once(clock, monkeypatch, caplog):
    logged = []
    monkeypatch.setattr(version_log, "log_guest_record", lambda *record: logged.append(record))
    served = await started()
    (guest,) = guests(served)
    for number in range(300):
        for _ in range(2):
            served.log.on_log_record(guest, LOG_ONCE | 1, "model.py", 7, f"message {number}")
    assert [record[4] for record in logged] == [f"message {number}" for number in range(256)]
    assert logged[0] == (GuestName("m", 1, "m_0_0", 7), GUEST_LEVELS[1], "model.py", 7, "message 0")
    for _ in range(2):
        served.log.on_log_record(guest, 1, "model.py", 7, "always")
    assert len(logged) == 258
    caplog.set_level(logging.INFO)
    served.log.on_output_line(guest, "stderr", "a line")
    assert "a line" in caplog.text


async def test_an_error_about_a_missing_module_is_logged_with_what_to_do(clock, monkeypatch):
    logged = []
    monkeypatch.setattr(version_log, "log_guest_record", lambda *record: logged.append(record[4]))
    served = await started()
    (guest,) = guests(served)
    text = "ModuleNotFoundError: no module\nTraceback"
    served.log.on_log_record(guest, 1, "model.py", 7, text)
    served.log.advise = lambda message: "run naiad add" if message == text else ""
    served.log.on_log_record(guest, 1, "model.py", 7, text)
    served.log.on_log_record(guest, 1, "model.py", 7, "ModuleNotFoundError of another kind")
    served.log.advise = lambda message: "never asked"
    served.log.on_log_record(guest, 1, "model.py", 7, "another error")
    assert logged == [
        text,
        "ModuleNotFoundError: no module; run naiad add\nTraceback",
        "ModuleNotFoundError of another kind",
        "another error",
    ]


# -- native backends ------------------------------------------------------------------------------------------------


async def test_the_guest_of_a_native_backend_executes_as_many_batches_as_it_has_lanes_and_reports_itself(clock):
    served = ModelVersion(
        config(PLAIN, "max_batch_size: 1"),
        1,
        [launch_spec(code=native_code("m_0_0", "m_0_1"))],
        RestartPolicy(),
        FakeServices(),
    )
    await served.start()
    for _ in range(3):
        inputs = [InputTensor("IN", Datatype.FP32, (1, 2), bytes(8))]
        submit(served, InferRequest("m", -1, inputs), Answers())
    assert len(guests(served)[0].executed) == 2
    assert served.forwarding is None
    guests(served)[0].answer()
    assert served.statistics().success.count == 0, "the backend has reported nothing"
    assert served.device == device_use(served.config, is_native=True)
