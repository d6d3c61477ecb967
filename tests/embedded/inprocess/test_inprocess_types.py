"""What type checkers find in programs that use the server in their own process."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from typing import get_type_hints

import pytest

from naiad_embedded.inprocess.options import OptionFields, Options
from naiad_embedded.inprocess.request import InferenceRequest, RequestFields

PROGRAM = """\
import naiad

server = naiad.Server(model_repository="models", exit_timeout=5, flags=["--env-store=store"])
naiad.Server(naiad.Options(model_repository="models"))
model = server.model("m")
model.create_request(inputs={}, priority=1)
model.infer(inputs={}, parameters={"k": 1})

naiad.Server(nonsense=1)  # wrong
naiad.Server(exit_timeout="soon")  # wrong
model.create_request(input={})  # wrong
model.infer(prioritty=1)  # wrong
model.async_infer(timeout="1 s")  # wrong
"""


def test_the_arguments_are_the_fields():
    assert get_type_hints(OptionFields) == get_type_hints(Options)
    assert list(OptionFields.__annotations__) == [field.name for field in fields(Options)]
    request = get_type_hints(InferenceRequest)
    del request["model"]
    assert get_type_hints(RequestFields) == request


@pytest.mark.slow
def test_arguments_that_do_not_exist_or_have_another_type_are_found(tmp_path):
    """Before, `naiad_embedded` had no `py.typed`, so that everything of it was `Any`: `naiad.Server(nonsense=1)` passed."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            f"--cache-dir={tmp_path / 'cache'}",
            program,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    found = {int(number) for number in re.findall(r"program\.py:(\d+): error", done.stdout)}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr
