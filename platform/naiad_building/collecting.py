"""Collecting the members for an archive of an environment, independent of its folder and of the time.

conda-pack decides which files belong to the archive, and in which of them `conda-unpack` must write the new prefix. Its
`Packer` receives a collector instead of an archive. The collected members are then normalized, so that equal
environments give equal archives:

- text files with the prefix get a fixed placeholder instead;
- scripts get a first line that finds the interpreter beside them;
- records lose digests, sizes, dates and commands that depend on the folder or the time;
- bytecode gets the fixed time of its source member, and is recompiled if it contains the prefix.

conda-pack requires records of a conda environment, which are written here for other ones. It copies files of recorded
packages unchanged, and searches all others for the prefix. Recording the interpreter's files keeps that list short. It
also keeps their bytecode: conda-pack leaves out bytecode beside a recorded source unless that is recorded too.
"""

from __future__ import annotations

import json
import os
import platform
import re
import stat
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import conda_pack
from conda_pack.core import Packer

from naiad.core.foreign_json import read_json
from naiad.environments.archives.archive_writer import MTIME, OutputMember
from naiad.environments.bytecode import HEADER, CompileJob, compile_files
from naiad.environments.installed_packages import normalize_record

CHANNEL = "naiad"
"""Of the recorded interpreter."""

PLACEHOLDER = "/opt/naiad/the-folder-of-this-environment"
"""Placeholder for the environment's folder in packed text files; `bin/conda-unpack` replaces it."""

# Files that conda-pack writes itself. They are temporary, so their content must be read at once.
_WRITTEN = frozenset({"bin/conda-unpack", "bin/conda_unpack_progress.py"})
_HISTORY = "conda-meta/history"
_MADE_HERE = frozenset({"unix_python_entry_point", "pyc_file"})
_LARGEST_SCRIPT = 1 << 20
# First lines of scripts. The third form is written by pip, uv and rattler if the path is long or contains a space: the
# shell runs the line as a command, and Python reads it as part of a string.
_SCRIPT = (
    rb"#!(?:PREFIX/bin/(?P<direct>python[\d.]*)|/usr/bin/env (?P<found>python[\d.]*)"
    rb"|/bin/sh\n'''exec' [\"']?PREFIX/bin/(?P<shell>python[\d.]*)[\"']? \"\$0\" \"\$@\"(?:\n' '''| #'''))[ \t]*\n"
)
# The same form with a relative path: the shell starts the interpreter beside the script, Python reads a string.
_START = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/%s" "$0" "$@"
' '''
"""


def collect_members(prefix: Path, python: Path) -> tuple[list[OutputMember], tuple[str, ...]]:
    """The members for an archive of a conda environment, sorted by name, and the warnings of conda-pack."""
    collector = _MemberCollector()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        environment = conda_pack.CondaEnv.from_prefix(str(prefix))
    packer = Packer(str(prefix), collector)
    for file in sorted(environment.files, key=lambda file: file.target):
        packer.add(file)
    _normalize_scripts(collector, prefix)
    packer.prefixes = [
        (target, PLACEHOLDER if placeholder == str(prefix) else placeholder, mode)
        for target, placeholder, mode in packer.prefixes
        if _insert_placeholder(collector, prefix, target, placeholder, mode)
    ]
    packer.finish()
    _normalize_records(collector, prefix)
    _normalize_bytecode(collector, prefix, python)
    messages = tuple(str(one.message) for one in caught if issubclass(one.category, UserWarning))
    return [collector.members[name] for name in sorted(collector.members)], messages


class _MemberCollector:
    """Implements the archive interface of conda-pack, and keeps the members in memory."""

    def __init__(self) -> None:
        self.members: dict[str, OutputMember] = {}

    def add(self, source: str, target: str) -> None:
        facts = os.lstat(source)
        if stat.S_ISLNK(facts.st_mode):
            self.members[target] = OutputMember(name=target, link=os.readlink(source))  # noqa: PTH115 - as it is written
        elif stat.S_ISREG(facts.st_mode):
            self._add_file(target, Path(source), Path(source).read_bytes() if target in _WRITTEN else None)

    def add_bytes(self, source: str, content: bytes, target: str) -> None:
        """Add a file with rewritten content, which is often unchanged. Called by conda-pack's `Packer`."""
        self._add_file(target, Path(source), None if Path(source).read_bytes() == content else content)

    def _add_file(self, target: str, source: Path, data: bytes | None) -> None:
        executable, kept = bool(source.stat().st_mode & 0o111), source if data is None else None
        self.members[target] = OutputMember(name=target, source=kept, data=data, executable=executable)

    def rewrite(self, name: str, data: bytes) -> None:
        """Replace the content of a member."""
        self.members[name] = replace(self.members[name], data=data, source=None)

    def files(self) -> list[tuple[str, OutputMember]]:
        """The members that are not links, by their names."""
        return [(name, member) for name, member in self.members.items() if member.link is None]


