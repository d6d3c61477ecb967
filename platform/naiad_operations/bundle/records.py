"""What an earlier push found out: the archive of a packed environment, the facts in an archive, the layer of files.

So an unchanged repository is neither packed nor read again. A record holds while the state of all files that it was
made from is unchanged: inode, size and both times of each, as for digests of archives. Each thing has one record, so
they do not pile up. A lost record costs time only.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from naiad import __version__
from naiad.core import json_cache
from naiad.core.errors import BundleError, ExecutionEnvironmentError
from naiad.environments.archives.archive_writer import OutputMember
from naiad.environments.store.archive_digest import fingerprint
from naiad.sources.interpreters.prefix import find_interpreter_in
from naiad_building.base_interpreter import inspect_base


class StaleRecordError(BundleError):
    """What was made again differs from its record, though the files have not changed."""


class PushRecords:
    """The records in a folder; without *is_read* they are only replaced."""

    def __init__(self, folder: Path | None, *, is_read: bool = True) -> None:
        self.folder = folder
        self._is_read = is_read

    def find(self, name: str, state: str) -> dict[str, Any] | None:
        """What is known of a thing in this state; None if nothing is, or the state is empty."""
        if self.folder is None or not self._is_read or not state:
            return None
        known = json_cache.read(self.folder / json_cache.name_for(name))
        found = known.get("value") if known is not None and known.get("state") == _of_this_version(state) else None
        return found if isinstance(found, dict) else None

    def remember(self, name: str, state: str, value: Mapping[str, Any]) -> None:
        """Keep what is known of a thing in this state, unless the state is empty."""
        if self.folder is not None and state:
            with suppress(OSError):
                record = {"name": name, "state": _of_this_version(state), "value": dict(value)}
                json_cache.write(self.folder / json_cache.name_for(name), record)


def _of_this_version(state: str) -> str:
    """A newer version may pack otherwise."""
    return f"{__version__} {state}"


def state_of_members(members: Iterable[OutputMember], digests: Mapping[str, str]) -> str:
    """The state of the files that a layer is written from."""
    digest = hashlib.sha256()
    for member in members:
        state: object = member.link
        if member.name in digests:
            state = digests[member.name]
        elif member.source is not None:
            state = [str(member.source), *fingerprint(member.source)]
        elif member.data is not None:
            state = hashlib.sha256(member.data).hexdigest()
        digest.update(json.dumps([member.name, member.executable, state]).encode())
    return digest.hexdigest()


def state_of_environment(prefix: Path) -> str:
    """The state of a folder that is an environment, and of its interpreter elsewhere; empty if that cannot be told."""
    digest = hashlib.sha256()
    try:
        if not (prefix / "pyvenv.cfg").is_file():
            folders, left_out = [prefix], frozenset[str]()
        else:
            # Their bytecode is compiled anew, and what lies there changes as programs run.
            folders, left_out = [prefix, _base_of(prefix)], frozenset({"__pycache__"})
        for folder in folders:
            _add_state(digest, str(folder), left_out)
    except (OSError, ExecutionEnvironmentError):
        return ""  # packing it says what is wrong
    return digest.hexdigest()


def _base_of(venv: Path) -> Path:
    """The folder with the interpreter that a venv was made from; of a system's, its standard library."""
    python = find_interpreter_in(venv)
    settings = (venv / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").lower().replace(" ", "")
    if python is None or "include-system-site-packages=true" in settings:
        raise ExecutionEnvironmentError(f"cannot tell what {venv} consists of")
    base = inspect_base(python)
    return base.stdlib if base.is_system else base.prefix


def _add_state(digest: hashlib._Hash, folder: str, left_out: Container[str]) -> None:
    """Add the state of each file below a folder, in one order. An environment may have 40,000."""
    folders = []
    lines = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in left_out:
                continue
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                folders.append(entry.path)
                continue
            target = os.readlink(entry.path) if stat.S_ISLNK(facts.st_mode) else ""  # noqa: PTH115 - one of many
            lines.append(
                f"{entry.name}\0{target}\0{facts.st_mode} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns} "
                f"{facts.st_ctime_ns}\n"
            )
    folders.sort()
    lines.sort()
    digest.update("".join([folder, "\n", *lines]).encode("utf-8", "surrogateescape"))
    for each in folders:
        _add_state(digest, each, left_out)
