"""The examples as their READMEs describe them: what to type, and what is printed."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from support.server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
OF_ANOTHER_KIND = {
    "demo": "in part",
    "frameworks": "ours",
    "gpu": "ours",
    "in_process": "ours",
    "llm_pipeline": "ours",
    "onnx_pipeline": "ours",
}
"""Examples that are no server and client, with tests of their own; and whether they run on Triton."""

ON_TRITON = "Runs unchanged on Triton; checked with 2.51."
OURS = "Ours: "


@dataclass(frozen=True)
class Example:
    """One folder, as its README has it.

    Attributes:
        name: Of the folder.
        server: The words of the command that starts the server.
        client: The words of the command that asks it.
        output: What the client prints.
        is_ours: Whether Triton cannot run it.
    """

    name: str
    server: list[str]
    client: list[str]
    output: str
    is_ours: bool

    @property
    def models(self) -> Path:
        """The repository that the server's command names."""
        return ROOT / self.server[2]

    def ask(self, server: ServerProcess) -> subprocess.CompletedProcess[str]:
        """Run the client as described, but at the addresses of this server, and without a process of its own."""
        addresses = {
            "localhost:8000": server.http_url,
            "localhost:8001": server.grpc_url,
            "localhost:8002": server.metrics_url,
        }
        return run_script(ROOT / self.client[1], *(addresses.get(word, word) for word in self.client[2:]))


def run_script(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `python SCRIPT ARGUMENTS` does, in this process: interpreters that import numpy take longer than most scripts."""
    out, err = io.StringIO(), io.StringIO()
    known = set(sys.modules)
    code: object = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", [str(script), *arguments]),
        mock.patch.object(sys, "path", [str(script.parent), *sys.path]),
        mock.patch.object(sys, "dont_write_bytecode", new=True),  # in a checkout, which stays clean
    ):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            traceback.print_exc()
            code = 1
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == script.parent:
            del sys.modules[name]
    status = code if isinstance(code, int) else 1
    said = err.getvalue() if isinstance(code, int) else f"{err.getvalue()}{code}\n"
    return subprocess.CompletedProcess([str(script), *arguments], status, out.getvalue(), said)


def example_names() -> list[str]:
    """Every folder below `examples/` with a server and a client."""
    return sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name not in OF_ANOTHER_KIND)


def read_example(name: str) -> Example:
    """What the README of a folder says."""
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "text"], f"{name}: two commands, then their output"
    commands = [shlex.split(line) for line in blocks[0][1].splitlines()]
    assert len(commands) == 2, f"{name}: one command for the server and one for the client, not {commands}"
    last = text.rstrip().rpartition("\n\n")[2]
    assert last == ON_TRITON or last.startswith(OURS), f"{name}: the README ends with {last!r}"
    return Example(name, *commands, output=blocks[1][1], is_ours=last != ON_TRITON)
