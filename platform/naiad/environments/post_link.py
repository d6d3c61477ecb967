"""conda's post-link scripts: run once, when packages have been installed at their final path, as conda does.

A package `p` has its script in `bin/.p-post-link.sh`. The installer of packages only copies it, because a new
environment is built in another folder than its final one, and such a script may write the environment's path.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from naiad.core import json_cache
from naiad.core.errors import ExecutionEnvironmentError
from naiad.sources.interpreters.scripts import describe_failure, run_clean

_log = logging.getLogger("naiad.environments")
_TIME_LIMIT = 300.0
_MESSAGES = ".messages.txt"


def run_post_link_scripts(prefix: Path, where: str) -> None:
    """Run the post-link scripts of an environment that was just installed, those of dependencies first."""
    scripts = {path.name[1 : -len("-post-link.sh")]: path for path in (prefix / "bin").glob(".*-post-link.sh")}
    if not scripts:
        return
    records = {record["name"]: record for record in _records(prefix)}
    shell = shutil.which("bash") or "/bin/sh"
    for name in _in_order(records):
        if name in scripts:
            _run(shell, scripts[name], records[name], prefix, where)


def _run(shell: str, script: Path, record: Mapping[str, Any], prefix: Path, where: str) -> None:
    name = str(record["name"])
    variables = {
        "PREFIX": str(prefix),
        "CONDA_PREFIX": str(prefix),
        "PKG_NAME": name,
        "PKG_VERSION": str(record.get("version", "")),
        "PKG_BUILDNUM": str(record.get("build_number", 0)),
        "PATH": f"{prefix / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HOME": os.environ.get("HOME", "/"),
    }
    _log.info("%s: running the post-link script of %s", where, name)
    run = run_clean([shell, str(script)], time_limit=_TIME_LIMIT, variables=variables)
    if run.returncode != 0:
        raise ExecutionEnvironmentError(
            f"{where} cannot be used: the post-link script of {name} failed ({script}), {describe_failure(run)}; "
            "correct the package, or leave it out"
        )
    messages = prefix / _MESSAGES
    if messages.is_file():  # what the script has to say to people, as conda prints it
        _log.info("%s: %s: %s", where, name, messages.read_text(encoding="utf-8", errors="replace").strip())
        messages.unlink()


def _records(prefix: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        record = json_cache.read(path)
        if record is not None and isinstance(record.get("name"), str):
            yield record


def _in_order(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    ordered: dict[str, None] = {}
    visited: set[str] = set()
    waiting = [(name, False) for name in sorted(records, reverse=True)]
    while waiting:
        name, has_visited_dependencies = waiting.pop()
        if has_visited_dependencies:
            ordered[name] = None
        elif name not in visited:
            visited.add(name)
            depends = [str(spec).partition(" ")[0] for spec in records[name].get("depends") or ()]
            waiting += [(name, True), *((one, False) for one in depends if one in records)]
    return list(ordered)
