"""Where the instances of a model run, and whether a request goes to another process."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig, freeze
from naiad.engine.lifecycle.process_placement import (
    LoadFacts,
    Placement,
    describe_ensemble,
    describe_placement,
    place_ensemble,
    place_instances,
)
from naiad.engine.lifecycle.sharing import is_better_elsewhere

FOUR = 'instance_group { name: "m_0" count: 4 kind: KIND_CPU }'


def config(text: str) -> ModelConfig:
    return freeze(text_format.Parse(f'name: "m" {text}', pb.ModelConfig()))


@pytest.mark.parametrize(
    ("processes", "expected"),
    [(2, (0, 1, 0, 1)), (3, (0, 1, 2, 0)), (4, (0, 1, 2, 3))],
)
def test_a_model_with_an_instance_for_each_process_has_some_in_each(processes: int, expected: tuple[int, ...]) -> None:
    placement = place_instances(config(FOUR), LoadFacts(), processes)

    assert placement == Placement(expected, "its instances share nothing")
    assert placement.is_spread


@pytest.mark.parametrize(("count", "has"), [(1, "1 instance"), (4, "4 instances")])
def test_a_model_with_fewer_instances_than_processes_is_in_the_coordinator(count: int, has: str) -> None:
    made = config(f'instance_group {{ name: "m_0" count: {count} kind: KIND_CPU }}')

    placement = place_instances(made, LoadFacts(), 5)

    assert (set(placement.processes), len(placement.processes), placement.is_spread) == ({0}, count, False)
    assert describe_placement(made, placement) == (
        f"all instances in process 0, because it has {has} for 5 processes; with a count of 5 or more, each would have "
        "one"
    )


def test_a_server_of_one_process_has_all_instances_in_it() -> None:
    assert place_instances(config(FOUR), LoadFacts(), 1).processes == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "facts", "reason"),
    [
        (
            "sequence_batching {}",
            LoadFacts(),
            "a sequence stays with its instance, and one scheduler knows all of them",
        ),
        ("dynamic_batching {}", LoadFacts(), "one queue fills the batches of all instances"),
        ("", LoadFacts(is_native=True), "instances of a native backend may share memory"),
        ("", LoadFacts(is_forked=True), "its instances are forked from one process"),
        ("", LoadFacts(is_debugged=True), "it runs under a debugger"),
        ("", LoadFacts(is_on_demand=True), "it is loaded on demand"),
        ("response_cache { enable: true }", LoadFacts(is_cached=True), "one cache has its responses"),
        (
            'parameters { key: "ONE_PROCESS" value { string_value: "true" } }',
            LoadFacts(),
            "its parameter ONE_PROCESS asks for one process",
        ),
        (
            'parameters { key: "max_instances" value { string_value: "4" } }',
            LoadFacts(),
            "the number of its instances follows their load",
        ),
    ],
)
def test_what_belongs_together_is_in_the_coordinator(text: str, facts: LoadFacts, reason: str) -> None:
    placement = place_instances(config(f"{FOUR} {text}"), facts, 4)

    assert set(placement.processes) == {0}
    assert placement.reason == reason


@pytest.mark.parametrize(
    ("group", "facts", "reason"),
    [
        ("passive: true", LoadFacts(), "it has passive instances"),
        (
            'rate_limiter { resources { name: "R" count: 1 } }',
            LoadFacts(is_rate_limited=True),
            "one rate limiter grants the resources of its instances",
        ),
    ],
)
def test_groups_that_need_one_place_are_in_the_coordinator(group: str, facts: LoadFacts, reason: str) -> None:
    placement = place_instances(config(f'instance_group {{ name: "m_0" count: 4 kind: KIND_CPU {group} }}'), facts, 4)

    assert (set(placement.processes), placement.reason) == ({0}, reason)


def test_instances_with_a_gpu_are_in_the_coordinator() -> None:
    group = 'instance_group { name: "m_0" count: 2 kind: KIND_GPU gpus: [0, 1] }'

    assert place_instances(config(group), LoadFacts(), 4).processes == (0, 0, 0, 0)


def test_a_cache_and_a_rate_limiter_that_the_server_does_not_have_keep_nothing_together() -> None:
    group = 'instance_group { name: "m_0" count: 2 kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'

    assert place_instances(config(f"{group} response_cache {{ enable: true }}"), LoadFacts(), 2).processes == (0, 1)


@pytest.mark.parametrize(
    ("own", "own_instances", "other", "other_instances", "expected"),
    [
        (1, 1, 0, 0, False),  # it has no instance that serves
        (0, 0, 5, 1, True),  # this process has none
        (1, 1, 0, 1, True),  # idle
        (4, 2, 1, 2, True),  # one of two is idle
        (1, 1, 1, 1, False),
        (3, 1, 1, 1, False),  # not worth the way
        (4, 1, 1, 1, True),
        (20, 1, 14, 1, False),
        (24, 1, 14, 1, True),
        (8, 4, 2, 1, False),
    ],
)
def test_a_request_moves_to_an_idle_instance_or_a_much_shorter_queue(
    own: int, own_instances: int, other: int, other_instances: int, expected: bool
) -> None:
    assert is_better_elsewhere(own, own_instances, other, other_instances) is expected


@pytest.mark.parametrize(
    ("text", "members", "expected", "reason"),
    [
        ("", [{1, 2, 3}, {3, 2}], (0, 2, 3), "they have instances of all of its models"),
        ("", [{1}, {2}], (0,), "no other process has instances of all of its models"),
        ("", [{1}, ()], (0,), "no other process has instances of all of its models"),
        ("", [], (0,), "no other process has instances of all of its models"),
        ("response_cache { enable: true }", [{1}], (0,), "one cache has its responses"),
        ("ensemble_scheduling { max_inflight_requests: 3 }", [{1}], (0,), "it limits the requests in one of its steps"),
    ],
)
def test_an_ensemble_runs_where_all_of_its_models_have_instances(
    text: str, members: list[set[int]], expected: tuple[int, ...], reason: str
) -> None:
    assert place_ensemble(config(text), members, is_cached=True) == Placement(expected, reason)


def test_an_ensemble_whose_responses_are_not_kept_runs_everywhere_where_its_models_do() -> None:
    placement = place_ensemble(config("response_cache { enable: true }"), [{1}], is_cached=False)

    assert placement.processes == (0, 1)


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        (Placement((0,), "of this"), "its requests are executed in process 0, because of this"),
        (
            Placement((0, 2), "of that"),
            "its requests are executed in processes 0, 2, where they arrive, because of that",
        ),
    ],
)
def test_a_sentence_says_where_an_ensemble_runs(placement: Placement, sentence: str) -> None:
    assert describe_ensemble(placement) == sentence
