"""What goes into an archive of an environment: what conda-pack puts into its own, made independent of place and time.

conda-pack decides which files belong to it and in which of them `conda-unpack` writes the new prefix. What it would
write is taken from it one by one, and the parts that differ from one folder or day to the next are replaced: the old
prefix in texts, first lines of scripts, times in bytecode and records.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import conda_pack
from conda_pack.core import Packer

from naiad.environments.archives.archive_writer import MTIME, OutputMember
from naiad.environments.bytecode import HEADER, CompileJob, compile_files
from naiad.environments.installed_packages import normalize_record

__all__ = ["PLACEHOLDER", "collect"]

PLACEHOLDER = "/opt/naiad/the-folder-of-this-environment"
"""What stands in packed texts where the environment's folder stood; `bin/conda-unpack` writes the new one there."""

# What conda-pack writes itself lies in temporary files that are gone a moment later.
_WRITTEN = frozenset({"bin/conda-unpack", "bin/conda_unpack_progress.py"})
_HISTORY = "conda-meta/history"
_MADE_HERE = frozenset({"unix_python_entry_point", "pyc_file"})
_LARGEST_SCRIPT = 1 << 20
# The second is what pip, uv and rattler write where the path is long or has a space: the shell reads the first line as
# a command, Python as part of a text.
_SCRIPT = (
    rb"#!(?:PREFIX/bin/(?P<direct>python[\d.]*)|/usr/bin/env (?P<found>python[\d.]*)"
    rb"|/bin/sh\n'''exec' [\"']?PREFIX/bin/(?P<shell>python[\d.]*)[\"']? \"\$0\" \"\$@\"(?:\n' '''| #'''))[ \t]*\n"
)
# For the shell a command that starts the interpreter on this very file, for Python a text that nobody reads.
_START = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/%s" "$0" "$@"
' '''
"""


def collect(prefix: Path, python: Path) -> tuple[list[OutputMember], tuple[str, ...]]:
    """The members for an archive of a conda environment, in order of their names, and what conda-pack warned of.

    Raises:
        conda_pack.CondaPackException: It cannot be packed.
        KeyError, TypeError, ValueError: A record in it is broken.
        OSError: A file cannot be read.
    """
    sink = _Sink()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        environment = conda_pack.CondaEnv.from_prefix(str(prefix))
    packer = Packer(str(prefix), sink)
    for file in sorted(environment.files, key=lambda file: file.target):
        packer.add(file)
    _settle_scripts(sink, prefix)
    packer.prefixes = [record for record in packer.prefixes if _settle(sink, prefix, *record)]
    packer.prefixes = [
        (target, PLACEHOLDER if placeholder == str(prefix) else placeholder, mode)
        for target, placeholder, mode in packer.prefixes
    ]
    packer.finish()
    _settle_records(sink, prefix)
    _settle_bytecode(sink, prefix, python)
    said = tuple(str(one.message) for one in caught if issubclass(one.category, UserWarning))
    return [sink.members[name] for name in sorted(sink.members)], said


class _Sink:
    """Stands where conda-pack expects an archive, and remembers what is added."""

    def __init__(self) -> None:
        self.members: dict[str, OutputMember] = {}

    def add(self, source: str, target: str) -> None:
        """Take a file or a link as it is."""
        facts = os.lstat(source)
        if stat.S_ISLNK(facts.st_mode):
            self.members[target] = OutputMember(name=target, link=os.readlink(source))  # noqa: PTH115 - as it is written
        elif stat.S_ISREG(facts.st_mode):
            data = Path(source).read_bytes() if target in _WRITTEN else None
            self._take(target, facts, source=None if data is not None else Path(source), data=data)

    def add_bytes(self, source: str, content: bytes, target: str) -> None:
        """Take a file with what became of its content: often nothing."""
        path = Path(source)
        if path.read_bytes() == content:
            self._take(target, path.stat(), source=path)
        else:
            self._take(target, path.stat(), data=content)

    def _take(
        self, target: str, facts: os.stat_result, *, source: Path | None = None, data: bytes | None = None
    ) -> None:
        executable = bool(facts.st_mode & 0o111)
        self.members[target] = OutputMember(name=target, source=source, data=data, executable=executable)


def _settle(sink: _Sink, prefix: Path, target: str, placeholder: str, mode: str) -> bool:
    """Put the placeholder into a text; whether `conda-unpack` has to look at the file at all.

    conda-pack has it look through every text that no package of conda owns, and most hold no prefix.
    """
    member = sink.members[target]
    if mode != "text" or placeholder != str(prefix) or member.link is not None:
        return True
    data = member.read()
    if os.fsencode(prefix) not in data:
        return False
    sink.members[target] = replace(member, data=data.replace(os.fsencode(prefix), PLACEHOLDER.encode()), source=None)
    return True


def _settle_scripts(sink: _Sink, prefix: Path) -> None:
    """Let scripts find the interpreter beside them, wherever that is: no path, and nothing to rewrite later.

    Installers write the interpreter's path, in one of two ways by its length; conda-pack makes one of them
    `#!/usr/bin/env python`, which runs the right one only while the environment is switched on.
    """
    own = re.compile(_SCRIPT.replace(b"PREFIX", re.escape(os.fsencode(prefix))))
    for name, member in list(sink.members.items()):
        if not name.startswith("bin/") or member.link is not None or not member.executable:
            continue
        if member.size < _LARGEST_SCRIPT and (match := own.match(data := member.read())):
            interpreter = match["direct"] or match["found"] or match["shell"]
            text = _START % interpreter + data[match.end() :]
            sink.members[name] = replace(member, data=text, source=None)


def _settle_records(sink: _Sink, prefix: Path) -> None:
    for name, member in list(sink.members.items()):
        if member.link is not None:
            continue
        if name == _HISTORY:
            sink.members[name] = replace(member, data=_history(sink), source=None)
        elif name.endswith(".dist-info/RECORD"):
            text = normalize_record(member.read().decode("utf-8", "surrogateescape"))
            sink.members[name] = replace(member, data=text.encode("utf-8", "surrogateescape"), source=None)
        elif name.startswith("conda-meta/") or name == "info/paths.json":
            data = _without_results(member.read()).replace(os.fsencode(prefix), PLACEHOLDER.encode())
            sink.members[name] = replace(member, data=data, source=None)


def _without_results(record: bytes) -> bytes:
    """A record of conda without digests and sizes of what it wrote: files that hold the prefix."""
    try:
        value = json.loads(record)
        for path in value["paths_data"]["paths"]:
            made = path.get("path_type") in _MADE_HERE and path.pop("sha256", None) is not None
            if path.pop("sha256_in_prefix", None) is not None or made:
                path.pop("size_in_bytes", None)
    except (KeyError, TypeError, ValueError):
        return record
    return json.dumps(value, indent=1, sort_keys=True).encode()


def _history(sink: _Sink) -> bytes:
    """Conda's history without the days and the commands: what is in the environment."""
    records = sorted(Path(name).stem for name in sink.members if Path(name).match("conda-meta/*.json"))
    lines = ["==> 1980-01-01 00:00:00 <==", "# cmd: naiad env pack", *(f"+{record}" for record in records)]
    return ("\n".join(lines) + "\n").encode()


