"""Generates docs/reference/flags.md from options and docs/flags.toml: `.venv/bin/python docs/make_flags.py`."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from naiad.config.server.flag import Flag, NoEffect, Unsupported
from naiad.config.server.options import SERVER_FLAGS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "reference" / "flags.md"
_MORE = tomllib.loads((DOCS / "flags.toml").read_text(encoding="utf-8"))
"""By the flag's name: `more`, what the page says beside the flag's help, and the flag's tests."""

_INTRODUCTION = """\
# Flags of `tritonserver` and `naiad serve`

Written by `docs/make_flags.py` from `naiad.config.server.options` and `docs/flags.toml`, which names the tests of each
flag; `naiad explain MODEL` takes the same flags. A value follows its flag as `--flag=value` or `--flag value`; an
unambiguous beginning of a name is enough. Of a number, the beginning counts, with a warning.

All flags of Triton 2.51 are known. One without a note has Triton's values, default, errors and texts.

- **refused**: the server does not start and says why, unless the value asks for nothing (`false`, `off`, the default).
- **no effect**: accepted, because a server without it answers the same; the log has a line about it.
- **own**, marked by an asterisk: Triton has no such flag.

At the start, `Started HTTPService at ...`, `Started GRPCInferenceService at ...`, `Started Metrics Service at ...` and
the tables of backends and models are those of Triton; `python` comes first, and its path is the stub that runs.
"""


def page() -> str:
    """The page as Markdown."""
    parts = [_INTRODUCTION]
    for group, flags in groupby(SERVER_FLAGS, key=lambda flag: flag.group):
        rows = [f"| {_signature(flag)} | {_default(flag)} | {_description(flag)} |" for flag in flags]
        parts.append("\n".join([f"## {group}", "", "| flag | default | |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _signature(flag: Flag) -> str:
    mark = r"\*" if flag.own else ""
    return f"`--{flag.name}`{mark}" + (f" `{_escaped(flag.kind.value)}`" if flag.takes_value else "")


def _default(flag: Flag) -> str:
    return f"`{_escaped(flag.default)}`" if flag.default else ""


def _description(flag: Flag) -> str:
    sentences = [flag.help]
    if flag.choices:
        sentences.append(f"One of {', '.join(f'`{choice}`' for choice in flag.choices)}.")
    if flag.repeatable:
        sentences.append("May be repeated.")
    if flag.deprecated:
        sentences.append(f"Deprecated: use `{flag.deprecated}`.")
    if isinstance(flag.support, Unsupported):
        sentences.append(f"**Refused**: {flag.support.reason}.")
    elif isinstance(flag.support, NoEffect):
        sentences.append(f"**No effect**: {flag.support.reason}.")
    return " ".join([_plain(" ".join(sentences)), _escaped(_MORE[flag.name].get("more", ""))]).strip()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """Escape `<`: outside of backticks, Markdown takes a placeholder such as <name> for an HTML tag."""
    return _escaped(text.replace("<", "\\<"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
