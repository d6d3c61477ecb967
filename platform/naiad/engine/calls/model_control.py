"""Queries of models that load, unload and check models (`pb_utils.load_model` and others), or ask about the server.

Each query that takes time runs as a task; the thread of the guest that asked blocks until the reply.

A model may ask in `initialize`, while it is being loaded itself. If the model it asks for waits, directly or through
others, for the first one, neither load can ever finish: such a query is rejected. `_waits` holds one edge for each load
that waits like this.

Texts: PB src/model_loader.cc, CORE src/server.cc.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping
from typing import Any

import orjson

from naiad.core.errors import Code, InvalidRequestError, NaiadError, NotReadyError
from naiad.engine.engine import Engine
from naiad.guests.worker import Worker
from naiad.protocol.documents import index_document, metadata_document, server_document, statistics_document
from naiad.protocol.model_names import LATEST, model_key

logger = logging.getLogger("naiad.engine")

_FILE = "file "
_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)
_LARGEST = 2**63 - 1


class ModelControl:
    """Answers queries of models with the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: list[tuple[str, str]] = []  # (model being loaded, model it waits for)
        engine.services.query_handlers["model.load"] = self._load
        engine.services.query_handlers["model.unload"] = self._unload
        engine.services.query_handlers["model.ready"] = self._ready
        engine.services.query_handlers |= {
            "model.config": self._config,
            "model.index": self._index,
            "model.metadata": self._metadata,
            "model.statistics": self._statistics,
            "server.metadata": self._server_metadata,
            "server.ready": self._server_ready,
        }

    def _load(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        name = fields.get("name", "")
        self._require_started(name)
        parameters: dict[str, str | bytes] = {
            key[len(_FILE) :]: content.encode("utf-8", "surrogateescape")
            for key, content in fields.items()
            if key.startswith(_FILE)
        }
        if fields.get("config"):
            parameters["config"] = fields["config"]
        self._start_after(worker, number, name, self._engine.load(name, parameters, is_nested=worker.is_starting))

    def _unload(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        name = fields.get("name", "")
        self._require_started(name)
        dependents = bool(fields.get("dependents"))
        self._start_after(worker, number, name, self._engine.unload(name, unload_dependents=dependents))

    def _ready(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        name, version = fields.get("name", ""), version_number(fields.get("version", ""))
        self._require_started(name)

        async def respond() -> str:
            try:
                return "1" if await self._engine.check_ready(name, version) else "0"
            except NaiadError as error:
                # Models ask before they load another: a model that is stored and was never loaded is not an error.
                if error.code is Code.NOT_FOUND and await self._is_stored(name):
                    return "0"
                raise

        self._start(worker, number, respond())

    def _require_started(self, name: str) -> None:
        """Reject a query about another model while the models to load at the start are loaded.

        It cannot wait: the start ends only after the `initialize` that asks.
        """
        if not self._engine.is_started():
            raise NotReadyError(
                f"Server not ready: models cannot load, unload or ask for '{name}' in initialize while the server "
                "starts; to have it loaded first, name it in the parameter LOAD_AFTER of config.pbtxt, else do this in "
                "execute"
            )

    def _config(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        """Reply with the configuration of a model that is loaded, as JSON: native backends ask for it."""
        config = self._engine.model_config(fields.get("name", ""), version_number(fields.get("version", "")))
        worker.reply(number, text=orjson.dumps(config).decode())

    def _metadata(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        metadata = self._engine.model_metadata(fields.get("name", ""), version_number(fields.get("version", "")))
        worker.reply(number, text=_json(metadata_document(metadata)))

    def _statistics(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        name, version = fields.get("name", ""), version_number(fields.get("version", ""))

        async def respond() -> str:
            await self._engine.gather_counts()
            return _json(statistics_document(self._engine.statistics(name, version)))

        self._start(worker, number, respond())

    def _server_metadata(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:  # noqa: ARG002 - as all handlers
        worker.reply(number, text=_json(server_document(self._engine.server_metadata())))

    def _server_ready(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:  # noqa: ARG002 - as all handlers
        worker.reply(number, text=str(int(self._engine.is_ready())))

    def _index(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        async def respond() -> str:
            is_complete = fields.get("ready", "0") == "0"
            entries = await self._engine.repository_index() if is_complete else self._engine.ready_index()
            return _json(index_document(entries))

        self._start(worker, number, respond())

    async def _is_stored(self, name: str) -> bool:
        index = await self._engine.repository_index()
        return any(name in {entry.name, model_key(entry.namespace, entry.name)} for entry in index)

    def _start_after(self, worker: Worker, number: int, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Start *work*, which waits for other loads and unloads of *name*."""
        edge = (worker.spec.load.model_name, name) if worker.is_starting else None
        if edge is not None and self._is_reachable(name, edge[0]):
            work.close()
            raise NaiadError(
                f"cannot load or unload '{name}' while '{edge[0]}' is being loaded: '{name}' waits for '{edge[0]}'; "
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
        self._start(worker, number, run())

    def _is_reachable(self, start: str, end: str) -> bool:
        seen: set[str] = set()
        unvisited = [start]
        while unvisited:
            name = unvisited.pop()
            if name == end:
                return True
            if name not in seen:
                seen.add(name)
                unvisited += [awaited for waiting, awaited in self._waits if waiting == name]
        return False

    def _start(self, worker: Worker, number: int, work: Coroutine[Any, Any, str]) -> None:
        async def run() -> None:
            try:
                text = await work
            except NaiadError as error:
                worker.reply(number, error=error)
            except Exception as error:
                logger.exception("cannot answer a query of '%s'", worker.spec.name)
                worker.reply(number, error=NaiadError(f"internal error: {error}"))
            else:
                worker.reply(number, text=text)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _json(document: Any) -> str:
    return orjson.dumps(document).decode()


def version_number(text: str) -> int:
    """The version number in *text*, LATEST if it is empty; raise InvalidRequestError if it is invalid."""
    if not text:
        return LATEST
    match = _NUMBER.match(text)  # as C++'s stol, which the reference uses: it stops at the first other character
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
