"""Generates protocol.json from docs/reference/openapi.yaml: `.venv/bin/python docs/make_openapi.py`.

The server makes its own document from it (`naiad/frontends/api_page`), and has no parser for YAML.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path(__file__).parent / "reference" / "openapi.yaml"
TARGET = Path(__file__).parents[1] / "platform" / "naiad" / "frontends" / "api_page" / "protocol.json"


def document() -> str:
    """The document as JSON, with what its anchors name in each place."""
    loaded: dict[str, Any] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return json.dumps(loaded, ensure_ascii=False, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
