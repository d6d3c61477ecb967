"""`--ui-address`, `--ui-password` and `--ui-control`."""

from __future__ import annotations

import re

import pytest
from cli.parsing import parse as parse_flags

from naiad.core.errors import NaiadError

EXPLICIT = ("--model-control-mode=explicit",)


def parse(*arguments):
    return parse_flags(*arguments).http


def test_the_password_is_the_first_line_of_a_file(tmp_path):
    file = tmp_path / "password"
    file.write_text("open sesame \nmore\n")
    assert parse("--ui=true", f"--ui-password={file}").ui_password == "open sesame"
    assert not parse("--ui=true").ui_password


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file or directory"), (b"\n", "its first line is empty"), (b"\xff", "not UTF-8")],
)
def test_a_file_without_a_password_is_rejected(tmp_path, content, problem):
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NaiadError, match=problem):
        parse("--ui=true", f"--ui-password={file}")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--ui-control=true", *EXPLICIT), "--ui-control needs --ui=true"),
        (("--ui-password=file",), "--ui-password needs --ui=true"),
        (("--ui=true", "--ui-control=true"), "--ui-control needs --model-control-mode=explicit"),
        (
            ("--ui=true", "--ui-control=true", *EXPLICIT, "--http-restricted-api=model-repository:key=value"),
            "--ui-control needs --ui-password",
        ),
    ],
)
def test_flags_of_the_page_that_do_not_fit_are_rejected(arguments, problem):
    with pytest.raises(NaiadError, match=problem):
        parse(*arguments)


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ((), "127.0.0.1"),
        (("--http-address=0.0.0.0",), "127.0.0.1"),
        (("--ui-password={file}",), "0.0.0.0"),
        (("--ui-password={file}", "--ui-address=localhost"), "127.0.0.1"),
        (("--ui-address=::1",), "127.0.0.1"),
        (("--ui-address=[::]",), "0.0.0.0"),
        (("--ui-address=10.0.0.5",), "10.0.0.5"),
        (("--ui-address=10.0.0.5", "--http-address=10.0.0.5"), "10.0.0.5"),
    ],
)
def test_without_a_password_the_page_is_for_its_own_machine_unless_asked_otherwise(tmp_path, arguments, address):
    file = tmp_path / "password"
    file.write_text("open sesame")
    assert parse("--ui=true", *(each.format(file=file) for each in arguments)).ui_address == address


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--ui-address=0.0.0.0",), "--ui-address needs --ui=true, which serves the page"),
        (("--ui=true", "--ui-address=gpu-7"), "'gpu-7' is not an address; give 127.0.0.1, 0.0.0.0 or one of"),
        (
            ("--ui=true", "--ui-address=10.0.0.5", "--http-address=127.0.0.1"),
            "--ui-address=10.0.0.5 is not an address of HTTP, whose port the page uses: --http-address=127.0.0.1",
        ),
    ],
)
def test_an_address_that_cannot_serve_the_page_is_rejected(arguments, problem):
    with pytest.raises(NaiadError, match=re.escape(problem)):
        parse(*arguments)


def test_a_page_that_nobody_can_open_is_warned_of():
    def warnings(*arguments):
        return [each for each in parse_flags("--ui=true", *arguments).warnings if "nobody can open" in each]

    text = (
        "nobody can open the page at /ui: without --ui-password it is served to this machine alone, and "
        "--http-address=10.0.0.5 is not a loopback address; set --ui-password=FILE, or --ui-address=10.0.0.5 to serve "
        "it without a password"
    )
    assert warnings("--http-address=10.0.0.5") == [text]
    assert warnings("--http-address=10.0.0.5", "--ui-address=10.0.0.5") == []
    assert warnings("--http-address=127.0.0.1") == warnings("--http-address=::") == warnings() == []


def test_the_page_controls_models_where_that_is_allowed():
    assert parse("--ui=true", "--ui-control=true", *EXPLICIT).ui_control
    assert not parse("--ui=true", *EXPLICIT).ui_control