def _insert_placeholder(collector: _MemberCollector, prefix: Path, target: str, placeholder: str, mode: str) -> bool:
    """Replace the prefix in a text file by the placeholder; returns whether `conda-unpack` must process the file.

    conda-pack lists every text file that no conda package owns, thousands in total; most do not contain the prefix.
    """
    member = collector.members[target]
    if mode != "text" or placeholder != str(prefix) or member.link is not None:
        return True
    data = member.read()
    if os.fsencode(prefix) not in data:
        return False
    collector.rewrite(target, data.replace(os.fsencode(prefix), PLACEHOLDER.encode()))
    return True


def _normalize_scripts(collector: _MemberCollector, prefix: Path) -> None:
    """Make scripts find the interpreter in their own folder, so that unpacking need not rewrite them.

    Installers write the absolute path of the interpreter, in a form that depends on its length. conda-pack changes one
    form to `#!/usr/bin/env python`, which finds the right interpreter only in an activated environment.
    """
    own = re.compile(_SCRIPT.replace(b"PREFIX", re.escape(os.fsencode(prefix))))
    for name, member in collector.files():
        if not name.startswith("bin/") or not member.executable or member.size >= _LARGEST_SCRIPT:
            continue
        if match := own.match(data := member.read()):
            interpreter = match["direct"] or match["found"] or match["shell"]
            collector.rewrite(name, _START % interpreter + data[match.end() :])


def _normalize_records(collector: _MemberCollector, prefix: Path) -> None:
    for name, member in collector.files():
        if name == _HISTORY:
            collector.rewrite(name, _history(collector))
        elif name.endswith(".dist-info/RECORD"):
            text = normalize_record(member.read().decode("utf-8", "surrogateescape"))
            collector.rewrite(name, text.encode("utf-8", "surrogateescape"))
        elif name.startswith("conda-meta/") or name == "info/paths.json":
            data = _without_results(member.read())
            collector.rewrite(name, data.replace(os.fsencode(prefix), PLACEHOLDER.encode()))


def _without_results(record: bytes) -> bytes:
    """A conda record without digests and sizes of files that contain the prefix."""
    try:
        value = read_json(record)
        for path in value["paths_data"]["paths"]:
            made = path.get("path_type") in _MADE_HERE and path.pop("sha256", None) is not None
            if path.pop("sha256_in_prefix", None) is not None or made:
                path.pop("size_in_bytes", None)
    except (KeyError, TypeError, ValueError):
        return record
    return json.dumps(value, indent=1, sort_keys=True).encode()


def _history(collector: _MemberCollector) -> bytes:
    """Conda's history reduced to the installed packages, without dates and commands."""
    records = sorted(Path(name).stem for name in collector.members if Path(name).match("conda-meta/*.json"))
    lines = ["==> 1980-01-01 00:00:00 <==", "# cmd: naiad env pack", *(f"+{record}" for record in records), ""]
    return "\n".join(lines).encode()


