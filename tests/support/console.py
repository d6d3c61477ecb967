"""What the page at /ui shows, read as JSON from the documents that it fetches."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from support.server import ServerProcess


def shown_models(server: ServerProcess) -> list[dict[str, Any]]:
    """The models, a line each."""
    found: list[dict[str, Any]] = server.get("/ui/data/state").json()["models"]
    return found


def shown_model(server: ServerProcess, name: str, version: int = 1) -> dict[str, Any]:
    """Everything about one version of a model."""
    reply = server.get(f"/ui/data/model/{quote(name, safe='')}/{version}")
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json()
    return found


def shown_instance(server: ServerProcess, model: str) -> dict[str, Any]:
    """The first instance of a model."""
    found: dict[str, Any] = shown_model(server, model)["instances"][0]
    return found
