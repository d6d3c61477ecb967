"""Bytecode of environments: whether it is usable, and compiling what lacks it reproducibly.

Bytecode contains the path of its source, for tracebacks; the import system replaces it by the real path. A path
relative to the environment therefore works, and makes builds in two folders identical. Two more things vary between
runs: the hash seed (up to Python 3.10), and what the compiling process compiled before. So the seed is fixed, and
files are assigned to a fixed number of processes.

There are two ways to find stale bytecode. While building, `is_fresh` reads the head of each bytecode file. After
unpacking, `stale_sources` needs no file access, because unpacking kept the head of every bytecode file.
"""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from naiad.core.child_processes import ended_with_group
from naiad.environments.archives.file_writers import UnpackedFile
from naiad.environments.store.file_digests import FileState

# Head of a bytecode file (PEP 552): magic number, flags, and with flags of 0 its source's mtime and size.
HEADER = struct.Struct("<4sIII")

# Script for an environment's own interpreter: compiles the sources without usable bytecode if they are few.
COMPLETION_SCRIPT = Path(__file__).with_name("_bytecode_script.py")

_COMPILE_SCRIPT = Path(__file__).with_name("_compile_script.py")
# Fixed, not the number of cores: what a process compiled before changes its later output.
_PROCESSES = 4
_CACHE = "__pycache__"
# Models never import these, and they contain files with deliberate syntax errors.
_SKIPPED = frozenset({_CACHE, "test", "tests", "idlelib", "lib2to3", "turtledemo"})


class CompileJob(NamedTuple):
    """One file to compile; *shown* is the path stored in the bytecode."""

    source: Path
    target: Path
    shown: str


class BytecodeTarget(NamedTuple):
    """The interpreter that bytecode is for."""

    tag: str
    magic: bytes


def compile_environment(python: Path, prefix: Path, cache_tag: str, *, left_out: frozenset[str] = frozenset()) -> None:
    """Compile every source without usable bytecode, but those in folders with the names of *left_out*.

    Bytecode halves the start time of a guest, and a read-only environment can never add it later.
    """
    libraries = (folder for folder in prefix.glob("lib*") if not folder.is_symlink())
    sources = sorted(source for folder in libraries for source in _sources(folder, left_out))
    jobs = (CompileJob(source, bytecode_path(source, cache_tag), str(source.relative_to(prefix))) for source in sources)
    compile_files(python, [job for job in jobs if not is_fresh(job.source, job.target)])


def compile_files(python: Path, jobs: Iterable[CompileJob]) -> None:
    """Compile files with an interpreter; files that do not compile are skipped."""
    script = _COMPILE_SCRIPT.read_text(encoding="utf-8")
    waiting = list(jobs)
    # Not `-I`, which ignores PYTHONHASHSEED. Without it the working directory must contain no modules, hence "/".
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
            start_new_session=True,
        )
        processes.append((process, json.dumps(share).encode()))
    with contextlib.ExitStack() as running:
        for process, share_text in processes:
            running.enter_context(ended_with_group(process))
            assert process.stdin is not None
            # The script reads all input before it compiles, so these writes block only briefly.
            process.stdin.write(share_text)
            process.stdin.close()
        for process, _ in processes:
            process.wait()


def bytecode_path(source: Path, cache_tag: str) -> Path:
    """Where Python looks for the bytecode of a source."""
    return source.parent / _CACHE / f"{source.stem}.{cache_tag}.pyc"


def bytecode_name(source: str, tag: str) -> str:
    """Like `bytecode_path`, for names of files in an entry. Strings: called for each of 10,000 sources."""
    parent, slash, name = source.rpartition("/")
    return f"{parent}{slash}{_CACHE}/{name[:-3]}.{tag}.pyc"


def is_fresh(source: Path, bytecode: Path) -> bool:
    """Whether Python would use this bytecode for the source as it is on disk now."""
    try:
        with bytecode.open("rb") as file:
            _, flags, mtime, size = HEADER.unpack(file.read(HEADER.size))
        facts = source.stat()
    except (OSError, struct.error):
        return False
    return flags != 0 or (mtime, size) == (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)


def find_bytecode_target(unpacked: Mapping[str, UnpackedFile]) -> BytecodeTarget | None:
    """The interpreter that most of the unpacked bytecode is for; None without bytecode.

    The bytecode itself tells this, so the environment's interpreter need not be started first.
    """
    targets: Counter[BytecodeTarget] = Counter()
    for name, file in unpacked.items():
        if file.head:
            stem, _, tag = name[:-4].rpartition(".")
            if f"/{_CACHE}/" in stem and not tag.startswith("opt-"):
                targets[BytecodeTarget(tag, file.head[:4])] += 1
    return targets.most_common(1)[0][0] if targets else None


def stale_sources(
    folder: str, files: Mapping[str, FileState], unpacked: Mapping[str, UnpackedFile], target: BytecodeTarget
) -> list[str]:
    """Names of the importable sources in *folder* (with a slash, or empty) without usable bytecode."""
    libraries = f"{folder}lib"  # lib64 as well
    return sorted(
        name
        for name, found in files.items()
        if name.endswith(".py")
        and name.startswith(libraries)
        and _SKIPPED.isdisjoint(name.split("/"))
        and not _was_fresh(found, bytecode_name(name, target.tag), files, unpacked, target)
    )


def _was_fresh(
    source: FileState,
    bytecode: str,
    files: Mapping[str, FileState],
    unpacked: Mapping[str, UnpackedFile],
    target: BytecodeTarget,
) -> bool:
    """Whether the unpacked bytecode is still there and matches the source's current mtime and size."""
    before, now = unpacked.get(bytecode), files.get(bytecode)
    if before is None or now is None or not now.is_unchanged_since(before) or len(before.head) != HEADER.size:
        return False
    magic, flags, mtime, size = HEADER.unpack(before.head)
    seconds = source.mtime_ns // 1_000_000_000
    return magic == target.magic and (bool(flags) or (mtime, size) == (seconds & 0xFFFFFFFF, source.size & 0xFFFFFFFF))


def _sources(folder: Path, left_out: frozenset[str]) -> Iterator[Path]:
    return (
        path for path in folder.rglob("*.py") if path.is_file() and left_out.isdisjoint(path.relative_to(folder).parts)
    )
