"""Whether a model's code may define `auto_complete_config`, judged by its source text.

Auto-completion costs a process (the start of an interpreter and the model's imports), so it is skipped where it cannot
have an effect. In doubt the answer is yes. A complete configuration is no reason to skip it, since the function may
change that; the process that serves cannot call it, since its side effects would stay; and code of models is never
imported here.
"""

from __future__ import annotations

import ast
import threading
from pathlib import Path

# Python 3.11 adds the recursion depths of all threads that run `ast.parse`, and fails (gh-106905).
_one_at_a_time = threading.Lock()
_HOOK = "auto_complete_config"
_CLASS = "TritonPythonModel"


def may_auto_complete(model_file: Path) -> bool:
    """False only if the model's class has no base class and the hook's name is not in the file."""
    try:
        text = model_file.read_text(encoding="utf-8-sig")
        if _HOOK in text:
            return True
        with _one_at_a_time:
            tree = ast.parse(text)
    # The guest reports what is wrong with the file. SystemError: a thread outside this module parsed at the same time.
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return True
    return not _defines_plain_class(tree)


def _defines_plain_class(tree: ast.Module) -> bool:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == _CLASS]
    return bool(classes) and all(
        not node.keywords
        and not node.decorator_list
        and all(isinstance(base, ast.Name) and base.id == "object" for base in node.bases)
        for node in classes
    )
