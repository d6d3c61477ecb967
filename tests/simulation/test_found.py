"""Faults that the simulation has found, as the shortest history of each, in words."""

from __future__ import annotations

import pytest
from simulation.histories import History, Kill, Load, Model, Request, Stop, Unload
from simulation.run import run

CHAIN = {"chain": Model(), "plain": Model(), "cached": Model()}


def lives(history: History) -> list[int]:
    """Run a history in which nothing must go wrong; the requests whose calls have failed."""
    result = run(history)
    assert not result.failures, f"{history}: {result.failures}"
    return [event[3] for event in result.events if event[1] == "result" and event[4]]


@pytest.mark.parametrize("delay", range(0, 80, 4))
def test_an_ensemble_is_loaded_while_a_model_of_its_steps_is_unloaded(delay):
    load = Load(model="chain", at=0.01)
    lives(History(seed=delay, models=CHAIN, events=(load, Unload(model="plain", at=0.01 + delay * 1e-4))))


@pytest.mark.parametrize("delay", range(0, 80, 8))
def test_an_ensemble_is_unloaded_with_its_members_while_one_of_them_is_loaded(delay):
    unload = Unload(model="chain", at=0.01, with_members=True)
    lives(History(seed=delay, models=CHAIN, events=(unload, Load(model="plain", at=0.01 + delay * 1e-4))))


def test_a_call_that_waits_for_the_callers_own_model_fails_when_the_other_instance_is_removed():
    history = History(
        models={"caller": Model(instances=2)},
        events=(
            Request(model="caller", number=1, how="call", target="caller", takes=0.01),
            Request(model="caller", number=2, takes=0.6),
            Load(model="caller", instances=1, at=0.1),
        ),
    )
    assert lives(history) == [1]


def test_a_call_that_waits_for_the_callers_own_model_fails_when_the_other_instance_is_given_up():
    history = History(
        models={"caller": Model(instances=2)},
        restart_limit=0,
        events=(
            Request(model="caller", number=1, how="call", target="caller", takes=0.01),
            Request(model="caller", number=2, takes=0.6),
            Kill(model="caller", request=2, at=0.1),
        ),
    )
    assert lives(history) == [1]


def test_a_call_fails_that_waits_for_a_resource_which_its_caller_holds():
    models = {"caller": Model(options=("limited",)), "limited": Model(options=("greedy",))}
    request = Request(model="caller", number=1, how="call", target="limited")
    assert lives(History(models=models, capacity=2, events=(request,))) == [1]


def test_a_call_fails_that_waits_for_an_instance_which_waits_for_a_resource_of_blocked_callers():
    history = History(
        models={"caller": Model(instances=3, options=("limited",))},
        capacity=2,
        events=tuple(Request(model="caller", number=number, how="call", target="caller") for number in (1, 2)),
    )
    assert lives(history)


def test_a_call_fails_whose_caller_has_been_given_its_next_request_and_holds_a_resource():
    history = History(
        models={"caller": Model(options=("limited",))},
        deep=True,
        events=(
            Request(model="caller", number=1, takes=0),
            Request(model="caller", number=2, how="call", target="caller", at=0.1),
            Request(model="caller", number=3, at=0.1),
        ),
    )
    assert lives(history) == [2]


def test_a_stop_ends_a_load_that_has_begun():
    load = Load(model="plain", at=0.1)
    for delay in (0, 0.001, 0.004, 0.01, 0.1):
        lives(History(models={"plain": Model()}, events=(load, Stop(at=0.1 + delay))))
    lives(History(models={"plain": Model()}, events=(load, Stop(moment="load plain"))))


def test_a_stop_ends_a_load_of_an_ensemble_and_of_the_model_before_it():
    models = {"chain": Model(), "cached": Model(), "plain": Model(instances=3, starts=("ok", "ok", "dies at once"))}
    lives(History(models=models, events=(Load(model="chain", at=0.9), Stop(at=0.92))))


def test_a_stop_ends_an_unload_that_waits_for_a_load():
    loads = (Load(model="plain"), Load(model="plain", instances=2), Unload(model="plain"))
    lives(History(models={"plain": Model()}, events=(*loads, Stop(at=0.0001))))


def test_a_request_of_a_decoupled_model_whose_response_cannot_be_passed_on_is_counted():
    lives(History(models={"stream": Model()}, events=(Request(model="stream", number=1, responses=2, fails=True),)))


def test_a_request_whose_response_from_the_cache_cannot_be_passed_on_is_counted_once():
    first = Request(model="cached", number=1, content=1000)
    again = Request(model="cached", number=2, content=1000, fails=True, at=0.1)
    lives(History(models={"cached": Model()}, events=(first, again)))


def test_a_rescheduled_request_fails_with_the_instance_that_exits_before_its_batch_is_done():
    events = (
        Request(model="iterative", number=6, how="hang", at=0.6221),  # so that the next guest gets the others together
        Request(model="iterative", number=7, how="dies between", at=0.6421),
        Request(model="iterative", number=11, how="reschedules", at=0.9821),
    )
    lives(History(seed=12347, models={"iterative": Model()}, events=events))


def test_two_calls_of_one_request_fail_that_wait_for_a_resource_which_their_caller_holds():
    models = {name: Model(options=("limited",)) for name in ("caller", "caller b")}
    events = (
        Request(model="caller b", number=2, how="call", target="limited", calls=2),
        Request(model="caller", number=3, how="call"),  # has a unit when the calls are made: they may still be answered
    )
    history = History(seed=79, models={**models, "limited": Model(options=("greedy",))}, events=events)
    assert 2 in lives(history)


def test_a_call_goes_to_an_idle_instance_of_a_process_that_has_as_many_requests_as_instances():
    events = (
        Request(model="caller", moment="execute caller", number=1, how="call", takes=5e-05, target="caller"),
        Request(model="caller", at=0.0001, number=2, how="call"),
        Request(model="caller", at=0.0021, number=3, how="call", target="caller"),
        Request(model="caller", at=0.0041, number=4, how="call"),
        Request(model="caller", process=1, number=7, how="call", takes=0, target="caller"),
        Request(model="caller", at=0.0043, number=9, how="call", target="caller"),
    )
    models = {"caller": Model(instances=4), "limited": Model(instances=2)}
    lives(History(seed=40148, models=models, events=events, capacity=3, deep=True, processes=2))


def test_a_request_that_its_replica_sends_back_is_counted_by_one_process():
    events = (
        Request(model="plain", number=4),
        Load(model="plain", instances=1),
        Request(model="plain", at=0.0024000000000000002, process=1, number=10, elements=20000),
        Request(model="plain", at=0.001, process=1, number=17, takes=0.005),
        Kill(model="plain", moment="execute plain"),
    )
    lives(History(seed=10083, models={"plain": Model(instances=3)}, events=events, hang_seconds=0.0, processes=3))


def test_a_cancelled_request_that_another_process_sends_back_was_not_accepted():
    events = (
        Load(model="plain", process=1, instances=1),
        Request(model="plain", at=0.002, number=2, cancel=-1),
        Request(model="plain", at=0.0021, process=1, number=3, cancel=-1),
        Request(model="plain", at=0.0021, number=4),
        Request(model="plain", at=0.0021999999999999997, process=1, number=6, cancel=0.0001),
    )
    lives(
        History(
            seed=10111, models={"plain": Model(instances=4)}, events=events, hang_seconds=0.0, capacity=3, processes=3
        )
    )
