"""Native backends for tests: the sources of `tests/native/backends`, compiled by the machine's compiler."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock
from support.system_packages import require

SOURCES = Path(__file__).parents[1] / "native" / "backends"
_COMPILERS = {".c": "cc", ".cc": "c++"}
FLAGS = ("-shared", "-fPIC", "-O1", "-g", "-Wall", "-Werror", "-pthread")


def compiled(name: str) -> Path:
    """The library of a source file of that folder; skips the test where the machine has no compiler.

    Kept in the system's folder for temporary files under the digest of its sources: compiled once, for all processes.
    """
    source = SOURCES / name
    compiler = require(_COMPILERS[source.suffix])
    digest = hashlib.sha256(repr((compiler, FLAGS)).encode())
    for path in (source, *sorted(SOURCES.glob("*.h"))):
        digest.update(path.read_bytes())
    folder = Path(tempfile.gettempdir()) / "naiad-tests-native"
    folder.mkdir(exist_ok=True)
    library = folder / f"{source.stem}-{digest.hexdigest()[:16]}.so"
    with FileLock(f"{library}.lock"):
        if not library.exists():
            partial = library.with_suffix(".partial")
            subprocess.run([compiler, *FLAGS, "-o", partial, source], check=True, timeout=60)
            partial.rename(library)
    return library


def add_model(
    repository: Path,
    name: str,
    source: str,
    *,
    config: str = "",
    max_batch_size: int = 8,
    tensors: bool = True,
    backend: str = "",
) -> Path:
    """A model with its library in its own directory; returns the directory."""
    backend = backend or Path(source).stem
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    shutil.copy(compiled(source), folder / f"libtriton_{backend}.so")
    text = f'backend: "{backend}"\n'
    if tensors:
        text += f"max_batch_size: {max_batch_size}\n"
        for kind, tensor in (("input", "IN"), ("output", "OUT")):
            text += f'{kind} {{ name: "{tensor}" data_type: TYPE_FP32 dims: [ -1 ] }}\n'
    (folder / "config.pbtxt").write_text(text + config)
    return folder
