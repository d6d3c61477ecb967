"""Which changes of a model's files and configuration leave its instances in place."""

from __future__ import annotations

import pytest

from naiad.engine.loading.instance_change import has_other_changes

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
