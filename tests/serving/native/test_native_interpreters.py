"""Native backends in guests of every interpreter of this machine."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving.native.test_native_backends import TWO, add_models, ask, data
from support.interpreters import each_interpreter, numpy_environment
from support.native import add_model
from support.server import ServerProcess
from support.waiting import until

SERVER = Path(__file__).with_name("server_of_guests.py")
SHARED = 'parameters { key: "native_shared_model" value { string_value: "true" } }\n'


@pytest.mark.parametrize(("version", "python"), each_interpreter())
def test_backends_are_served_alike_under_every_interpreter(version, python, tmp_path, tmp_path_factory):
    environment = numpy_environment(tmp_path_factory, version, python)
    repository = tmp_path / "models"
    add_models(repository)
    add_model(repository, "meet", "meet.c", config=TWO + SHARED)
    command = [sys.executable, SERVER, environment]
    with ServerProcess(repository, work=tmp_path, command=command, timeout=120) as server:
        found = set(re.findall(r"is ready: pid \d+, Python (\d+\.\d+)", server.log))
        assert found == {".".join(map(str, version))}

        for model in ("echo", "unbatched", "later", "complete", "tells", "counters", "throws", "faults"):
            values = [0.0, 9.0] if model == "faults" else [2.0, 3.0]
            shape = [2] if model == "unbatched" else None
            assert data(ask(server, model, *values, shape=shape)) == values, model
        with ThreadPoolExecutor(2) as pool:  # each is executed once the other one is, too
            replies = list(pool.map(lambda value: ask(server, "meet", value), (1, 2)))
        assert [data(reply) for reply in replies] == [[1], [2]]
        large = [2.0, *map(float, range(100_000))]
        for model in ("echo", "batching", "calls_echo"):
            assert data(ask(server, model, *large)) == large
        assert 'native_last_value{model="counters"} 3' in server.metrics()

        events = server.post("/v2/models/calls_stream/generate_stream", {"IN": [3.0, 2.0]}).body
        streamed = [json.loads(event)["OUT"] for event in re.findall(rb"data: (.*)", events)]
        assert streamed == [[number, 2.0] for number in range(3)]

        for number, total in ((1, 1), (2, 3), (3, 6)):
            flags = {"sequence_id": 5, "sequence_start": number == 1, "sequence_end": number == 3}
            tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [number]}
            assert data(server.post("/v2/models/sums/infer", {"inputs": [tensor], "parameters": flags})) == [total]

        errors = {fault: ask(server, "faults", fault).error for fault in (1, 2, 5, 7, 11, 12)}
        assert errors[1] == "the backend does not like this value"
        assert "1125899906842624 bytes do not fit" in errors[7]
        assert "TRITONSERVER_ServerStop is not supported" in errors[11]
        assert "the call can never be answered" in ask(server, "calls_itself", 1).error
        assert "was killed by SIGSEGV" in ask(server, "faults", 6).error
        until(lambda: server.get("/v2/models/faults/ready").status == 200, "the backend's restart")
        assert data(ask(server, "faults", 0)) == [0]
        log = server.log
    assert "is not a live" not in log
    assert "Traceback" not in log
