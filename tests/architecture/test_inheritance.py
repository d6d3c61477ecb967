"""Classes of the host hold each other, and do not inherit from each other (docs/decisions/0058-layers-and-packages.md)."""

from __future__ import annotations

from architecture import rules
from architecture.sources import HOST, python_files

_GUEST = "the base is the guest's class of that name, which the fake stands in for"

ALLOWED = {
    "platform/naiad_embedded/inprocess/services.py": "three classes of the `tritonfrontend` package's API start and stop alike",
    "platform/naiad_embedded/testing/model.py": _GUEST,
    "platform/naiad_embedded/testing/fakes.py": _GUEST,
}
"""Modules whose classes may inherit from a class of ours, with the reason."""


def test_no_class_inherits_state_from_another_of_ours() -> None:
    assert rules.inherited_classes(python_files(HOST), ALLOWED) == []


def test_each_permission_is_needed() -> None:
    found = {line.partition(":")[0] for line in rules.inherited_classes(python_files(HOST), ())}
    assert found == set(ALLOWED)
