"""Models that say given texts, for tests of what a real engine and this backend make of a model's output."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .conftest import add_model

HERE = Path(__file__).parent
HERMES = (HERE / "hermes.jinja").read_text(encoding="utf-8")
"""Tools in the form of Hermes and Qwen 2.5; a system message anywhere but at the start raises an exception."""
THINKING = HERMES.replace(
    "{{- '<|im_start|>assistant\\n' }}\n{%- if ns", "{{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- if ns"
)
"""The same for a model that always thinks first."""
assert THINKING != HERMES

Piece = str | list[int]


def call_of(name: str, arguments: str) -> list[Piece]:
    """A tool call as such a model writes it, in four tokens; *arguments* are JSON without its opening brace.

    A token ends where the first value begins: up to there, a grammar may demand the text.
    """
    middle = arguments.find('": "') + 4 if '": "' in arguments else len(arguments) // 2
    return [
        f'<tool_call>\n{{"name": "{name}", "arguments": {{',
        arguments[:middle],
        arguments[middle:],
        "}\n</tool_call>",
    ]


class ScriptedModels:
    """Adds scripted models to a repository; `write` makes the files of all of them at once."""

    def __init__(self, repository: Path, engines: Path) -> None:
        self._repository = repository
        self._engines = engines
        self._models: list[dict[str, Any]] = []

    def add(
        self,
        name: str,
        *scripts: Sequence[Piece],
        template: str = HERMES,
        has_words: bool = False,
        context: int = 4096,
        **settings: Any,
    ) -> None:
        """A model whose answers are *scripts*: the first one, or the one with as many as the conversation has tool results."""
        document = {"model": "scripted.gguf", "max_model_len": context, "max_num_seqs": 2, **settings}
        path = add_model(self._repository, self._engines, name, document) / "scripted.gguf"
        model = {"path": str(path), "template": template, "scripts": scripts, "context": context}
        self._models.append({**model, "has_words": has_words})

    def write(self) -> None:
        done = subprocess.run(
            [self._engines / "bin" / "python", HERE / "scripted_gguf.py"],
            input=json.dumps(self._models),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
