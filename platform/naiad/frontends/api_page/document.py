"""The OpenAPI document of a server: every route of its HTTP port, and those of each loaded model with its tensors.

The routes are those of `docs/reference/openapi.yaml`. `protocol.json` is the same document, written by
`docs/make_openapi.py`: a server has no parser for YAML.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from time import perf_counter
from typing import Any

import orjson

from naiad.core.errors import NaiadError
from naiad.core.turns import SHARE_SECONDS
from naiad.engine.facade import EngineFacade
from naiad.frontends.api_page.model_operations import TAG, model_operations

_LANGUAGE_TAGS = frozenset({"openai", "anthropic"})
_CONSOLE = "/ui"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApis:
    """What the HTTP port serves beside KServe's protocol."""

    openai: bool = False
    openai_port: int | None = None  # the port of that API; None if it is not served
    console: bool = False


class ApiDocument:
    """Makes the document of an engine's models."""

    def __init__(self, engine: EngineFacade, served: ServedApis) -> None:
        self._engine = engine
        self._served = served
        self._making: asyncio.Task[bytes] | None = None

    async def read(self) -> bytes:
        """The document as JSON. Who asks for it while it is made gets the same one: many clients cost one making."""
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make())
            self._making.add_done_callback(self._forget)
        return await asyncio.shield(self._making)

    def _forget(self, _: asyncio.Task[bytes]) -> None:
        self._making = None

    async def _make(self) -> bytes:
        parts: list[bytes] = []
        deadline = perf_counter() + SHARE_SECONDS
        for name in dict.fromkeys(entry.name for entry in self._engine.ready_index()):
            with suppress(NaiadError):  # unloaded meanwhile, or in two namespaces: then its name alone names no model
                parts.extend(orjson.dumps({path: item})[1:-1] for path, item in self._operations(name))
            if perf_counter() >= deadline:
                await asyncio.sleep(0)
                deadline = perf_counter() + SHARE_SECONDS
        protocol = _protocol()
        paths = {path: item for path, item in protocol["paths"].items() if self._is_served(path, item)}
        parts.append(orjson.dumps(paths)[1:-1])
        head = orjson.dumps({**protocol, "info": self._info(protocol["info"]), "paths": None})
        before, _, after = head.rpartition(b'"paths":null')
        return b'%b"paths":{%b}%b' % (before, b",".join(parts), after)

    def _operations(self, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return model_operations(
            self._engine.model_metadata(name),
            max_batch_size=int(self._engine.model_config(name).get("max_batch_size", 0)),
            is_decoupled=self._engine.is_decoupled(name),
        )

    def _is_served(self, path: str, item: Mapping[str, Any]) -> bool:
        if path == _CONSOLE or path.startswith(f"{_CONSOLE}/"):
            return self._served.console
        tags = {tag for operation in item.values() if isinstance(operation, Mapping) for tag in operation["tags"]}
        return self._served.openai or not tags & _LANGUAGE_TAGS

    def _info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        server = self._engine.server_metadata()
        text = info["description"]
        if self._served.openai_port is not None and not self._served.openai:
            text += f"\nThe paths of `/v1` are on port {self._served.openai_port}, and not in this document.\n"
        return {**info, "version": server.version, "description": text}


@cache
def _protocol() -> Mapping[str, Any]:
    """The document without models. The server that serves the document is the one to call: its address is relative."""
    text = resources.files("naiad.frontends.api_page").joinpath("protocol.json").read_bytes()
    document: dict[str, Any] = orjson.loads(text)
    tags = [{"name": TAG}, *document["tags"]]
    return {**document, "servers": [{"url": "/"}], "tags": tags}
