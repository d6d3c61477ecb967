"""JSON in the texts of a request."""

from __future__ import annotations

import json
from typing import Any, Iterable, Mapping

from vllm_like import keys
from vllm_like.engines.base import CallerError


def parse(text: str, where: str) -> Any:
    """The value in a text; `CallerError` if it is not JSON, with *where* it is."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise CallerError(f"{where} is not valid JSON: {error}") from None


def reject_unknown(given: Mapping[str, Any], known: Iterable[str], where: str, what: str = "key") -> None:
    """As `keys.reject_unknown`, for what a caller has sent: raises `CallerError`."""
    try:
        keys.reject_unknown(given, known, where, what)
    except ValueError as error:
        raise CallerError(str(error)) from None
