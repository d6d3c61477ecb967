"""A class name means one thing in the host."""

from __future__ import annotations

import pytest
from architecture import rules
from architecture.sources import HOST, python_files

_TRITON_NAME = "name of the `tritonserver` package's API"

SHARED_NAMES = {
    "LogFormat": _TRITON_NAME,
    "MetricKind": _TRITON_NAME,
    "ModelControlMode": _TRITON_NAME,
    "Options": "`tritonfrontend` has an inner class `Options` for each of its services",
}
"""Class names that several modules of the host may define, with the reason."""


@pytest.mark.skip(reason="some names are still used twice")
def test_no_two_modules_define_a_class_of_the_same_name() -> None:
    assert rules.repeated_class_names(python_files(HOST), SHARED_NAMES) == []


@pytest.mark.skip(reason="some names are still used twice")
def test_every_permission_is_needed() -> None:
    assert rules.unneeded_permissions(python_files(HOST), SHARED_NAMES) == []
