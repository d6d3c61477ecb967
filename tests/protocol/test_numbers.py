"""Numbers in clients' text."""

from __future__ import annotations

import pytest

from naiad.protocol.numbers import decimal, integer

NOT_NUMBERS = [
    "",
    "6_8",
    " 68",
    "68 ",
    "+68",
    "0x44",
    "68\n",
    "\uff16\uff18",
    "\u0666\u0668",
    "\xb2",
    "\xa068",
    "--1",
    "nan",
    "inf",
    "1e",
    ".",
]


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("-1", -1), ("007", 7), ("9" * 19, int("9" * 19))])
def test_integers_are_ascii_digits(text, value):
    assert integer(text) == value


@pytest.mark.parametrize("text", [*NOT_NUMBERS, "1.0", "1e3", "9" * 20, "9" * 5000])
def test_other_texts_are_not_integers(text):
    assert integer(text) is None


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("-1.5", -1.5), ("2.", 2), ("1e3", 1000), ("1.5E-2", 0.015)])
def test_decimals_are_what_json_writes(text, value):
    assert decimal(text) == value


@pytest.mark.parametrize("text", [*NOT_NUMBERS, "1_0.5", ".5_", "Infinity", "1e999", "-1e999", "9" * 5000])
def test_other_texts_are_not_decimals(text):
    assert decimal(text) is None
