"""Run the examples on the reference, as their READMEs promise.

    python tests/examples/on_reference.py DIRECTORY_OF_THE_REFERENCE [EXAMPLE ...]

The reference is a folder as `bench/reference.py` makes it. Ends with code 1 where an answer differs from the README's.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest's `pythonpath` does

from examples.running import Example, example_names, read_example
from support.server import ServerProcess


def main() -> int:
    command = [Path(sys.argv[1]) / "bin" / "tritonserver"]
    wrong = 0
    for name in sys.argv[2:] or example_names():
        example = read_example(name)
        if example.is_ours:
            print(f"{name}: ours, left out")
            continue
        with tempfile.TemporaryDirectory() as folder:
            problem = _problem(example, Path(folder), command)
        print(f"{name}: {problem or 'as its README says'}")
        wrong += bool(problem)
    return min(wrong, 1)


def _problem(example: Example, work: Path, command: list[Path]) -> str:
    """What differs from the README; nothing if nothing does."""
    models = work / "models"  # a copy: the reference leaves bytecode beside each model.py
    shutil.copytree(example.models, models)
    with ServerProcess(models, *example.server[3:], work=work, command=command) as server:
        asked = example.ask(server)
    if asked.returncode or asked.stdout != example.output:
        return f"code {asked.returncode}\n{asked.stdout}\n{asked.stderr}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
