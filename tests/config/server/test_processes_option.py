"""`--processes`: its values, and its former name `--frontends`."""

from __future__ import annotations

import pytest
from cli.parsing import parse, refusal

from naiad.config.server.options import automatic_count


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 1), (4, 1), (5, 2), (8, 2), (16, 4), (32, 8), (192, 8)])
def test_automatic_counts_leave_small_machines_with_one_process(cores, count):
    assert automatic_count(cores) == count


def test_one_process_is_the_default():
    assert parse().general.processes == 1
    assert parse("--processes=3").general.processes == 3
    assert parse("--processes=auto").general.processes >= 1


@pytest.mark.parametrize(("text", "count"), [("0", 1), ("1", 1), ("2", 2), ("8", 8)])
def test_the_former_name_still_works_unless_the_new_one_is_given_and_is_deprecated(text, count):
    options = parse(f"--frontends={text}")
    assert options.general.processes == count
    assert "--frontends is deprecated; use --processes instead" in options.warnings
    assert parse(f"--frontends={text}", "--processes=3").general.processes == 3


@pytest.mark.parametrize(
    ("flag", "texts", "least"),
    [("processes", ("-1", "0", "some", "65", "1.5", ""), 1), ("frontends", ("-1", "65", "some"), 0)],
)
def test_other_values_are_invalid(flag, texts, least):
    for text in texts:
        message = str(refusal(f"--{flag}={text}"))
        assert f"--{flag}" in message
        assert f"is not a number from {least} to 64 or 'auto'" in message, text
