"""The tables that the server logs at its start, in the format of the reference, because scripts parse them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from naiad.resolution.backend import PYTHON
from naiad.resolution.decision import STUB_FILENAME, Resolution

__all__ = ["agent_table", "backend_table", "model_table", "text_table"]

NO_VERSION = "Not loaded: No model version was found"


def backend_table(resolutions: Iterable[Resolution]) -> str:
    """The backends in use, one row each. `python` always has a row, because it also runs shared backends."""
    rows: dict[str, tuple[str, str, str]] = {}
    # Models of `python` itself first: only without any, the row of `python` shows the settings of a shared backend.
    for resolution in sorted(resolutions, key=lambda resolution: (resolution.is_shared, resolution.backend)):
        config = _cmdline_json(resolution)
        rows.setdefault(PYTHON, (PYTHON, str(resolution.guest.artifacts_dir / STUB_FILENAME), config))
        if resolution.is_shared:
            rows.setdefault(resolution.backend, (resolution.backend, str(resolution.model_file), config))
    return text_table(("Backend", "Path", "Config"), [row for _, row in sorted(rows.items())])


def model_table(models: Iterable[tuple[str, int | None, str]]) -> str:
    """Name, version and status of models, sorted by name and version.

    A status is `READY`, `UNAVAILABLE: <reason>` and so on. A model without a version and status is `NO_VERSION`.
    """
    rows = [
        (name, "-" if version is None else str(version), status or NO_VERSION)
        for name, version, status in sorted(models, key=lambda model: (model[0], model[1] or 0))
    ]
    return text_table(("Model", "Version", "Status"), rows)


def agent_table() -> str:
    """The repository agents: always empty, because naiad loads no native libraries."""
    return text_table(("Repository Agent", "Path"), ())


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


def _cmdline_json(resolution: Resolution) -> str:
    return json.dumps({"cmdline": dict(resolution.backend_config)}, separators=(",", ":"))
