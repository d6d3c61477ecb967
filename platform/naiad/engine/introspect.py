"""Whether a model's code can define `auto_complete_config` at all, told from its text.

Completing a configuration takes a process of its own (an interpreter's start and the model's imports), so it is left
out where it cannot have an effect. In doubt the answer is yes.
"""

from __future__ import annotations

import ast
from pathlib import Path

_HOOK = "auto_complete_config"
_CLASS = "TritonPythonModel"


def may_auto_complete(model_file: Path) -> bool:
    """False only if the model's class inherits from nothing and the hook's name is not in the file."""
    try:
        text = model_file.read_text(encoding="utf-8")
        return _HOOK in text or not _defines_plain_class(ast.parse(text))
    except (OSError, SyntaxError, ValueError):
        return True  # the guest will say what is wrong


def _defines_plain_class(tree: ast.Module) -> bool:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == _CLASS]
    return bool(classes) and all(
        not node.keywords
        and not node.decorator_list
        and all(isinstance(base, ast.Name) and base.id == "object" for base in node.bases)
        for node in classes
    )
