"""The last steps of an entry, at the place where it stays: prefixes, bytecode, its interpreter, and what it holds.

The interpreter is asked in one process while another compiles, and this one looks at the files: a large environment has
ten thousands of them, and a server waits for all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from naiad.environments.bytecode import COMPLETION_SCRIPT, bytecode_name, find_bytecode_target, stale_sources
from naiad.environments.store.file_digests import FileState, UnpackedFile, record_files, scan_files, stat_file
from naiad.environments.store.record import write_record
from naiad.errors import ExecutionEnvironmentError
from naiad.interpreters.prefix import probe_with_libraries, require_interpreter, require_numpy
from naiad.interpreters.probe import Interpreter, probe_interpreter
from naiad.interpreters.scripts import describe_failure, run_clean, run_script

__all__ = ["finish"]

# Rewriting the prefixes of a large environment reads every text file of it.
_SCRIPT_LIMIT = 600.0
_COMPILED_AT_ONCE = 250


def finish(entry: Path, prefix: Path, origin: str, written: Mapping[str, UnpackedFile]) -> None:
    """Make an entry ready: fix prefixes at the final place, ask the interpreter, and write its record.

    Args:
        entry: Its folder.
        prefix: The environment in it.
        origin: What it came from.
        written: What unpacking wrote, by path relative to the entry's `env`.

    Raises:
        ExecutionEnvironmentError: It cannot be used.
        OSError: Something cannot be read or written.
    """
    where = f"the execution environment {origin}"
    python = require_interpreter(prefix, where=where)
    try:
        _fix_prefixes(prefix, python)
        with ThreadPoolExecutor(1, "naiad-probe") as pool:
            asked = pool.submit(probe_with_libraries, python, prefix, probe_interpreter)
            try:
                files, has_bytecode = _complete_bytecode(entry, prefix, python, written)
            finally:
                # Of two complaints about an interpreter that does not work, the one of who asked it.
                found, library_path = asked.result()
        if not has_bytecode:
            # Once more, to keep the bytecode of what every guest imports: the first one then starts warm.
            probe_interpreter(python, library_path=library_path, bytecode=entry / "bytecode")
    except ExecutionEnvironmentError as error:
        raise ExecutionEnvironmentError(f"{where} cannot be used: {error.message}") from error
    _check_whole(found, prefix, where)
    require_numpy(found, where=where)
    record_files(entry, files, written)
    write_record(
        entry,
        archive=origin,
        interpreter=found,
        prefix=prefix,
        needs_library_path=library_path is not None,
        has_bytecode=has_bytecode,
        size=_size(files, _within(entry, prefix)),
    )


def _fix_prefixes(prefix: Path, python: Path) -> None:
    """Run conda-pack's own script, which writes the environment's final path where packages recorded the old one.

    Not with `-I`: the script imports a module from its own folder. It works once, at the final path.
    """
    script = prefix / "bin" / "conda-unpack"
    if not script.is_file():
        return
    run = run_clean(
        [str(python), "-E", "-s", "-B", str(script)], library_path=_own_libraries(prefix), time_limit=_SCRIPT_LIMIT
    )
    if run.returncode != 0:
        raise ExecutionEnvironmentError(f"its bin/conda-unpack failed: {describe_failure(run)}")


def _own_libraries(prefix: Path) -> Path | None:
    """Where an interpreter finds its libpython that has not been asked yet whether it needs help with that."""
    own = prefix / "lib"
    return own if any(own.glob("libpython3*.so*")) else None


def _complete_bytecode(
    entry: Path, prefix: Path, python: Path, written: Mapping[str, UnpackedFile]
) -> tuple[dict[str, FileState], bool]:
    """Compile what lacks bytecode if it is little: at least what `conda-unpack` has just changed.

    A file takes about 4 ms; packages that came wholly without bytecode can be ten thousands of files, most never
    imported. Those compile as they are imported, into the entry's `bytecode` folder, once for all guests.

    Returns:
        What is in the entry then, and whether the environment has all of its bytecode.
    """
    files, within = scan_files(entry), _within(entry, prefix)
    kind = find_bytecode_target(written)
    stale = stale_sources(within, files, written, kind) if kind is not None else []
    told: list[str] = []
    if kind is not None and len(stale) <= _COMPILED_AT_ONCE:
        told = [kind.tag, kind.magic.hex(), *(files[name].path for name in stale)]
    answer = run_script(
        python,
        COMPLETION_SCRIPT,
        mark="naiad-bytecode:",
        arguments=[str(_COMPILED_AT_ONCE), *told],
        library_path=_own_libraries(prefix),
        time_limit=_SCRIPT_LIMIT,
    )
    if answer.get("looked") or kind is None:
        # Told nothing, or of another interpreter's bytecode, it looked for itself.
        files = scan_files(entry)
    else:
        compiled = {name: stat_file(entry / "env" / name) for name in (bytecode_name(name, kind.tag) for name in stale)}
        files.update({name: found for name, found in compiled.items() if found is not None})
    return files, answer.get("left") == 0


def _within(entry: Path, prefix: Path) -> str:
    """What names of the environment's files begin with."""
    folder = str(prefix.relative_to(entry / "env"))
    return "" if folder == "." else f"{folder}/"


def _size(files: Mapping[str, FileState], within: str) -> tuple[int, int]:
    """Number of files, with links to files, and sum of their sizes."""
    sizes = [found.size for name, found in files.items() if name.startswith(within) and not found.is_folder]
    return len(sizes), sum(sizes)


def _check_whole(found: Interpreter, prefix: Path, where: str) -> None:
    """Refuse an archive whose interpreter takes its standard library or libpython from outside of it."""
    inside = prefix.resolve()
    parts = [("standard library", found.base_prefix)]
    if found.libpython is not None:
        parts.append(("libpython", Path(found.libpython)))
    for what, path in parts:
        if not path.resolve().is_relative_to(inside):
            raise ExecutionEnvironmentError(
                f"{where} is not whole: its interpreter uses the {what} at {path}, outside of the archive; "
                "pack a conda environment with conda-pack, or build one with `naiad env build`"
            )
