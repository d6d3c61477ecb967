"""Guests of another Python for the models of any test: NAIAD_GUESTS_OF=ENVIRONMENT pytest tests/serving/...

ENVIRONMENT is a virtual environment with numpy, of whichever Python. What a test writes into its repositories before
it starts a server then runs there, so the tests of what a `model.py` may do need not be written once for each Python.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

ENVIRONMENT = os.environ.get("NAIAD_GUESTS_OF", "")
_OWN_MODELS = Path(__file__).parents[1]
_SAYS_OTHERWISE = re.compile(r"EXECUTION_ENV_PATH|PYTHON_VERSION|ensemble_scheduling|platform:")


def give_environment(repositories: Iterable[Path], environment: str = ENVIRONMENT) -> None:
    """Have the models of *repositories* run in *environment*, but for those that have a wish of their own."""
    if not environment:
        return
    for repository in repositories:
        if _OWN_MODELS.parent in repository.resolve().parents:
            continue  # files of the checkout are not changed
        for code in sorted(repository.glob("*/[0-9]*/model.py")):
            _give_model(code.parents[1] / "config.pbtxt", environment)


def _give_model(config: Path, environment: str) -> None:
    text = config.read_text() if config.exists() else 'backend: "python"\n'
    if not _SAYS_OTHERWISE.search(text):
        named = f'key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }}'
        config.write_text(f"{text}\nparameters {{ {named} }}\n")
