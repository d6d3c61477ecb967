"""Which changes of a model's files and configuration leave its instances in place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.guests import PLAIN, config

from naiad.config.model.model_config import ModelConfig
from naiad.engine.lifecycle.placement import LoadFacts, Placement, place_instances
from naiad.engine.loading.instance_change import changed_instances, has_other_changes

BEFORE = {"config.pbtxt": (1, 1), "1/": (), "1/model.py": (1, 1), "2/": (), "2/model.py": (1, 1), "/backend/x.py": (1,)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"config.pbtxt": (2, 1)}, False),
        ({"2/model.py": (2, 1)}, False),
        ({"3/": (), "3/model.py": (1, 1)}, False),
        ({"1/model.py": (2, 1)}, True),
        ({"1/data": (2, 1)}, True),
        ({"labels.txt": (1, 1)}, True),
        ({"/backend/x.py": (2,)}, True),
    ],
)
def test_only_the_configuration_and_other_versions_may_change(changes, expected):
    assert has_other_changes(BEFORE, {**BEFORE, **changes}, "config.pbtxt", 1) is expected


def test_unknown_files_count_as_changed():
    assert has_other_changes(None, BEFORE, "config.pbtxt", 1)
    assert has_other_changes(BEFORE, None, "config.pbtxt", 1)


class Rule:
    """The rule of a server with three processes."""

    def place(self, config: ModelConfig, before: dict[str, int]) -> Placement:
        return place_instances(config, LoadFacts(), 3, before)


def group(name: str, count: int, rest: str = "") -> str:
    return f'instance_group {{ name: "{name}" count: {count} kind: KIND_CPU {rest} }}\n'


def loaded(before: ModelConfig, state: str = "ready", **places: int) -> Any:
    """A version with instances in the processes *places*, by name."""
    return SimpleNamespace(
        config=before,
        reason="",
        instances=[SimpleNamespace(name=name, reason="") for name, process in places.items() if process == 0],
        branches=SimpleNamespace(statuses=lambda: [SimpleNamespace(state=state)]) if any(places.values()) else None,
        resolution=SimpleNamespace(library=None),
        places=places,
        spread=Rule(),
        is_in_use=lambda _: False,
    )


def changed(now: str, before: str = group("a", 2), **fields: Any) -> dict[str, int] | None:
    """The processes of the instances after a change; None where the model is loaded again."""
    old, new = config(PLAIN, before), config(PLAIN, now)
    found = changed_instances(loaded(old, **(fields or {"a_0": 0, "a_1": 1})), old.message, new.message)
    return None if found is None else dict(found.places)


def test_instances_that_stay_keep_their_processes_and_new_ones_go_where_fewest_are() -> None:
    assert changed(group("a", 4)) == {"a_0": 0, "a_1": 1, "a_2": 2, "a_3": 0}
    assert changed(group("a", 1)) == {"a_0": 0}
    assert changed(group("a", 2), group("a", 1), a_0=0) == {"a_0": 0, "a_1": 1}


def test_a_change_that_would_move_an_instance_loads_the_model_again() -> None:
    two = group("a", 1) + group("b", 1)
    assert changed(two + group("c", 1, "passive: true"), two, a_0=0, b_0=1) is None
    assert changed(group("b", 1), two, a_0=0, b_0=1) is None, "the coordinator would have none"
    assert changed(group("a", 2), group("a", 1), a_0=1) is None, "it has none now"


def test_an_instance_in_another_process_stays_where_nothing_has_changed() -> None:
    assert changed(group("a", 1), group("a", 1), a_0=1) == {"a_0": 1}


def test_a_model_with_an_instance_that_was_given_up_in_another_process_is_loaded_again() -> None:
    assert changed(group("a", 3), a_0=0, a_1=1, state="given up") is None
