"""Run by an environment's own interpreter: compile the given files in the given order.

Input on stdin: a JSON list of [source, bytecode file, path stored in the bytecode]. Runs under Python 3.8 too.
"""

import json
import os
import py_compile
import sys


def main() -> None:
    """Compile every file; skip those that fail: packages contain templates and files for other Python versions."""
    for source, target, shown in json.load(sys.stdin):
        # No pathlib: importing it would slow down every start of this script.
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - see above
        try:
            py_compile.compile(
                source, target, dfile=shown, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP
            )
        except (py_compile.PyCompileError, OSError, ValueError, RecursionError):
            continue


main()
