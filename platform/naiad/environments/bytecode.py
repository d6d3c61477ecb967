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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from naiad.environments.store.file_digests import FileState, UnpackedFile

__all__ = [
    "COMPLETION_SCRIPT",
    "HEADER",
    "CompileJob",
    "Kind",
    "bytecode_name",
    "bytecode_path",
    "compile_environment",
    "compile_files",
    "find_bytecode_target",
    "is_fresh",
    "stale_sources",
]

HEADER = struct.Struct("<4sIII")
"""Head of a bytecode file (PEP 552): magic number, flags, and with flags of 0 its source's time and size."""

COMPLETION_SCRIPT = Path(__file__).with_name("_bytecode_script.py")
"""Run by an environment's own interpreter: compiles the sources that lack bytecode if they are few."""

_PROCESSES = 4


class CompileJob(NamedTuple):
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
    jobs = (CompileJob(source, bytecode_path(source, cache_tag), str(source.relative_to(prefix))) for source in sources)
    compile_files(python, [job for job in jobs if not is_fresh(job.source, job.target)])


def compile_files(python: Path, jobs: Iterable[CompileJob]) -> None:
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


_CACHE = "__pycache__"
# Never imported by a model, and full of files that are wrong on purpose.
_SKIPPED = frozenset({_CACHE, "test", "tests", "idlelib", "lib2to3", "turtledemo"})


class Kind(NamedTuple):
    """What bytecode is for.

    Attributes:
        tag: As in its files' names, `cpython-310`.
        magic: What it begins with.
    """

    tag: str
    magic: bytes


def find_bytecode_target(written: Mapping[str, UnpackedFile]) -> Kind | None:
    """What most of the bytecode is for, None where there is none."""
    kinds: Counter[Kind] = Counter()
    for name, file in written.items():
        if file.head:
            stem, _, tag = name[:-4].rpartition(".")
            if f"/{_CACHE}/" in stem and not tag.startswith("opt-"):
                kinds[Kind(tag, file.head[:4])] += 1
    return kinds.most_common(1)[0][0] if kinds else None


def stale_sources(
    folder: str, files: Mapping[str, FileState], written: Mapping[str, UnpackedFile], kind: Kind
) -> list[str]:
    """Every source an import could meet that has no usable bytecode.

    Args:
        folder: The environment's name among the files, with a slash at its end; empty if they are all of it.
        files: What is there now.
        written: What was unpacked.
        kind: What bytecode is usable.
    """
    libraries = f"{folder}lib"  # and lib64
    return sorted(
        name
        for name, found in files.items()
        if name.endswith(".py")
        and name.startswith(libraries)
        and _SKIPPED.isdisjoint(name.split("/"))
        and not _is_fresh(found, bytecode_name(name, kind.tag), files, written, kind)
    )


def bytecode_name(source: str, tag: str) -> str:
    """Where the bytecode of a source lies."""
    parent, slash, name = source.rpartition("/")
    return f"{parent}{slash}{_CACHE}/{name[:-3]}.{tag}.pyc"


def _is_fresh(
    source: FileState, bytecode: str, files: Mapping[str, FileState], written: Mapping[str, UnpackedFile], kind: Kind
) -> bool:
    before, now = written.get(bytecode), files.get(bytecode)
    if before is None or now is None or not now.is_unchanged_since(before) or len(before.head) != HEADER.size:
        return False
    magic, flags, mtime, size = HEADER.unpack(before.head)
    seconds = source.mtime_ns // 1_000_000_000
    return magic == kind.magic and (bool(flags) or (mtime, size) == (seconds & 0xFFFFFFFF, source.size & 0xFFFFFFFF))
