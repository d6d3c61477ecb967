"""The order in which models are loaded and unloaded where some need others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.engine.lifecycle.dependencies import all_dependencies, dependents, find_cycle, load_waves

NEEDS = {"outer": ["inner", "a"], "inner": ["a", "b"]}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("a b c", [["a", "b", "c"]]),
        ("outer inner a b", [["a", "b"], ["inner"], ["outer"]]),
        ("outer a", [["a"], ["outer"]]),
        ("inner", [["inner"]]),
        ("", []),
    ],
)
def test_models_come_after_those_that_they_need(names, expected):
    assert load_waves(names.split(), NEEDS) == expected


def test_models_of_a_cycle_come_together_and_before_those_that_need_them():
    needs = {"a": ["b"], "b": ["a"], "user": ["b"], "self": ["self"]}
    assert load_waves(["user", "a", "b", "self"], needs) == [["self"], ["a", "b"], ["user"]]


@pytest.mark.parametrize(
    ("name", "last"), [("a", "c"), ("b", "a"), ("c", "b"), ("self", "self"), ("user", ""), ("other", "")]
)
def test_a_cycle_is_reported_by_its_last_model(name, last):
    needs = {"a": ["b"], "b": ["c"], "c": ["a"], "self": ["self"], "user": ["a"]}
    assert find_cycle(name, needs) == last


def test_needed_models_and_dependents_are_found_over_several_steps():
    assert all_dependencies("outer", NEEDS) == {"inner", "a", "b"}
    assert dependents("b", NEEDS) == ["outer", "inner"]
    assert dependents("outer", NEEDS) == []


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdefg"), max_size=3)))
def test_every_model_comes_in_one_wave_whatever_needs_what(needs):
    found = [name for wave in load_waves("abcdefg", needs) for name in wave]
    assert sorted(found) == sorted("abcdefg")
    for name in "abcdefg":
        for need in needs.get(name, ()):
            if not find_cycle(name, needs):
                assert found.index(need) < found.index(name)
