"""Which changes of a model's files and configuration leave its instances in place."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.guests import PLAIN, config

from naiad.config.model.model_config import ModelConfig
from naiad.engine.lifecycle.process_placement import LoadFacts, place_instances
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


def group(count: int, rest: str = "") -> str:
    return f'instance_group {{ name: "a" count: {count} kind: KIND_CPU {rest} }}\n'


def loaded(before: ModelConfig, processes: int) -> Any:
    """A version in a server of so many processes."""
    place = partial(place_instances, facts=LoadFacts(), processes=processes)
    placed = place(before)
    return SimpleNamespace(
        config=before,
        reason="",
        instances=[SimpleNamespace(name=f"a_{n}", reason="") for n, each in enumerate(placed.processes) if each == 0],
        replicas=SimpleNamespace(statuses=lambda: [SimpleNamespace(state="ready")]) if placed.is_spread else None,
        resolution=SimpleNamespace(library=None),
        place=place,
        is_in_use=lambda _: False,
    )


def is_in_place(before: str, now: str, processes: int) -> bool:
    """Whether a change leaves the version's other instances as they are; else it is loaded again."""
    old, new = config(PLAIN, before), config(PLAIN, now)
    found = changed_instances(loaded(old, processes), new.message)
    assert found is None or found.message.instance_group == new.message.instance_group
    return found is not None


def test_instances_change_in_place_while_all_are_in_one_process() -> None:
    assert is_in_place(group(1), group(7), processes=1)
    assert is_in_place(group(7), group(1, "passive: true"), processes=1)
    assert is_in_place(group(1), group(2), processes=3)
    assert is_in_place(group(2), group(1), processes=3)


def test_a_model_is_loaded_again_where_instances_of_several_processes_would_change() -> None:
    assert not is_in_place(group(2), group(3), processes=3)
    assert not is_in_place(group(3), group(2), processes=3)
    assert not is_in_place(group(3), group(6), processes=3)
    assert is_in_place(group(3), group(3), processes=3), "nothing has changed"


def test_a_model_with_an_instance_that_was_given_up_in_another_process_is_loaded_again() -> None:
    old = config(PLAIN, group(3))
    version = loaded(old, 3)
    version.replicas.statuses = lambda: [SimpleNamespace(state=state) for state in ("ready", "given up")]
    assert changed_instances(version, old.message) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda version: setattr(version, "reason", "it failed"),
        lambda version: setattr(version.instances[1], "reason", "it was given up"),
        lambda version: setattr(version, "resolution", None),
        lambda version: setattr(version.resolution, "library", object()),
    ],
    ids=["the version failed", "an instance was given up", "without a resolution", "a native backend"],
)
def test_a_version_that_may_not_change_in_place_is_loaded_again(change) -> None:
    old = config(PLAIN, group(2))
    version = loaded(old, 1)
    assert changed_instances(version, old.message) is not None
    change(version)
    assert changed_instances(version, old.message) is None
