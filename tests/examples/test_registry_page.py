"""The page about registries, followed literally with a registry of the tests in the place of `registry.example`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.registry import Registry
from support.server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "registry.md").read_text(encoding="utf-8")
BLOCKS = [block.strip() for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)]
COMMANDS = [block for block in BLOCKS if block.startswith("naiad ")]

pytestmark = pytest.mark.slow


def expected(command):
    """The output that the page shows below a command; empty if it shows none."""
    following = BLOCKS[BLOCKS.index(command) + 1 :]
    return following[0] if following and not following[0].startswith("naiad ") else ""


def without_details(text):
    """A text without digests, ids of keys, sizes and paths, which differ from machine to machine."""
    text = re.sub(r"@sha256:[0-9a-f.]+", "@sha256:*", text)
    text = re.sub(r"sha256:[0-9a-f]{12}\b", "sha256:*", text)
    text = re.sub(r"\b[0-9a-f]{16}\b", "KEY", text)
    text = re.sub(r"[0-9.]+ k?B\b", "SIZE", text)
    return re.sub(r" in (/\S+|\.\.\.)$", " in PLACE", text, flags=re.MULTILINE)


def test_the_page_about_registries_is_followed(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environ = {**os.environ, "HOME": str(tmp_path), "NAIAD_STORE": str(tmp_path / "store")}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        environ.pop(name, None)
    assert len(COMMANDS) == 6
    with Registry() as registry:

        def here(text):
            return text.replace("registry.example", registry.host)

        for command in COMMANDS:
            if command.startswith("naiad serve"):
                flags = [flag.replace("=keys.toml", f"={tmp_path / 'keys.toml'}") for flag in here(command).split()[2:]]
                work = tmp_path / "work"
                work.mkdir()
                with ServerProcess(None, *flags, work=work, environ={"NAIAD_STORE": str(tmp_path / "store")}) as server:
                    assert without_details(here(expected(command))) in without_details(server.log)
                    assert server.get("/v2/models/add_sub").status == 200
                continue
            done = subprocess.run(
                ["bash", "-c", here(command)],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            if expected(command):
                assert without_details(done.stdout.strip()) == without_details(here(expected(command)))
    assert (tmp_path / "shop" / "add_sub" / "config.pbtxt").exists()
