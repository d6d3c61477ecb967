"""What the page at `/ui` shows of the loader, the models' files and the store of environments.

`frontends.console` makes the documents; it may not know these parts of the server. Files are read on threads, when a
page asks for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import naiad
from naiad.config.server.options import ModelControlMode, ServerOptions
from naiad.core.errors import NaiadError
from naiad.core.logs import LogLine, RecentLines
from naiad.engine.engine import Engine
from naiad.engine.loading.loader import Loader
from naiad.engine.serving.instance import Instance
from naiad.environments.installed_packages import list_packages
from naiad.environments.store.entries import StoreEntry, read_entries
from naiad.environments.store.eviction import disk_usage
from naiad.frontends.console.state import ConsoleState, ModelOrigin, ServerProfile
from naiad.guests.memory.machine import available_memory
from naiad.models.artifacts.garbage import collect_garbage
from naiad.models.resolution.decision import Decision, Resolution
from naiad.protocol.model_names import LATEST

_HOST = "the host's interpreter"
_FILE_BYTES = 1 << 18
_UNUSED_SECONDS = 30 * 86_400
_STORE_SECONDS = 10.0  # a reading of the store is used again: an open page asks every few seconds


def make_console_state(
    engine: Engine,
    loader: Loader,
    options: ServerOptions,
    recent: RecentLines | None,  # the last lines of the log; None if they are not kept
    roles: Callable[[], Mapping[int, str]],  # the processes of the server other than guests, with what each does
) -> ConsoleState:
    """What makes the page's documents, sampling from now on."""
    profile = ServerProfile(
        version=naiad.__version__,
        total_memory=available_memory(),
        is_explicit=options.models.control_mode is ModelControlMode.EXPLICIT,
        can_control=options.http.ui_control,
        has_api_page=options.http.api_page,
    )
    return ConsoleState(engine, LoaderFacts(engine, loader, options, recent), profile, engine.metrics, roles)


@dataclass(frozen=True, slots=True)
class _RunningGuest:
    """The interpreter that runs a version."""

    python: Path
    version: str  # its version; empty until a guest has told it


