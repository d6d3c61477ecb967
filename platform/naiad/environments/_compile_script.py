"""Run by an environment's own interpreter: compile files, the same way each time.

Reads a list of [source, bytecode, name that tracebacks show] as JSON. Runs under Python 3.8 as well.
"""

import json
import os
import py_compile
import sys


def main() -> None:
    """Compile what compiles: packages ship templates, and files for other versions of Python."""
    for source, target, shown in json.load(sys.stdin):
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - no pathlib where starts count
        try:
            py_compile.compile(
                source, target, dfile=shown, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP
            )
        except (py_compile.PyCompileError, OSError, ValueError, RecursionError):
            continue


main()
