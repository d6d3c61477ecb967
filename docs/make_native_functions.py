"""Generates the functions in docs/reference/native-backends.md: `.venv/bin/python docs/make_native_functions.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from naiad_stub.native.signatures import Function, functions

PAGE = Path(__file__).parent / "reference" / "native-backends.md"
_HEADING = "## All functions\n"


def page() -> str:
    """The page as Markdown: as it is up to the last heading, then the functions."""
    kept = PAGE.read_text(encoding="utf-8").partition(_HEADING)[0]
    table = functions()
    missing = [function for function in table if function.unsupported]
    count = f"{len(table) - len(missing)} are implemented, and these return an UNSUPPORTED error with the reason:"
    lines = [
        _HEADING,
        f"Written by `docs/make_native_functions.py`. Of {len(table)} functions, as in Triton's headers,",
        count,
        "",
        "| not implemented | reason |",
        "|---|---|",
        *(f"| {_names(group)} | {reason} |" for reason, group in _by_reason(missing).items()),
        "",
    ]
    return kept + "\n".join(lines)


def _names(missing: Iterable[Function]) -> str:
    return ", ".join(f"`{function.name}`" for function in missing)


def _by_reason(missing: Iterable[Function]) -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for function in missing:
        found.setdefault(function.unsupported, []).append(function)
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
