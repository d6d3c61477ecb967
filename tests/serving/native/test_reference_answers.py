"""What clients get from native backends, of naiad and of the real server, which load the same files.

Needs an installed reference: NAIAD_BENCH_REFERENCE names its folder, as for `python -m bench`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving.native.test_native_backends import add_models, ask, factor
from support.native import add_model
from support.server import Reply, ServerProcess

REFERENCE = Path(os.environ.get("NAIAD_BENCH_REFERENCE", "/nowhere"))
VALUES = ([2.0, 3.0], [0.0], [1.0, 5.0], [float(number) for number in range(300)])
DECOUPLED = ("stream", "calls_stream")
NOT_SERVED = {
    "waits": "it waits until its client has gone",
    "calls_itself": "the real server never answers",
    "chains": "nor here: it calls back on the thread of 'echo', which so cannot answer the next call of the chain",
}
LEFT_OUT = {
    "faults": "it is asked for what is defined in both servers alone",
    "throws": "it crashes for some values",
    "sums": "its requests belong to sequences",
    "asks": "its answers contain times, and are compared apart",
}

pytestmark = [
    pytest.mark.skipif(not (REFERENCE / "READY").exists(), reason="NAIAD_BENCH_REFERENCE names no installed Triton"),
]


def answered(reply: Reply) -> tuple[int, Any]:
    """Status and body of a reply: JSON, the events of a stream, or text."""
    if events := re.findall(rb"data: (.*)", reply.body):
        return reply.status, [json.loads(event) for event in events]
    try:
        return reply.status, json.loads(reply.body)
    except ValueError:
        return reply.status, reply.body


def in_sequence(server: ServerProcess, value: float, sequence: int, **parameters: bool) -> Reply:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    body = {"inputs": [tensor], "parameters": {"sequence_id": sequence, **parameters}}
    return server.post("/v2/models/sums/infer", body)


def requests(names: list[str]) -> Iterator[tuple[str, Callable[[ServerProcess], Reply]]]:
    """What is asked of both servers, in order, each with a name."""
    for name in names:
        yield f"{name} configuration", lambda server, name=name: server.get(f"/v2/models/{name}/config")
        yield f"{name} metadata", lambda server, name=name: server.get(f"/v2/models/{name}")
        for values in () if name in LEFT_OUT else VALUES:
            title = f"{name} {values[:2]} of {len(values)}"
            if name in DECOUPLED:
                path = f"/v2/models/{name}/generate_stream"
                yield title, lambda server, path=path, values=values: server.post(path, {"IN": values})
            else:
                shape = [len(values)] if name == "unbatched" else None
                yield (
                    title,
                    lambda server, name=name, values=values, shape=shape: ask(server, name, *values, shape=shape),
                )
    for fault in (0, 1, 2, 14, 15, 16):
        yield f"faults {fault}", lambda server, fault=fault: ask(server, "faults", fault)
    for value in (1, 200):
        yield f"throws {value}", lambda server, value=value: ask(server, "throws", value)
    yield "scales a batch", lambda server: ask(server, "scales", 1, 2, 3, 4, shape=[2, 2])
    yield "a sequence starts", lambda server: in_sequence(server, 1, 7, sequence_start=True)
    yield "a sequence continues", lambda server: in_sequence(server, 2, 7)
    yield "a sequence ends", lambda server: in_sequence(server, 3, 7, sequence_end=True)
    yield "a sequence continues after its end", lambda server: in_sequence(server, 4, 7)
    for parameters in (
        {
            "sequence_id": 9,
            "sequence_start": True,
            "timeout": 1234,
            "text": "t",
            "number": 5,
            "yes": True,
            "share": 0.5,
        },
        {"sequence_id": "abc", "sequence_start": True, "sequence_end": True},
    ):
        tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
        body = {"id": "mine", "inputs": [tensor], "parameters": parameters}
        yield (
            f"tells of {parameters['sequence_id']}",
            lambda server, body=body: server.post("/v2/models/tells/infer", body),
        )
    for path in ("echo", "none"):
        body = {"inputs": [{"name": "OTHER", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}
        yield (
            f"a wrong input for {path}",
            lambda server, path=path, body=body: server.post(f"/v2/models/{path}/infer", body),
        )


def told(server: ServerProcess) -> dict[str, Any]:
    """What `asks.c` learns, without times and what has to differ: the server's version."""
    reply = ask(server, "asks", 1)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json()["parameters"]
    for name in ("server", "echo", "statistics", "index", "index of ready ones"):
        found[name] = json.loads(found[name])
    for entry in found["statistics"]["model_stats"]:
        entry["last_inference"] = entry["last_inference"] > 0
        for each in (entry["inference_stats"], *({**batch, "batch_size": {}} for batch in entry["batch_stats"])):
            for duration in each.values():
                duration.pop("ns", None)
    for name in ("index", "index of ready ones"):
        found[name].sort(key=lambda entry: entry["name"])
    del found["server"]["version"]
    return found


def answers(server: ServerProcess, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {name: answered(send(server)) for name, send in requests(names)}
    found["metrics"] = sorted(line for line in server.metrics().splitlines() if line.startswith("native_"))
    return found | {f"asks: {name}": text for name, text in told(server).items()}


def test_both_servers_answer_alike(tmp_path):
    repository = tmp_path / "models"
    add_models(repository)
    add_model(repository, "halves", "scales.cc", config=factor("0.5"))
    for name in NOT_SERVED:
        (repository / name).rename(tmp_path / name)
    names = sorted(path.name for path in repository.iterdir())
    options = ["--backend-config=complete,color=blue"]
    with ServerProcess(repository, *options, work=tmp_path / "ours") as server:
        ours = answers(server, names)
    command = [REFERENCE / "bin" / "tritonserver"]
    with ServerProcess(repository, *options, work=tmp_path / "theirs", command=command) as server:
        theirs = answers(server, names)

    assert len(ours) > 120
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}


def test_a_second_sequence_without_controls_is_answered_here_and_fails_in_the_reference(tmp_path):
    """The page on native backends says so. The real server fills a batch with null requests, which may have no output."""
    repository = tmp_path / "models"
    add_models(repository)
    for path in repository.iterdir():
        if path.name != "sums":
            path.rename(tmp_path / path.name)

    def second(server: ServerProcess) -> tuple[int, Any]:
        assert in_sequence(server, 1, 7, sequence_start=True).status == 200
        return answered(in_sequence(server, 10, 8, sequence_start=True))

    with ServerProcess(repository, work=tmp_path / "ours") as server:
        status, body = second(server)
        assert (status, body["outputs"][0]["data"]) == (200, [10])
    with ServerProcess(repository, work=tmp_path / "theirs", command=[REFERENCE / "bin" / "tritonserver"]) as server:
        text = "unexpected allocation for null request, no output should be requested."
        assert second(server) == (500, {"error": text})
