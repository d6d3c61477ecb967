"""Models that load, unload and ask about models: answered by tasks, while the guest that asked waits.

Texts: PB src/model_loader.cc, CORE src/server.cc. A model that waits, while it is being loaded, for a load that waits
for its own would wait for ever; it is refused.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping
from typing import Any

from naiad.engine.engine import Engine
from naiad.errors import Code, InvalidRequestError, NaiadError, NotReadyError
from naiad.protocol.model_names import LATEST, model_key
from naiad.workers.worker import Worker

logger = logging.getLogger("naiad.engine")

_FILE = "file "
_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)
_LARGEST = 2**63 - 1


class ModelControl:
    """Answers what models ask of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: list[tuple[str, str]] = []  # a model that is being loaded, and the one that it waits for
        engine.services.answerers["model.load"] = self._load
        engine.services.answerers["model.unload"] = self._unload
        engine.services.answerers["model.ready"] = self._ready

    def _load(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        name = fields.get("name", "")
        parameters: dict[str, str | bytes] = {
            key[len(_FILE) :]: content.encode("utf-8", "surrogateescape")
            for key, content in fields.items()
            if key.startswith(_FILE)
        }
        if fields.get("config"):
            parameters["config"] = fields["config"]
        self._begin_after(worker, number, name, self._engine.load(name, parameters, is_nested=worker.is_starting))

    def _unload(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        name = fields.get("name", "")
        dependents = bool(fields.get("dependents"))
        self._begin_after(worker, number, name, self._engine.unload(name, unload_dependents=dependents))

    def _ready(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        if not self._engine.is_started:
            raise NotReadyError("Server not ready")
        name, version = fields.get("name", ""), version_number(fields.get("version", ""))

        async def answer() -> str:
            try:
                return "1" if await self._engine.check_ready(name, version) else "0"
            except NaiadError as error:
                # Models ask before they load another, so one that has only never been loaded is no error.
                if error.code is Code.NOT_FOUND and await self._is_stored(name):
                    return "0"
                raise

        self._begin(worker, number, answer())

    async def _is_stored(self, name: str) -> bool:
        index = await self._engine.repository_index()
        return any(name in {entry.name, model_key(entry.namespace, entry.name)} for entry in index)

    def _begin_after(self, worker: Worker, number: int, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin *work*, which waits for other loads and unloads of *name*."""
        edge = (worker.spec.load["model_name"], name) if worker.is_starting else None
        if edge is not None and self._is_reachable(name, edge[0]):
            work.close()
            raise NaiadError(
                f"'{edge[0]}' is being loaded and would wait for '{name}', which waits for '{edge[0]}' to be loaded; "
                "do this in execute, or in a thread that initialize does not wait for"
            )

        async def run() -> str:
            try:
                await work
            finally:
                if edge is not None:
                    self._waits.remove(edge)
            return ""

        if edge is not None:
            self._waits.append(edge)
        self._begin(worker, number, run())

    def _is_reachable(self, start: str, end: str) -> bool:
        """Whether *start* is *end*, or waits for it over any number of others."""
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            name = ahead.pop()
            if name == end:
                return True
            if name not in seen:
                seen.add(name)
                ahead += [wanted for holder, wanted in self._waits if holder == name]
        return False

    def _begin(self, worker: Worker, number: int, work: Coroutine[Any, Any, str]) -> None:
        async def run() -> None:
            try:
                text = await work
            except NaiadError as error:
                worker.reply(number, error=error)
            except Exception as error:
                logger.exception("cannot answer a question of '%s'", worker.spec.name)
                worker.reply(number, error=NaiadError(f"internal error: {error}"))
            else:
                worker.reply(number, text=text)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def version_number(text: str) -> int:
    """The version that *text* names, LATEST if it is empty.

    Raises:
        InvalidRequestError: If it names none.
    """
    if not text:
        return LATEST
    match = _NUMBER.match(text)  # the reference reads it with stol, which stops at the first other character
    if match is None or abs(int(match[1])) > _LARGEST:
        raise InvalidRequestError(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
            "integral value > 0"
        )
    number = int(match[1])
    if number < 0:
        raise InvalidRequestError(
            f"failed to get model version from specified version string '{text}', version should be an integral value "
            "> 0"
        )
    return number
