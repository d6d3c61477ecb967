"""Documents as `json.loads` would give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

__all__ = ["plain"]


def plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a document whose sequences are lists: callers compare and change what they are given."""
    copy: dict[str, Any] = orjson.loads(orjson.dumps(document))
    return copy
