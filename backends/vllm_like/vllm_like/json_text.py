"""JSON in the texts of a request."""

from __future__ import annotations

import json
from typing import Any

from vllm_like.engines.base import CallerError


def parse(text: str, where: str) -> Any:
    """The value in a text.

    Args:
        text: The text.
        where: What it is, for the error, as `'messages'`.

    Raises:
        CallerError: If it is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise CallerError(f"{where} is not valid JSON: {error}") from None
