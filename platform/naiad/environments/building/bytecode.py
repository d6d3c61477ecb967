"""Compiling the files of an environment so that the same sources give the same bytes, wherever they lie.

Bytecode holds the path of its source, for tracebacks, and the import replaces it by the real one. So a path relative to
the environment will do, and two builds in two folders come out equal. Two more things make bytecode differ from one
run to the next: the seed of hashes, up to Python 3.10, and what the compiling process has compiled before. The seed
is fixed here, and files are dealt out to a fixed number of processes.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["HEADER", "Job", "bytecode_path", "compile_environment", "compile_files", "is_fresh"]

HEADER = struct.Struct("<4sIII")
"""Head of a bytecode file (PEP 552): magic number, flags, and with flags of 0 its source's time and size."""

_PROCESSES = 4


class Job(NamedTuple):
    """One file to compile.

    Attributes:
        source: The file.
        target: Where its bytecode goes.
        shown: The path that the bytecode holds.
    """

    source: Path
    target: Path
    shown: str


def compile_environment(python: Path, prefix: Path, cache_tag: str) -> None:
    """Compile what has no bytecode yet: it halves the start of a guest, and a read-only environment never gets it."""
    sources = sorted(source for folder in prefix.glob("lib*") if not folder.is_symlink() for source in _sources(folder))
    jobs = (Job(source, bytecode_path(source, cache_tag), str(source.relative_to(prefix))) for source in sources)
    compile_files(python, [job for job in jobs if not is_fresh(job.source, job.target)])


def compile_files(python: Path, jobs: Iterable[Job]) -> None:
    """Compile files with an interpreter. Files that do not compile are passed over."""
    script = Path(__file__).with_name("_compile_script.py").read_text(encoding="utf-8")
    waiting = list(jobs)
    # `-I` would hide the seed from the interpreter; the folder it starts in must not be one with modules.
    command = [str(python), "-s", "-S", "-B", "-c", script]
    processes = []
    for part in range(_PROCESSES):
        share = [[str(job.source), str(job.target), job.shown] for job in waiting[part::_PROCESSES]]
        if not share:
            break
        process = subprocess.Popen(
            command,
            env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        processes.append((process, json.dumps(share).encode()))
    for process, share_text in processes:
        assert process.stdin is not None
        # The script reads all of it before it begins, so no process waits for another one's share for long.
        process.stdin.write(share_text)
        process.stdin.close()
    for process, _ in processes:
        process.wait()


def bytecode_path(source: Path, cache_tag: str) -> Path:
    """Where Python looks for the bytecode of a source."""
    return source.parent / "__pycache__" / f"{source.stem}.{cache_tag}.pyc"


def is_fresh(source: Path, bytecode: Path) -> bool:
    """Whether bytecode may be used for its source as that is now."""
    try:
        with bytecode.open("rb") as file:
            _, flags, mtime, size = HEADER.unpack(file.read(HEADER.size))
        facts = source.stat()
    except (OSError, struct.error):
        return False
    return flags != 0 or (mtime, size) == (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)


def _sources(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.py") if path.is_file())
