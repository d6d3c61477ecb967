"""Generates the table in docs/reference/native-backends.md: `.venv/bin/python docs/make_native_functions.py`."""

from __future__ import annotations

from pathlib import Path

from naiad_stub.native.signatures import Function, functions

PAGE = Path(__file__).parent / "reference" / "native-backends.md"
_HEADING = "## All functions\n"


def page() -> str:
    """The page as Markdown: as it is up to the last heading, then the table."""
    kept = PAGE.read_text(encoding="utf-8").partition(_HEADING)[0]
    table = functions()
    missing = [function for function in table if function.unsupported]
    count = f"{len(table)} functions: {len(table) - len(missing)} are implemented, {len(missing)} return UNSUPPORTED."
    lines = [
        _HEADING,
        f"Written by `docs/make_native_functions.py`. {count}",
        "",
        "| function | arguments | |",
        "|---|---|---|",
        *(f"| `{function.name}` | {_arguments(function)} | {_state(function)} |" for function in table),
        "",
    ]
    return kept + "\n".join(lines)


def _arguments(function: Function) -> str:
    return ", ".join(f"{argument.kind} `{argument.name}`" for argument in function.arguments)


def _state(function: Function) -> str:
    return f"UNSUPPORTED: {function.unsupported}" if function.unsupported else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
