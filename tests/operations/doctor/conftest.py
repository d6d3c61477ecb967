"""What the tests of the doctor have in common."""

from __future__ import annotations

import pytest

from naiad_operations.doctor import examine


@pytest.fixture(autouse=True)
def python_with_optimisations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings are the same under every Python of the machine."""
    monkeypatch.setattr(examine, "examine_interpreter", lambda: ())
