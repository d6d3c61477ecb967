"""The last steps of a new store entry, at its final path: prefixes, bytecode, interpreter facts, file digests.

They cannot run in the staging folder, because `conda-unpack` writes the final path into files and works only once.
Probing the interpreter, compiling and scanning the files run concurrently: a large environment has tens of thousands
of files, and a starting server waits for all three.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from naiad.core.blocking import in_call
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.activation import RECORD_NAME as ACTIVATION_NAME
from naiad.environments.activation import activate
from naiad.environments.archives.file_writers import UnpackedFile
from naiad.environments.archives.manifest import RECIPE_FOLDER
from naiad.environments.bytecode import COMPLETION_SCRIPT, bytecode_name, find_bytecode_target, stale_sources
from naiad.environments.installed_packages import editable_remains
from naiad.environments.post_link import run_post_link_scripts
from naiad.environments.ready_environment import inherited_by_guests
from naiad.environments.store.file_digests import (
    FileState,
    make_read_only,
    read_digests,
    record_files,
    scan_files,
    stat_file,
)
from naiad.environments.store.file_locks import exclusive_lock
from naiad.environments.store.record import RECORD_NAME, has_record, write_record
from naiad.sources.interpreters.prefix import (
    is_numpy_broken,
    probe_with_libraries,
    require_cpython,
    require_interpreter,
    require_numpy,
)
from naiad.sources.interpreters.probe import Interpreter, probe_interpreter
from naiad.sources.interpreters.scripts import describe_failure, run_clean, run_script
from naiad.sources.interpreters.versions import version_text

_log = logging.getLogger("naiad.environments")

# Seconds. Rewriting prefixes reads every text file, which takes minutes for a large environment on a slow disk.
_SCRIPT_LIMIT = 600.0
_COMPILE_LIMIT = 250
_NO_ROOM = "negative padding"  # what `conda-unpack` says where a path is longer than its place in a binary


def finish(entry: Path, prefix: Path, origin: str, unpacked: Mapping[str, UnpackedFile]) -> None:
    """Complete an entry: fix prefixes, compile, probe the interpreter, and write `files.json` and the record."""
    where = f"the execution environment {origin}"
    python = require_interpreter(prefix, where=where)
    try:
        _fix_prefixes(prefix, python)
        # Before the files are recorded, because a script may write some.
        activate(prefix, entry / ACTIVATION_NAME, inherited_by_guests(os.environ, python, is_host=False), where)
        with ThreadPoolExecutor(1, "naiad-probe") as pool:
            probing = pool.submit(in_call(probe_with_libraries), python, prefix, probe_interpreter)
            try:
                files, has_bytecode = _complete_bytecode(entry, prefix, python, unpacked)
            finally:
                # If the interpreter is broken, both fail; the probe's error is the clearer one and replaces the other.
                found, library_path = probing.result()
        if not has_bytecode:
            # A second probe fills the bytecode folder with what every guest imports, so the first guest starts faster.
            probe_interpreter(python, library_path=library_path, bytecode=entry / "bytecode")
    except ExecutionEnvironmentError as error:
        raise ExecutionEnvironmentError(f"{where} cannot be used: {error.message}") from error
    _require_self_contained(found, prefix, where)
    for remains in editable_remains(found.site_dirs):
        _log.warning("%s %s", where, remains)
    require_numpy(found, where=where, advice=_numpy_advice(prefix))
    _record(entry, prefix, origin, found, files, unpacked, library_path, has_bytecode)


def _numpy_advice(prefix: Path) -> str:
    """How to add numpy to the environment that an archive was packed from; its own path is gone after the error."""
    recipe = next(iter(sorted((prefix / RECIPE_FOLDER).glob("*"))), None)
    if recipe is None:
        return "install it in the environment that the archive was packed from, and pack that again: `naiad env pack`"
    return (
        f"add numpy to the requirements of its recipe '{recipe.name}', then build and pack it again: "
        "`naiad env build`, `naiad env pack`"
    )


def finish_built(entry: Path, prefix: Path, origin: str) -> None:
    """Complete an entry that was built in place, with its bytecode: probe the interpreter, and write the record."""
    where = f"the environment of {origin}"
    python = require_interpreter(prefix, where=where)
    run_post_link_scripts(prefix, where)
    try:
        found, library_path = probe_with_libraries(python, prefix, probe_interpreter)
    except ExecutionEnvironmentError as error:
        raise ExecutionEnvironmentError(f"{where} cannot be used: {error.message}") from error
    require_cpython(found, where=where)
    if found.numpy is None:
        raise ExecutionEnvironmentError(
            f"{where} cannot be used: its Python {version_text(found.version)} cannot import numpy "
            f"({found.numpy_error}); "
            f"{'require another version of numpy' if is_numpy_broken(found) else 'add numpy to its requirements'}"
        )
    activate(prefix, entry / ACTIVATION_NAME, inherited_by_guests(os.environ, python, is_host=False), where)
    # Its standard library is that of the base interpreter, which may have none.
    if not found.has_bytecode:
        probe_interpreter(python, library_path=library_path, bytecode=entry / "bytecode")
    _record(entry, prefix, origin, found, scan_files(entry), {}, library_path, found.has_bytecode)


def _record(
    entry: Path,
    prefix: Path,
    origin: str,
    found: Interpreter,
    files: Mapping[str, FileState],
    unpacked: Mapping[str, UnpackedFile],
    library_path: Path | None,
    has_bytecode: bool,  # noqa: FBT001 - private, two calls
) -> None:
    """Write `files.json`, share files with other entries, and write the record, which completes the entry.

    Files become read-only before: a model that could append to one would change it in all entries that share it.
    """
    files = make_read_only(files)
    digests = record_files(entry, files, unpacked)
    # One entry at a time, so that of two that are made concurrently the second finds the first.
    with exclusive_lock(entry.parent / _LOCK):
        share_files(entry, files, digests)
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
    """Run conda-pack's `conda-unpack`, which replaces the old path of the environment in its files by the final one.

    Not with `-I`: the script imports a module from its own folder.
    """
    script = prefix / "bin" / "conda-unpack"
    if not script.is_file():
        return
    run = run_clean(
        [str(python), "-E", "-s", "-B", str(script)], library_path=_own_libraries(prefix), time_limit=_SCRIPT_LIMIT
    )
    if run.returncode != 0:
        failure = describe_failure(run)
        if _NO_ROOM in failure:
            failure = (
                f"a binary has less room than the {len(str(prefix))} characters of its path here ({prefix}); use a "
                "store with a shorter path (--env-store)"
            )
        raise ExecutionEnvironmentError(f"its bin/conda-unpack failed: {failure}")


def _own_libraries(prefix: Path) -> Path | None:
    own = prefix / "lib"
    return own if any(own.glob("libpython3*.so*")) else None


def _complete_bytecode(
    entry: Path, prefix: Path, python: Path, unpacked: Mapping[str, UnpackedFile]
) -> tuple[dict[str, FileState], bool]:
    """Compile the stale sources if they are few: at least those that `conda-unpack` has just changed.

    Compiling a file takes about 4 ms. An environment packed without bytecode can have tens of thousands of files, and
    most are never imported. They are compiled on import, into the entry's `bytecode` folder, once for all guests.

    Returns:
        The files of the entry afterwards, and whether every importable source has bytecode.
    """
    files, within = scan_files(entry), _within(entry, prefix)
    target = find_bytecode_target(unpacked)
    stale = stale_sources(within, files, unpacked, target) if target is not None else []
    known: list[str] = []
    if target is not None and len(stale) <= _COMPILE_LIMIT:
        known = [target.tag, target.magic.hex(), *(files[name].path for name in stale)]
    answer = run_script(
        python,
        COMPLETION_SCRIPT,
        mark="naiad-bytecode:",
        arguments=[str(_COMPILE_LIMIT), *known],
        library_path=_own_libraries(prefix),
        time_limit=_SCRIPT_LIMIT,
    )
    if answer.get("looked") or target is None:
        # The list was empty or for another interpreter, so the script searched, and may have compiled any file.
        files = scan_files(entry)
    else:
        compiled = {
            name: stat_file(entry / "env" / name) for name in (bytecode_name(name, target.tag) for name in stale)
        }
        files.update({name: found for name, found in compiled.items() if found is not None})
    return files, answer.get("left") == 0


def _within(entry: Path, prefix: Path) -> str:
    """Prefix of the names of the environment's files: empty, or the single folder in the archive."""
    folder = str(prefix.relative_to(entry / "env"))
    return "" if folder == "." else f"{folder}/"


