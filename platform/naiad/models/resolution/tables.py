"""The tables that the server logs at its start, in the format of the reference, because scripts parse them."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Sequence

from naiad.core.errors import Code
from naiad.models.resolution.backend import PYTHON
from naiad.models.resolution.decision import Resolution

_CELL_WIDTH = 80  # characters in a line of a cell: a path and a configuration fit beside each other on most screens
_SETTING_END = re.compile(r'(?<=",)(?=")')
NO_VERSION = "Not loaded: No model version was found"
_UNAVAILABLE = "UNAVAILABLE: "
_NAMED_FAILURES = 3
_REASONS_LENGTH = 1200  # characters of all reasons that are named together
# The innermost frame of a model's own code, as exceptions and `faulthandler` have it.
_PLACE = re.compile(r'(?:^  |File ")(?P<file>/[^"\n]*/model\.py)(?:\(|", line )(?P<line>\d+)', re.MULTILINE)
_CODES = frozenset(code.value for code in Code)


def backend_table(resolutions: Iterable[Resolution]) -> str:
    """The backends in use, one row each, `python` first. `python` also runs shared backends, so these add its row.

    The path of `python` is the stub that runs: one line for each stub, if models bring their own.
    """
    rows: dict[str, tuple[str, str, str]] = {}
    stubs: dict[str, None] = {}
    # Models of `python` itself first: only without any, the row of `python` shows the settings of a shared backend.
    for resolution in sorted(resolutions, key=lambda resolution: (resolution.is_shared, resolution.backend)):
        config = json.dumps({"cmdline": dict(resolution.backend_config)}, separators=(",", ":"))
        if resolution.library is not None:
            key = f"{resolution.backend}\0{resolution.model_file}"  # models may bring libraries of one name
            rows.setdefault(key, (resolution.backend, str(resolution.model_file), config))
            continue
        stubs.setdefault(str(resolution.stub))
        rows.setdefault(PYTHON, (PYTHON, "", config))
        if resolution.is_shared:
            rows.setdefault(resolution.backend, (resolution.backend, str(resolution.model_file), config))
    if PYTHON in rows:
        rows[PYTHON] = (PYTHON, "\n".join(stubs), rows[PYTHON][2])
    ordered = sorted(rows.items(), key=lambda item: (item[0] != PYTHON, item[0]))
    return text_table(
        ("Backend", "Path", "Config"),
        [(name, path, _wrapped(config)) for _, (name, path, config) in ordered],
    )


def model_table(models: Iterable[tuple[str, int | None, str]]) -> str:
    """Name, version and status of models, sorted by name and version.

    A status is `READY`, `UNAVAILABLE: <reason>` and so on; reasons are wrapped between words. A model without a version
    and status is `NO_VERSION`.
    """
    rows = [
        (name, "-" if version is None else str(version), _wrapped_at_words(status or NO_VERSION))
        for name, version, status in sorted(models, key=lambda model: (model[0], model[1] or 0))
    ]
    return text_table(("Model", "Version", "Status"), rows)


def failed_models(models: Iterable[tuple[str, int | None, str]]) -> str:
    """How many of the models of `model_table` could not be loaded, and the first of them with their reasons.

    Empty if every model could be loaded, or if none of those that could not has a reason.
    """
    rows = sorted(models, key=lambda model: (model[0], model[1] or 0))
    reasons: dict[str, str] = {}
    for name, _, status in rows:
        if status.startswith(_UNAVAILABLE):
            reasons.setdefault(name, _in_one_line(status.removeprefix(_UNAVAILABLE)))
    if not reasons:
        return ""
    length = _REASONS_LENGTH // min(len(reasons), _NAMED_FAILURES)
    named = [
        f"{name} ({textwrap.shorten(why, length, placeholder=' ...')})"
        for name, why in list(reasons.items())[:_NAMED_FAILURES]
    ]
    others = len(reasons) - len(named)
    more = f" and {others} more, see above" if others else ""
    return f"{len(reasons)} of {len({name for name, _, _ in rows})} models failed: {', '.join(named)}{more}"


def _in_one_line(reason: str) -> str:
    """The place in `model.py` and the first line of a reason, without the word of the protocol before it."""
    line, _, rest = reason.partition("\n")
    code, _, text = line.partition(": ")
    line = text if code in _CODES else line
    line = line.removesuffix(" Its last lines on stderr:")
    place = _PLACE.search(rest)
    return f"{place['file']}:{place['line']}: {line}" if place else line


def agent_table() -> str:
    """The repository agents: always empty, because naiad loads no agents."""
    return text_table(("Repository Agent", "Path"), ())


def option_table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values of the server's options, each in one line."""
    return text_table(("Option", "Value"), rows)


def text_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a frame, ending with a newline. Cells may have several lines."""
    cells = [[cell.splitlines() or [""] for cell in row] for row in (headers, *rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(headers))]
    frame = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    head, *body = (_row_lines(row, widths) for row in cells)
    return "\n".join([frame, *head, frame, *(line for lines in body for line in lines), frame, ""])


def _row_lines(row: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    height = max(map(len, row))
    padded = [[*lines, *[""] * (height - len(lines))] for lines in row]
    return [
        "| " + " | ".join(lines[index].ljust(width) for lines, width in zip(padded, widths, strict=True)) + " |"
        for index in range(height)
    ]


def _wrapped(config: str) -> str:
    """The settings in lines of at most _CELL_WIDTH; a longer setting has its own line: scripts look for paths."""
    lines = [""]
    for setting in _SETTING_END.split(config):
        if lines[-1] and len(lines[-1]) + len(setting) > _CELL_WIDTH:
            lines.append("")
        lines[-1] += setting
    return "\n".join(lines)


def _wrapped_at_words(text: str) -> str:
    """The text in lines of at most _CELL_WIDTH; longer lines are wrapped between words, never inside one."""
    lines = (
        textwrap.wrap(line, _CELL_WIDTH, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
        or [""]
        for line in text.splitlines()
    )
    return "\n".join(part for parts in lines for part in parts)
