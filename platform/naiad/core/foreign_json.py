"""JSON that other programs have written: whatever is wrong with it is a `ValueError`."""

from __future__ import annotations

import json
from typing import Any

TOO_MANY_DIGITS = "a number has thousands of digits"


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError if it is malformed, nested too deeply, or has a number of many digits."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python's text would tell users to change the interpreter's limit
        raise ValueError(TOO_MANY_DIGITS) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
