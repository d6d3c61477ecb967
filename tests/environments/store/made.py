"""Entries of a store whose interpreter is an empty file: nothing is started, so that one takes a millisecond."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from naiad.environments.store.file_digests import make_read_only, record_files, scan_files
from naiad.environments.store.record import ReadyEntry, read_record, write_record
from naiad.sources.interpreters.probe import Interpreter

DIGESTS = tuple(letter * 64 for letter in "abc")


def interpreter(prefix: Path, **facts: Any) -> Interpreter:
    """What an interpreter in *prefix* would say of itself."""
    known: dict[str, Any] = {
        "python": prefix / "bin" / "python",
        "version": (3, 10, 1),
        "implementation": "cpython",
        "cache_tag": "cpython-310",
        "abi": "cpython-310-x86_64-linux-gnu",
        "prefix": prefix,
        "base_prefix": prefix,
        "bits": 64,
        "platform": "linux-x86_64",
        "libpython": None,
        "site_dirs": (),
        "numpy": "1.2",
        "numpy_error": None,
        "has_bytecode": True,
    }
    return Interpreter(**{**known, **facts})


def write_environment(prefix: Path, files: Mapping[str, bytes] | None = None) -> None:
    """An environment of a stand-in for an interpreter, and *files*."""
    for name, content in {"bin/python": b"", **(files or {})}.items():
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_bytes(content)


def complete(entry: Path, **more: Any) -> ReadyEntry:
    """Record that an entry is complete, with what is in it."""
    prefix = entry / "env"
    files = make_read_only(scan_files(entry))
    record_files(entry, files, {})
    size = len(files), sum(state.size for state in files.values())
    known: dict[str, Any] = {"archive": "/e.tar", "needs_library_path": False, "has_bytecode": True, "size": size}
    found_by = more.pop("interpreter", interpreter(prefix))
    write_record(entry, interpreter=found_by, prefix=prefix, **{**known, **more})
    found = read_record(entry)
    assert found is not None
    return found


def add_entry(root: Path, digest: str, files: Mapping[str, bytes] | None = None, **more: Any) -> ReadyEntry:
    """A complete entry in a store."""
    write_environment(root / digest / "env", files)
    return complete(root / digest, **more)


def start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stores take any archive for an environment, and start no interpreter."""

    def finish(entry: Path, prefix: Path, origin: str, *_: object) -> None:
        write_environment(prefix)
        complete(entry, archive=origin)

    monkeypatch.setattr("naiad.environments.store.store.require_interpreter", lambda *_, **__: None)
    monkeypatch.setattr("naiad.environments.store.finishing.finish", finish)
    monkeypatch.setattr("naiad.environments.store.finishing.finish_built", finish)
