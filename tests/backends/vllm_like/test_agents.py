"""Agents that people run, unchanged, with a model that says given texts: each runs a tool and answers after its result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.once import once
from support.packages import install_packages
from support.server import ServerProcess, free_ports

from .scripted import ScriptedModels, call_of

pytestmark = [pytest.mark.endurance]

CODEX, CLAUDE = "@openai/codex@0.171.0", "@anthropic-ai/claude-code@2.1.197"
AIDER = "aider-chat==0.86.2"
COMMAND = "echo written by a tool > proof.txt"
ANSWER = ["The file is ", "written now."]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engines: Path) -> Iterator[ServerProcess]:
    """A server with a model for each agent, since their tools have different names."""
    folder = tmp_path_factory.mktemp("agents")
    models = ScriptedModels(folder / "models", engines)
    size = {"has_words": True, "context": 131072, "max_num_seqs": 1, "max_num_batched_tokens": 2048}
    models.add("codex", call_of("exec_command", f'"cmd": "{COMMAND}"}}'), ANSWER, **size)
    unknown = call_of("multi_agent_v1__close_agent", '"target": "no such agent"}')
    models.add("codex-namespace", unknown, ANSWER, **size)
    edit = ["Here it is.\n\nproof.txt\n", "```\nwritten by ", "a tool\n```\n"]
    models.add("aider", edit, **size)
    shell = f'"command": "{COMMAND}", "description": "Write a file"}}'
    models.add("claude", call_of("Bash", shell), ANSWER, **size)
    models.write()
    port = free_ports(1)[0]
    with ServerProcess(folder / "models", f"--openai-port={port}", work=folder) as running:
        running.openai_port = port  # type: ignore[attr-defined]
        yield running


def npm_program(factory: pytest.TempPathFactory, package: str, name: str) -> Path:
    """A program of an npm package, installed once for the test run."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip(f"{package} needs node and npm, which are not installed")

    def install(folder: Path) -> None:
        folder.mkdir()
        command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--no-update-notifier", package]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        (folder / "failure").write_text(done.stderr[-300:] or "npm failed" if done.returncode else "")

    folder = once(factory, f"npm-{name}", install)
    failure = (folder / "failure").read_text()
    if failure:
        pytest.skip(f"{package} cannot be installed: {failure}")
    return folder / "node_modules" / ".bin" / name


def run(command: list[str | Path], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an agent in *folder*, with nothing of the user's own settings."""
    (folder / "home").mkdir()
    (folder / "work").mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environ = {**kept, "HOME": str(folder / "home"), "NO_PROXY": "127.0.0.1", **variables}
    done = subprocess.run(
        command, cwd=folder / "work", env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def codex(factory: pytest.TempPathFactory, server: ServerProcess, folder: Path, model: str) -> list[dict]:
    """The items of a turn of Codex."""
    program = npm_program(factory, CODEX, "codex")
    home = folder / "codex"
    home.mkdir()
    (home / "config.toml").write_text(
        f'model = "{model}"\nmodel_provider = "naiad"\n[model_providers.naiad]\nname = "naiad"\nwire_api = "responses"\n'
        f'base_url = "http://127.0.0.1:{server.openai_port}/v1"\nrequest_max_retries = 0\n'  # type: ignore[attr-defined]
    )
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    done = run([program, "exec", *options, "Write the file."], folder, CODEX_HOME=str(home))
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert events[-1]["type"] == "turn.completed", events[-1]
    assert events[-1]["usage"]["input_tokens"] > 1000
    return [event["item"] for event in events if event["type"] == "item.completed"]


def test_codex_runs_a_command_and_answers_after_its_result(tmp_path_factory, server, tmp_path):
    items = codex(tmp_path_factory, server, tmp_path, "codex")
    assert (tmp_path / "work" / "proof.txt").read_text() == "written by a tool\n"
    assert items[-1]["text"] == "".join(ANSWER)
    assert "ignoring tools of type 'web_search'" in server.log


def test_codex_runs_a_tool_of_a_namespace(tmp_path_factory, server, tmp_path):
    items = codex(tmp_path_factory, server, tmp_path, "codex-namespace")
    assert items[-1]["text"] == "".join(ANSWER)
    outputs = next((tmp_path / "codex" / "sessions").rglob("*.jsonl")).read_text()
    assert '"namespace":"multi_agent_v1"' in outputs
    assert "unsupported call" not in outputs


def test_claude_code_runs_a_command_and_answers_after_its_result(tmp_path_factory, server, tmp_path):
    program = npm_program(tmp_path_factory, CLAUDE, "claude")
    done = run(
        [program, "-p", "Write the file.", "--allowedTools", "Bash", "--output-format", "json"],
        tmp_path,
        ANTHROPIC_BASE_URL=f"http://127.0.0.1:{server.openai_port}",
        ANTHROPIC_AUTH_TOKEN="any",
        ANTHROPIC_MODEL="claude",
        ANTHROPIC_SMALL_FAST_MODEL="claude",
        CLAUDE_CONFIG_DIR=str(tmp_path / "home"),
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
        IS_SANDBOX="1",
    )
    result = json.loads(done.stdout)
    assert (tmp_path / "work" / "proof.txt").read_text() == "written by a tool\n"
    assert (result["result"], result["is_error"], result["num_turns"]) == ("".join(ANSWER), False, 2)
    assert "ignoring `context_management`" in server.log


def test_aider_edits_a_file(tmp_path_factory, server, tmp_path):
    def install(folder: Path) -> None:
        folder.mkdir()
        (folder / "failure").write_text(install_packages(sys.executable, folder, AIDER))

    packages = once(tmp_path_factory, "aider", install)
    failure = (packages / "failure").read_text()
    if failure:
        pytest.skip(f"{AIDER} cannot be installed: {failure}")
    options = ["--yes-always", "--no-git", "--no-show-model-warnings", "--no-check-update", "--analytics-disable"]
    command = [sys.executable, "-m", "aider", "--model", "openai/aider", "--message", "Write the file.", *options]
    run(
        [*command, "--no-pretty", "--edit-format", "whole", "proof.txt"],
        tmp_path,
        PYTHONPATH=str(packages),
        OPENAI_API_BASE=f"http://127.0.0.1:{server.openai_port}/v1",
        OPENAI_API_KEY="any",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    assert (tmp_path / "work" / "proof.txt").read_text() == "written by a tool\n"
