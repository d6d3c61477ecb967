"""`--ui-password` and `--ui-control`."""

from __future__ import annotations

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


def test_the_page_controls_models_where_that_is_allowed():
    assert parse("--ui=true", "--ui-control=true", *EXPLICIT).ui_control
    assert not parse("--ui=true", *EXPLICIT).ui_control