def _size(files: Mapping[str, FileState], within: str) -> tuple[int, int]:
    sizes = [found.size for name, found in files.items() if name.startswith(within) and not found.is_folder]
    return len(sizes), sum(sizes)


def _require_self_contained(found: Interpreter, prefix: Path, where: str) -> None:
    """Reject an archive whose interpreter uses a standard library or libpython outside of it.

    An interpreter that is itself outside, by a link as in a venv, was warned of when the archive was unpacked.
    """
    inside = prefix.resolve()
    if not found.python.resolve().is_relative_to(inside):
        return
    parts = [("standard library", found.base_prefix)]
    if found.libpython is not None:
        parts.append(("libpython", Path(found.libpython)))
    for what, path in parts:
        if not path.resolve().is_relative_to(inside):
            raise ExecutionEnvironmentError(
                f"{where} is not self-contained: its interpreter uses the {what} at {path}, outside of the archive; "
                "pack a conda environment with conda-pack, or build one with `naiad env build`"
            )


# Below, the directory entry costs as much as the file; most of these are empty `__init__.py`.
_SMALLEST = 1
_UNFINISHED = ".naiad-shared"
_LOCK = "locks/sharing.lock"  # held while an entry shares files and becomes complete


def share_files(entry: Path, files: Mapping[str, FileState], digests: Mapping[str, list[str]]) -> int:
    """Replace files of an entry by hard links to equal files of complete entries; returns the bytes saved.

    Two environments usually have most files in common. A file is replaced where another entry has one under the same
    path, with the same digest, permissions and modification time, to which bytecode refers. Files of a complete entry
    are read-only, so no entry can be changed through another, except by a process of root. A replacement is one `link`
    and one `rename`, so a file is the old one or the link, wherever the process is killed.

    Where that is impossible, as on file systems without hard links, files stay as they are.
    """
    waiting = {name: file for name, file in files.items() if file.size >= _SMALLEST and len(digests[name][1]) == 64}  # noqa: PLR2004 - a SHA-256
    saved = 0
    for other in _complete_entries(entry):
        known = read_digests(other) or {}
        for name in [name for name in waiting if known.get(name) == digests[name]]:
            linked = _link(other / "env" / name, waiting[name])
            if linked is None:
                return saved
            if linked:
                saved += waiting.pop(name).size
    if saved:
        _log.debug("%s shares %.0f MB with other environments of the store", entry, saved / 1e6)
    return saved


def _complete_entries(entry: Path) -> list[Path]:
    """The other complete entries, the most recent first: it is most likely to be similar."""
    others = [path for path in entry.parent.iterdir() if path != entry and has_record(path)]
    return sorted(others, key=_time_of, reverse=True)


def _time_of(entry: Path) -> float:
    try:
        return (entry / RECORD_NAME).stat().st_mtime
    except OSError:
        return 0.0  # removed just now, or of another user


def _link(source: Path, target: FileState) -> bool | None:
    """Replace a file by a link; False if the other file is not equal or has too many links, None if links fail."""
    unfinished = target.path + _UNFINISHED
    try:
        facts = source.lstat()
        if (facts.st_mtime_ns, facts.st_size, facts.st_mode) != (target.mtime_ns, target.size, target.mode):
            return False
        os.link(source, unfinished)
    except (FileNotFoundError, FileExistsError):
        return False
    except OSError as error:
        _log.debug("cannot share %s: %s", source, error)
        # EMLINK is about one file; everything else is about the file system.
        return False if error.errno == errno.EMLINK else None
    os.replace(unfinished, target.path)  # noqa: PTH105 - plain strings, called for each of 10,000 files
    return True
