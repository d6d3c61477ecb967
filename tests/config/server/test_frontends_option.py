"""`--frontends`: its values."""

from __future__ import annotations

import pytest
from cli.parsing import parse, refusal

from naiad.config.server.frontend_count import automatic_count


@pytest.mark.parametrize(("cores", "count"), [(1, 0), (2, 0), (4, 0), (5, 1), (8, 2), (16, 4), (32, 8), (192, 8)])
def test_automatic_counts_leave_small_machines_with_one_process(cores, count):
    assert automatic_count(cores) == count


def test_one_process_is_the_default():
    assert parse().general.frontends == 0
    assert parse("--frontends=3").general.frontends == 3
    assert parse("--frontends=auto").general.frontends >= 0


@pytest.mark.parametrize("text", ["-1", "some", "65", "1.5", ""])
def test_other_values_are_invalid(text):
    assert "is not a number up to 64 or 'auto'" in str(refusal(f"--frontends={text}"))