def _normalize_bytecode(collector: _MemberCollector, prefix: Path, python: Path) -> None:
    """Give bytecode the fixed mtime of its source member, and recompile it if it contains the prefix."""
    known = {name: collector.members.get(_source_of(name)) for name, _ in collector.files() if name.endswith(".pyc")}
    sources = {name: source.source for name, source in known.items() if source is not None}
    with tempfile.TemporaryDirectory(prefix="naiad-bytecode-") as folder:
        jobs = [
            CompileJob(source, Path(folder, name), _source_of(name))
            for name, source in sources.items()
            if source is not None and os.fsencode(prefix) in collector.members[name].read()
        ]
        compile_files(python, jobs)
        for name, source in sources.items():
            if source is None:
                # `conda-unpack` will change the source, which makes bytecode stale. The store compiles it then.
                del collector.members[name]
            else:
                recompiled = Path(folder, name)
                data = recompiled.read_bytes() if recompiled.exists() else collector.members[name].read()
                collector.rewrite(name, _with_time(data, source))


def _source_of(bytecode: str) -> str:
    path = Path(bytecode)
    if path.parent.name != "__pycache__":
        return ""
    return (path.parent.parent / f"{path.name.split('.')[0]}.py").as_posix()


def _with_time(data: bytes, source: Path) -> bytes:
    """Bytecode with the mtime that its source has in the archive; unchanged if it was stale before."""
    if len(data) < HEADER.size:
        return data
    magic, flags, mtime, size = HEADER.unpack_from(data)
    if flags or mtime != int(source.stat().st_mtime) & 0xFFFFFFFF:
        return data
    return HEADER.pack(magic, flags, MTIME, size) + data[HEADER.size :]


def record_interpreter(prefix: Path, version: str) -> None:
    """Record every file in *prefix* as conda's package `python`.

    Files added later, such as those of installed packages, stay unrecorded, as in any conda environment.
    """
    entries = [_entry(prefix, Path(folder, name)) for folder, _, names in os.walk(prefix) for name in sorted(names)]
    # conda-pack reads a package's file list in `<link.source>/info/` and its files below `link.source`, normally a
    # package cache. The prefix itself works too, and avoids a second copy of all files.
    entries.append({"_path": "info/paths.json", "path_type": "hardlink"})
    _write(prefix / "info" / "paths.json", {"paths_version": 1, "paths": entries})
    build = f"python-{version}-0"
    record = {
        "name": "python",
        "version": version,
        "build": "0",
        "build_number": 0,
        "channel": CHANNEL,
        "subdir": f"linux-{platform.machine()}".replace("x86_64", "64"),
        "fn": f"{build}.tar.bz2",
        "url": f"{CHANNEL}://local/{build}.tar.bz2",
        "depends": [],
        "constrains": [],
        "license": "PSF-2.0",
        "files": [entry["_path"] for entry in entries],
        "link": {"source": str(prefix), "type": 1},
    }
    _write(prefix / "conda-meta" / f"{build}.json", record)


def write_history(prefix: Path, version: str) -> None:
    """Mark a prefix as complete: conda-pack requires a history in every environment."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    build = f"python-{version}-0"
    text = f"==> {now} <==\n# cmd: naiad env build\n+{CHANNEL}::{build}\n# update specs: ['python={version}']\n"
    (prefix / "conda-meta" / "history").write_text(text, encoding="utf-8")


def _entry(prefix: Path, path: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {"_path": str(path.relative_to(prefix)), "path_type": "hardlink"}
    if path.is_symlink():
        return {**entry, "path_type": "softlink"}
    data = path.read_bytes()
    if b"\0" not in data and os.fsencode(prefix) in data:
        entry.update(file_mode="text", prefix_placeholder=str(prefix))
    return entry


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
