"""litellm and langchain-openai, unchanged, as clients: chats, streams, tools, embeddings, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.once import once
from support.packages import install_packages
from support.server import ServerProcess

pytestmark = pytest.mark.endurance

PACKAGES = ("litellm>=1.60", "langchain-openai>=1")
SCRIPT = Path(__file__).with_name("other_clients.py")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both clients. They are not among the project's own: litellm needs an openai before 3.0."""

    def install(folder: Path) -> None:
        folder.mkdir()
        (folder / "failure").write_text(install_packages(sys.executable, folder, *PACKAGES))

    folder = once(tmp_path_factory, "other-clients", install)
    failure = (folder / "failure").read_text()
    if failure:
        pytest.skip(f"litellm and langchain-openai cannot be installed from the package index: {failure}")
    return folder


def asked(packages: Path, server: ServerProcess, client: str) -> Any:
    base = f"http://127.0.0.1:{server.openai_port}/v1"
    environ = {
        **os.environ,
        "PYTHONPATH": str(packages),
        # Neither client may ask anybody else: the price list of models, the tracing service.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), client, base],
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_litellm_talks_to_a_model(packages, server):
    got = asked(packages, server, "litellm")
    assert (got["text"], got["reason"], got["tokens"]) == ("one two three ", "stop", 3)
    assert got["streamed"] == "one two three "
    assert (got["call"], got["call_reason"]) == (["weather", {"said": "one two three"}], "tool_calls")
    assert [vector[0] for vector in got["vectors"]] == [2.0, 3.0]
    assert got["error"][0] == "BadRequestError"
    assert "this model fails when it is told to" in got["error"][1]
    assert got["unknown"][0] == "NotFoundError"


def test_langchain_talks_to_a_model(packages, server):
    got = asked(packages, server, "langchain")
    assert (got["text"], got["tokens"]) == ("one two three ", 3)
    assert (got["streamed"], got["streamed_tokens"]) == ("one two three ", 3)
    assert got["call"] == ["weather", {"said": "one two"}]
    assert got["response"] == "one two three "
    assert [vector[0] for vector in got["vectors"]] == [2.0, 3.0]
    assert got["batch"] == ["one ", "two "]
    assert got["error"][0] in {"BadRequestError", "OpenAIInvalidRequestError"}  # by its version
    assert "this model fails when it is told to" in got["error"][1]
