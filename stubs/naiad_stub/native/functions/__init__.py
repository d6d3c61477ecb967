"""The functions of the API, one method for each, grouped by the objects they work on.

A method is named after its function (`signatures.Function.method`) and gets numbers in place of pointers and handles,
and bytes in place of texts. It returns 0 where the function succeeds, and raises `ApiCallError` where it fails.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

from naiad_stub.native.signatures import functions


def implementations(groups: Sequence[Any]) -> Dict[str, Callable[..., int]]:
    """The methods of *groups* by the names of their functions."""
    found: Dict[str, Callable[..., int]] = {}
    for function in functions():
        name = function.method
        for group in groups:
            method = getattr(group, name, None)
            if method is not None:
                found[function.name] = method
    return found
