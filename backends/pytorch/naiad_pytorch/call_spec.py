"""The call specification of a package of torch.export: the names of its tensors.

The names are the reference's (pytorch_backend README.md): `INPUT__0` and `OUTPUT__0` by position, or `ARGS[0]`,
`KWARGS[key]` and `RESULT[key][0]` by the structure of what the model was exported with.
"""

from __future__ import annotations

import json
from typing import Any, List, Tuple


def input_names(specification: str) -> Tuple[str, ...]:
    """The names of inputs by structure, in the order of the call."""
    positional, keywords = json.loads(specification)[1]["children_spec"]
    return tuple(f"ARGS{path}" for path in _paths(positional)) + tuple(f"KWARGS{path}" for path in _paths(keywords))


def output_names(specification: str) -> Tuple[str, ...]:
    """The names of outputs by structure, in order; `RESULT` for a single tensor."""
    return tuple(f"RESULT{path}" for path in _paths(json.loads(specification)[1]))


def _paths(node: Any) -> List[str]:
    """The way to each tensor below a node."""
    if not node.get("type"):
        return [""]
    children = node.get("children_spec") or []
    context = node.get("context")
    if isinstance(context, str):
        context = json.loads(context)
    is_named = isinstance(context, list) and len(context) == len(children)
    keys = context if is_named else range(len(children))
    return [f"[{key}]{rest}" for key, child in zip(keys, children) for rest in _paths(child)]
