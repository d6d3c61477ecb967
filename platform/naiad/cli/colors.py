"""Colors in the output of commands: for a terminal, and none for files, pipes and people who want none."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import click

_NO_COLOR = "NO_COLOR"  # with any value but an empty one, nobody wants colors (https://no-color.org)


class Paint:
    """Colors texts for a stream, or leaves them as they are."""

    def __init__(self, stream: TextIO | None = None) -> None:
        target = sys.stdout if stream is None else stream
        self.is_on = target.isatty() and not os.environ.get(_NO_COLOR) and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, color: str = "", *, bold: bool = False, dim: bool = False) -> str:
        return click.style(text, fg=color or None, bold=bold or None, dim=dim or None) if self.is_on else text
