"""Files of the folder `templates`, in which values take the places that are written `${name}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).with_name("templates")
_PLACE = re.compile(r"\$\{(\w+)\}")
_ITEM = re.compile(r"(\s*)((?:- )?[\w./-]+: )?\$\{(\w+)\}")


def render(template: str, **values: Any) -> str:
    """The text of a template.

    - A place that is all that follows a key gets the value as YAML: text as in JSON, of which YAML is a superset, and a
      list with one item a line.
    - A place that is the whole line gets lines of text, with its indentation.
    - Of both, the line is left out where the value is None.
    - Elsewhere the place gets the value as text.
    """
    lines = (_line(line, values) for line in (_FOLDER / template).read_text(encoding="utf-8").splitlines())
    return "".join(f"{line}\n" for line in lines if line is not None)


def _line(line: str, values: Mapping[str, Any]) -> str | None:
    found = _ITEM.fullmatch(line)
    if found is None:
        return _PLACE.sub(lambda place: str(values[place[1]]), line)
    indent, key, value = found[1], found[2], values[found[3]]
    if value is None:
        return None
    if key is None:
        return "\n".join(f"{indent}{each}".rstrip() for each in value.splitlines())
    if isinstance(value, list):
        return "\n".join([f"{indent}{key}".rstrip(), *(f"{indent}  - {json.dumps(each)}" for each in value)])
    return f"{indent}{key}{json.dumps(value)}"
