"""Runs `examine_model.py` of a shared backend with a model's interpreter, and prints the problems it finds."""

from __future__ import annotations

import importlib
import json
import sys
import warnings

MARK = "naiad-doctor:"


def main() -> None:
    """Print the problems."""
    request = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    sys.path.append(request["folder"])
    problems = importlib.import_module("examine_model").examine(request["directory"], request["parameters"])
    sys.stdout.write(MARK + json.dumps({"problems": problems}) + "\n")


main()