class LoaderFacts:
    """Implements `naiad.frontends.console.state.ServerFacts`."""

    def __init__(self, engine: Engine, loader: Loader, options: ServerOptions, recent: RecentLines | None) -> None:
        self._engine = engine
        self._loader = loader
        self._store = options.environments.store.expanduser().absolute()
        self._recent = recent
        self._reading: tuple[float, Mapping[str, Any]] | None = None

    def origins(self) -> Mapping[tuple[str, str], ModelOrigin]:
        found = {}
        for (key, version), resolution in self._loader.resolutions.items():
            guest = self._guest(key, version)
            found[key, str(version)] = ModelOrigin(
                backend=resolution.backend,
                code=str(resolution.model_file),
                environment=str(resolution.environment or _HOST),
                python="" if guest is None else guest.version,
            )
        return found

    def activity(self) -> Mapping[str, str]:
        return self._loader.activity()

    def log_lines(self, model: str, after: int) -> Sequence[LogLine]:
        return [] if self._recent is None else self._recent.lines_about(model, after)

    async def details(self, key: str, version: str) -> Mapping[str, Any]:
        number = int(version) if version.isascii() and version.isdecimal() else LATEST
        resolution = self._loader.resolutions.get((key, number))
        steps = self._loader.steps.get((key, number), ())
        guest = self._guest(key, number)
        return await asyncio.to_thread(self._read_details, resolution, steps, guest)

    async def packages(self, key: str, version: str) -> Sequence[Mapping[str, str]]:
        guest = self._guest(key, int(version) if version.isascii() and version.isdecimal() else LATEST)
        if guest is None:
            return []
        found = await asyncio.to_thread(list_packages, guest.python.parent.parent)
        return [{"name": each.name, "version": each.version, "source": each.source} for each in found]

    async def environments(self) -> Mapping[str, Any]:
        """The store of environments, read at most every ten seconds."""
        now = time.monotonic()
        if self._reading is None or now - self._reading[0] > _STORE_SECONDS:
            guests = {key: guest for key in self._loader.resolutions if (guest := self._guest(*key)) is not None}
            self._reading = (now, await asyncio.to_thread(self._read_store, guests))
        return self._reading[1]

    def _guest(self, key: str, version: int) -> _RunningGuest | None:
        with suppress(NaiadError):
            found = self._engine.find_loaded(key, version)
            instances: Sequence[Instance] = () if found.config.platform == "ensemble" else found.instances
            if instances:
                worker = instances[0].worker
                return _RunningGuest(instances[0].spec.python, "" if worker is None else worker.python)
        return None

    def _read_details(
        self, resolution: Resolution | None, steps: Sequence[Decision], guest: _RunningGuest | None
    ) -> Mapping[str, Any]:
        if resolution is None:
            return {"resolution": _resolution_json(steps, ()) if steps else None, "environment": None, "files": {}}
        return {
            "resolution": _resolution_json(resolution.steps, resolution.notices),
            "directory": str(resolution.model_dir),
            "environment": self._environment(resolution, guest),
            "files": dict(_texts(resolution)),
        }

    def _environment(self, resolution: Resolution, guest: _RunningGuest | None) -> Mapping[str, Any]:
        entry = None if guest is None else self._entry_of(guest.python)
        return {
            "source": str(resolution.environment or _HOST),
            "origin": resolution.environment_origin or resolution.python_origin,
            "python": "" if guest is None else guest.version,
            "interpreter": "" if guest is None else str(guest.python),
            "digest": "" if entry is None else entry.digest,
            "size": None if entry is None else entry.size,
            "numpy": "" if entry is None else entry.numpy,
        }

    def _entry_of(self, python: Path) -> StoreEntry | None:
        if not python.is_relative_to(self._store):
            return None
        digest = python.relative_to(self._store).parts[0]
        with suppress(NaiadError):
            return next((entry for entry in read_entries(self._store) if entry.digest == digest), None)
        return None

    def _read_store(self, guests: Mapping[tuple[str, int], _RunningGuest]) -> Mapping[str, Any]:
        serving: dict[str, list[str]] = {}
        outside: dict[str, list[str]] = {}
        for (key, _), guest in guests.items():
            if guest.python.is_relative_to(self._store):
                serving.setdefault(guest.python.relative_to(self._store).parts[0], []).append(key)
            else:
                outside.setdefault(str(guest.python), []).append(key)
        entries = read_entries(self._store) if self._store.is_dir() else []
        unused = [entry for entry in entries if not entry.in_use]
        now = time.time()
        leftovers = collect_garbage(self._store, dry_run=True).leftover_bytes if self._store.is_dir() else 0
        old = [entry for entry in unused if now - entry.last_used > _UNUSED_SECONDS]
        usage = disk_usage(entries)
        size = usage.total
        freed = {
            entry.digest: usage.remove(entry.digest) for entry in [*old, *(one for one in unused if one not in old)]
        }
        return {
            "store": str(self._store),
            "size": size,
            "entries": [
                {
                    "archive": entry.archive,
                    "digest": entry.digest,
                    "python": entry.python,
                    "numpy": entry.numpy,
                    "platform": entry.platform,
                    "size": entry.size,
                    "files": entry.files,
                    "last_used": entry.last_used,
                    "in_use": entry.in_use,
                    "serving": sorted(set(serving.get(entry.digest, ()))),
                    "models": sorted({use.model for use in entry.models}),
                }
                for entry in entries
            ],
            "outside": [
                {"python": python, "models": sorted(set(models))} for python, models in sorted(outside.items())
            ],
            "garbage": {
                "leftovers": leftovers,
                "unused": {"count": len(unused), "size": sum(freed.values())},
                "old": {
                    "count": len(old),
                    "size": sum(freed[entry.digest] for entry in old),
                    "days": _UNUSED_SECONDS // 86_400,
                },
            },
        }


def _resolution_json(steps: Sequence[Decision], notices: Sequence[str]) -> Mapping[str, Any]:
    return {
        "steps": [
            {
                "subject": step.subject,
                "choice": step.choice,
                "reason": step.reason,
                "searched": [{"path": str(each.path), "found": each.found} for each in step.searched],
            }
            for step in steps
        ],
        "notices": list(notices),
    }


def _texts(resolution: Resolution) -> Iterator[tuple[str, str]]:
    """The files that configure a model, by name."""
    for path in (resolution.model_dir / "config.pbtxt", resolution.version_dir / "model.json"):
        with suppress(OSError, UnicodeDecodeError):
            if path.stat().st_size <= _FILE_BYTES:
                yield path.name, path.read_text(encoding="utf-8")
