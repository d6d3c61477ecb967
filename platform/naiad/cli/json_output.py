"""The JSON that commands print with `--json`: one document on standard output; all other lines go to stderr.

The keys are documented in docs/reference/command-line.md. A key keeps its name and its meaning; new ones may be added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from naiad.config.server.option_group import own_switch


def json_option() -> Any:
    """The field of an option group for the flag `--json`, of commands that accept the server's flags."""
    return own_switch("json", "Print one JSON object.")


def print_json(document: Any, *, is_indented: bool = True) -> None:
    """Print dataclasses, containers, paths and numbers as one JSON document; numbers that are not finite are null."""
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if is_indented else 0)
    print(orjson.dumps(document, default=_to_json_value, option=option).decode(), flush=True)


def _to_json_value(value: Any) -> Any:
    # orjson knows neither paths nor sets.
    return list(value) if isinstance(value, Iterable) else str(value)
