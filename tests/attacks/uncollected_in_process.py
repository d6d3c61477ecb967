"""Requests of 10 MB that fail, to a server in this process, which never collects cycles.

    python uncollected_in_process.py REPOSITORY STORE ROUNDS

Prints as JSON how many have `failed`, by how many bytes memory has `grown`, and what a collection frees.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from attacks.uncollected import garbage_report, stop_collecting

import naiad

SIZE = 10_000_000
KINDS = ("raises", "answers_error", "counts_wrong", "wrong_type", "exits", "calls_raises", "ensemble_of_raises")
MANY = ("sends_error", "sends_error_later", "sends_then_raises")
MODELS = (*KINDS, *MANY, "answers", "returns_all", "sequences", "waits", "sends_waits")


def fail(server: naiad.Server, model: str, **more: Any) -> None:
    """A request that fails: its error is raised or returned."""
    inputs = more.pop("inputs", None) or {"IN": np.zeros(SIZE // 4, np.float32)}
    try:
        for response in server.model(model).infer(inputs=inputs, **more):
            if response.error is not None:
                return
    except naiad.TritonError:
        return
    raise AssertionError(f"{model} has not failed")


async def fail_async(server: naiad.Server, model: str) -> None:
    """The same on an event loop of the program."""
    try:
        async for _ in server.model(model).async_infer(inputs={"IN": np.zeros(SIZE // 4, np.float32)}):
            pass
    except naiad.TritonError:
        return
    raise AssertionError(f"{model} has not failed")


def cancel(server: naiad.Server, model: str, waiting: Path) -> None:
    """A request that is cancelled while the model executes it."""
    responses = server.model(model).infer(inputs={"IN": np.zeros(SIZE // 4, np.float32)})
    while not waiting.exists():
        pass
    responses.cancel()
    try:
        for _ in responses:
            pass
    except naiad.TritonError:
        return


def fail_all(server: naiad.Server, waiting: Path) -> int:
    """One request of each kind; how many there were."""
    for model in (*KINDS, *MANY):
        fail(server, model)
        fail(server, model, raise_on_error=False)
        asyncio.run(fail_async(server, model))
    fail(server, "nothing")
    fail(server, "answers", inputs={"X": np.zeros(SIZE // 4, np.float32)})
    fail(server, "answers", inputs={"IN": np.zeros((2, SIZE // 8), np.float32)})
    fail(server, "answers", inputs={"IN": np.zeros(SIZE // 8, np.float64)})
    fail(server, "answers", parameters={"p": [1]})
    fail(server, "sequences", correlation_id=5)
    for model in ("waits", "sends_waits"):
        cancel(server, model, waiting)
    return 3 * len(KINDS + MANY) + 8


def _resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def main(repository: str, store: str, rounds: str) -> None:
    """Run the requests and print the report."""
    waiting = Path(repository).parent / "waiting"
    flags = [f"--env-store={store}", "--stub-restart-limit=100000", "--cache-config=local,size=10485760"]
    with naiad.Server(model_repository=repository, flags=flags) as server:
        stop_collecting()
        failed = fail_all(server, waiting)
        before = _resident()
        for _ in range(int(rounds)):
            failed += fail_all(server, waiting)
        grown = _resident() - before
        print(json.dumps({"failed": failed, "grown": grown, **garbage_report()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