def _settle_bytecode(sink: _Sink, prefix: Path, python: Path) -> None:
    """Bytecode holds its source's time, which every member has in common now, and may hold the prefix."""
    with tempfile.TemporaryDirectory(prefix="naiad-bytecode-") as folder:
        jobs = list(_bytecode_with_prefix(sink, prefix, Path(folder)))
        compile_files(python, jobs)
        anew = {job.target.relative_to(folder).as_posix(): job.target for job in jobs if job.target.exists()}
        for name, member in list(sink.members.items()):
            source = sink.members.get(_source_of(name)) if name.endswith(".pyc") else None
            if source is None or member.link is not None:
                continue
            if source.source is None:
                # The source will be another one once its prefix is written: the store compiles it then.
                del sink.members[name]
            else:
                data = anew[name].read_bytes() if name in anew else member.read()
                sink.members[name] = replace(member, data=_with_time(data, source.source), source=None)


def _bytecode_with_prefix(sink: _Sink, prefix: Path, folder: Path) -> Iterator[CompileJob]:
    for name, member in sink.members.items():
        if not name.endswith(".pyc") or member.link is not None:
            continue
        source = sink.members.get(_source_of(name))
        if source is not None and source.source is not None and os.fsencode(prefix) in member.read():
            yield CompileJob(source.source, folder / name, source.name)


def _source_of(bytecode: str) -> str:
    path = Path(bytecode)
    if path.parent.name != "__pycache__":
        return ""
    return (path.parent.parent / f"{path.name.split('.')[0]}.py").as_posix()


def _with_time(data: bytes, source: Path) -> bytes:
    """Bytecode that was good for its source until now, made so for the source with the time of the archive."""
    if len(data) < HEADER.size:
        return data
    magic, flags, mtime, size = HEADER.unpack_from(data)
    if flags or mtime != int(source.stat().st_mtime) & 0xFFFFFFFF:
        return data
    return HEADER.pack(magic, flags, MTIME, size) + data[HEADER.size :]
