"""`python -m bench.declared`: what it costs that a model's own file declares its packages.

Locks a model whose script block names scikit-learn, and warms the cache of wheels by one installation. Then, in turns:
the first start with an empty store, and the second start, of a model that imports scikit-learn; and the start of a
model that imports numpy only, in that environment and in the host's interpreter, which has no scikit-learn. At last,
builds three environments that differ in one package each, and compares what they take on the disk with one.

Needs uv and an index of packages.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.results import OURS
from bench.servers import Program, running

_CODE = """import numpy as np
{imports}import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.as_numpy())]) for each in inputs]
"""
_USE = "from sklearn.linear_model import LogisticRegression\n"
_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
"""
_COMMON = ("scikit-learn", "numpy")
_DIFFERENT = ("pillow", "lxml", "sqlalchemy")
"""Each is about a tenth of the files of an environment with the packages above."""
_ROWS = {
    "first": "first start, imports scikit-learn, warm cache of wheels",
    "second": "second start of the same",
    "plain": "second start, imports numpy only",
    "host": "the same code in the host's interpreter",
}


class _Start(NamedTuple):
    """Seconds until the server was ready, and seconds of CPU of all its processes."""

    seconds: float
    cpu: float


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        environ = {"UV_CACHE_DIR": str(work / "uv")}
        host = _write_model(work / "host")
        declared = _write_model(work / "declared", *_COMMON, imports=_USE)
        plain = _write_model(work / "plain", *_COMMON)
        for file in (declared, plain):
            _naiad(environ, "lock", file)
        _naiad(environ, "env", "prefetch", declared, f"--env-store={work / 'warm'}")
        found: dict[str, list[_Start]] = {name: [] for name in _ROWS}
        for number in range(options.rounds):
            flags = [f"--env-store={work / f'store-{number}'}"]
            # `plain` has the same packages as `declared`, so that it runs in the environment that is built first.
            for name, code in (("first", declared), ("second", declared), ("plain", plain), ("host", host)):
                found[name].append(_start(work, code.parents[2], environ, flags))
        _print_starts(found)
        _print_disk(work, environ)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.declared")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def _write_model(repository: Path, *packages: str, imports: str = "") -> Path:
    """Write a repository with one model that declares these packages and has these imports; returns its code."""
    version = repository / "m" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    listed = ", ".join(f'"{name}"' for name in packages)
    block = f"# /// script\n# dependencies = [{listed}]\n# ///\n" if packages else ""
    (version / "model.py").write_text(block + _CODE.format(imports=imports))
    return version / "model.py"


def _naiad(environ: dict[str, str], *arguments: str | Path) -> None:
    command = [sys.executable, "-m", "naiad", *map(str, arguments)]
    subprocess.run(command, env={**os.environ, **environ}, check=True, stdout=subprocess.DEVNULL)


def _start(work: Path, repository: Path, environ: dict[str, str], flags: list[str]) -> _Start:
    program = Program(OURS, [str(Path(sys.executable).with_name("tritonserver")), *flags], environ)
    os.sync()  # what the start before this one has written
    before = _cpu_of_children()
    with running(program, repository, work) as server:
        ready = server.start_seconds
    return _Start(ready, _cpu_of_children() - before)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _print_starts(found: dict[str, list[_Start]]) -> None:
    print(f"| a model.py with scikit-learn, {len(found['host'])} starts | median | best | CPU until it is stopped |")
    print("| --- | --- | --- | --- |")
    for name, row in _ROWS.items():
        seconds, cpu = ([one.seconds for one in found[name]], [one.cpu for one in found[name]])
        print(f"| {row} | {statistics.median(seconds):.2f} s | {min(seconds):.2f} s | {statistics.median(cpu):.2f} s |")
    print()


def _print_disk(work: Path, environ: dict[str, str]) -> None:
    store = work / "three"
    taken, files = [], []
    for package in _DIFFERENT:
        code = _write_model(work / package, *_COMMON, package)
        _naiad(environ, "lock", code)
        _naiad(environ, "env", "prefetch", code, f"--env-store={store}")
        taken.append(_disk_bytes(store))
        files.append(_packaged_files(store) - set().union(*files))
    shared = 1 - statistics.mean(len(own) for own in files[1:]) / len(files[0])
    print("| environments in a store | MB on the disk |\n| --- | --- |")
    print(f"| one | {taken[0] / 1e6:.0f} |")
    print(f"| three that share {shared:.0%} of their files | {taken[-1] / 1e6:.0f} ({taken[-1] / taken[0]:.2f} x) |")


def _disk_bytes(folder: Path) -> int:
    """The bytes of the disk that a folder takes; files with several links count once."""
    blocks = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            facts = Path(parent, name).lstat()
            blocks[facts.st_ino] = facts.st_blocks * 512
    return sum(blocks.values())


def _packaged_files(store: Path) -> set[str]:
    """Paths of the files of all environments, relative to their environment."""
    return {str(path.relative_to(env)) for env in store.glob("*/env") for path in env.rglob("*") if path.is_file()}


if __name__ == "__main__":
    sys.exit(main())
