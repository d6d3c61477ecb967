"""Files that were not fetched: Git LFS pointers and HTML pages in place of code, weights and configurations."""

from __future__ import annotations

import pytest
from serving.written import evaluate, write_model
from support.server import ServerProcess

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234567\n"
PAGE = "\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"
IS_POINTER = "a Git LFS pointer instead of the file; run `git lfs pull` in the repository that it comes from"
IS_PAGE = "an HTML page instead of the file, as servers send for a login or an error; download it again"
NEEDS_WEIGHTS = """
def initialize(self, args):
    with open(os.path.join(args["model_repository"], "1", "weights.bin"), "rb") as file:
        if file.read(4) != b"good":
            raise ValueError("bad magic number")
"""


@pytest.fixture(scope="module")
def server(work):
    models = work / "models"
    write_model(models, "serves")
    (models / "serves" / "1" / "weights.bin").write_text(POINTER)
    write_model(models, "code").write_text(POINTER)
    write_model(models, "page").write_text(PAGE)
    write_model(models, "weights", NEEDS_WEIGHTS)
    (models / "weights" / "1" / "weights.bin").write_text(POINTER)
    (models / "weights" / "1" / "more.bin").write_text(PAGE)
    (models / "weights" / "1" / "form.html").write_text(PAGE)  # a page that is meant to be one
    write_model(models, "config")
    (models / "config" / "config.pbtxt").write_text(POINTER)
    write_model(
        models, "archive", config='parameters { key: "EXECUTION_ENV_PATH" value { string_value: "env.tar.gz" } }\n'
    )
    (models / "archive" / "env.tar.gz").write_text(POINTER)
    with ServerProcess(models, "--exit-on-error=false", "--strict-readiness=false", work=work) as running:
        yield running


def reason(server: ServerProcess, model: str) -> str:
    (found,) = [each for each in server.post("/v2/repository/index").json() if each["name"] == model]
    return str(found["reason"])


def place(server: ServerProcess, model: str) -> str:
    return str(server.work / "models" / model)


@pytest.mark.parametrize(("model", "what"), [("code", IS_POINTER), ("page", IS_PAGE)])
def test_code_that_was_not_fetched_is_no_syntax_error(server, model, what):
    assert reason(server, model).endswith(f"cannot run the code in {place(server, model)}/1/model.py: it is {what}")


def test_weights_that_were_not_fetched_explain_the_error_of_the_model(server):
    first, _, _ = reason(server, "weights").partition("\n")
    assert "ValueError: bad magic number" in first
    assert first.endswith(f"; '{place(server, 'weights')}/1/more.bin' is {IS_PAGE} (and 1 more)")


def test_a_model_that_does_not_need_them_serves_and_is_warned_of(server):
    assert evaluate(server, "serves", "1") == "1"
    assert f"'serves': '{place(server, 'serves')}/1/weights.bin' is {IS_POINTER}" in server.log
