"""Where the instances of loaded models are, for the placement of the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from naiad.engine.loading.placed import PlacedVersions


def version(number: int, places: dict[str, int], of: int = 1) -> Any:
    return SimpleNamespace(number=number, version=of, places=places)


def test_instances_of_other_models_count_and_those_of_the_same_do_not() -> None:
    placed = PlacedVersions()
    placed.add("a", version(1, {"a_0": 0, "a_1": 1}))
    placed.add("b", version(2, {"b_0": 1}))
    placed.add("c", version(3, {"c_0": 2}))

    assert placed.busy("c") == {0: 1, 1: 2}
    assert placed.busy("d") == {0: 1, 1: 2, 2: 1}


def test_a_model_that_is_loaded_again_was_where_its_latest_load_is() -> None:
    placed = PlacedVersions()
    placed.add("a", version(1, {"a_0": 1}))
    placed.add("a", version(4, {"a_0": 2}))
    placed.add("a", version(5, {"a_0": 0}, of=2))

    assert placed.before("a", 1) == {"a_0": 2}
    placed.remove(4)
    assert placed.before("a", 1) == {"a_0": 1}
    assert placed.before("b", 1) == placed.before("a", 3) == {}
