"""Repositories of sample models, and requests to them over HTTP."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.server import Reply, ServerProcess

SAMPLES = Path(__file__).parents[1] / "samples" / "models"


def repository(folder: Path, names: Iterable[str], **config: str) -> Path:
    """Copies of the sample models; *config* is appended to the configuration of the model of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copytree(SAMPLES / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        if name in config:
            with (folder / name / "config.pbtxt").open("a") as file:
                file.write(config[name])
    return folder


def document(*values: float) -> dict[str, Any]:
    return {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [len(values)], "data": list(values)}]}


def infer(server: ServerProcess, model: str, *values: float, version: str = "") -> Reply:
    path = f"/v2/models/{model}/versions/{version}" if version else f"/v2/models/{model}"
    return server.post(f"{path}/infer", document(*values))


def values(reply: Reply) -> list[float]:
    assert reply.status == 200, reply.body
    return reply.json()["outputs"][0]["data"]


def index(server: ServerProcess) -> dict[str, dict[str, str]]:
    """The repository index by model (the last version of each)."""
    return {entry["name"]: entry for entry in server.post("/v2/repository/index").json()}


def states(server: ServerProcess) -> set[str]:
    return {entry.get("state", "") for entry in server.post("/v2/repository/index").json()}


def is_model_ready(server: ServerProcess, model: str) -> bool:
    return server.get(f"/v2/models/{model}/ready").status == 200
