"""Errors of TOML files, shown as compilers show theirs."""

from __future__ import annotations

import sys

import pytest

from naiad.core.toml import explain_toml_error

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def explained(text: str) -> str:
    with pytest.raises(tomllib.TOMLDecodeError) as caught:
        tomllib.loads(text)
    return explain_toml_error(caught.value, text)


def test_the_line_is_shown_with_a_caret_below_the_place():
    assert explained('name = "a"\npython = >=3.10\n') == (
        "invalid value at line 2, column 10\n   |\n 2 | python = >=3.10\n   |          ^"
    )


def test_tabs_before_the_place_are_kept():
    assert explained("\tname = \n").splitlines()[-1].startswith("   | \t")


def test_the_end_of_the_file_is_a_place_too():
    message = explained('name = "a')

    assert message.splitlines()[-2] == ' 1 | name = "a'
    assert message.endswith("^")


def test_a_very_long_line_is_not_shown():
    assert "|" not in explained(f"name = {'x' * 500}")


def test_an_error_without_a_place_stays_as_it_is():
    assert explain_toml_error(ValueError("no place"), "") == "no place"
