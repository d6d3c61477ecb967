"""Traces of a server of three processes: sampled in one sequence, written to one file."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
from collections import defaultdict
from pathlib import Path

import numpy as np
import tritonclient.grpc
from serving.frontends.killing import others, reader_of
from serving.processes.reaching import connection_of_each
from serving.repositories import document, repository
from serving.written import document_of, write_model
from support.client_inputs import input_of
from support.server import HOST, ServerProcess, still_running
from support.waiting import until

CONNECTIONS = 46
"""The chance that the kernel gives none of them to one of three processes is one in 28 million."""
RATE = 3
SERVED = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: object = None):
    connection.request(method, path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    content = response.read()
    assert response.status == 200, content
    return json.loads(content)


def change(connection: http.client.HTTPConnection, **settings: object) -> dict[str, object]:
    return ask(connection, "POST", "/v2/trace/setting", settings)


def infer_over_grpc(server: ServerProcess) -> None:
    tensor = input_of(tritonclient.grpc, "IN", np.ones(1, np.float32))
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.update_trace_settings("identity", settings={"trace_rate": "1"})
        client.infer("identity", [tensor], request_id="grpc")
        client.update_trace_settings("identity", settings={"trace_rate": None})


def traces(path: Path) -> dict[int, list[dict[str, object]]]:
    """The records of a trace file by trace."""
    found = defaultdict(list)
    for record in json.loads(path.read_text()):
        found[record["id"]].append(record)
    return found


def times(records: list[dict[str, object]]) -> dict[str, int]:
    return {each["name"]: each["ns"] for record in records for each in record.get("timestamps", ())}


def test_requests_of_all_processes_are_sampled_in_one_sequence_and_written_to_one_file(tmp_path):
    models = repository(tmp_path / "models", ["identity"])
    write_model(models, "code")
    file, fifo = tmp_path / "traces", tmp_path / "fifo"
    os.mkfifo(fifo)
    options = ("--processes=3", "--trace-config=level=TIMESTAMPS", f"--trace-config=triton,file={file}")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            ServerProcess(models, *options, f"--trace-config=rate={RATE}", "--trace-config=count=100", work=tmp_path)
        )
        made = [http.client.HTTPConnection(HOST, server.http_port, timeout=60) for _ in range(CONNECTIONS)]
        for connection in made:
            stack.enter_context(contextlib.closing(connection))

        for number, connection in enumerate(made):
            ask(connection, "POST", "/v2/models/identity/infer", {**document(1.0), "id": str(number)})
            left = {ask(other, "GET", "/v2/trace/setting")["trace_count"] for other in (made[0], made[-1])}
            assert left == {str(100 - (number + 1) // RATE)}

        # A change holds in every process before it is answered.
        for number, connection in enumerate(made):
            is_on = number % 2 == 1
            answer = change(connection, trace_level=["TIMESTAMPS" if is_on else "OFF"], trace_rate="1")
            before = int(answer["trace_count"])
            ask(made[number - 1], "POST", "/v2/models/identity/infer", {**document(2.0), "id": f"changed {number}"})
            assert int(ask(connection, "GET", "/v2/trace/setting")["trace_count"]) == before - is_on
        infer_over_grpc(server)

        # A traced request whose process exits: its trace ends without the sending.
        each = stack.enter_context(connection_of_each(server))
        body = json.dumps({"id": "killed", **document_of(f"open({str(fifo)!r}).read()")})
        each[others(server)[0].pid].request("POST", "/v2/models/code/infer", body)
        writing = until(lambda: reader_of(fifo), "the model to read")
        killed = others(server)
        for process in killed:
            process.send_signal(signal.SIGKILL)
        # Until then the kernel gives them connections.
        assert still_running(killed, 60) == []
        writing.close()
        server.wait_health("ready")
        fresh = stack.enter_context(contextlib.closing(http.client.HTTPConnection(HOST, server.http_port, timeout=60)))
        assert ask(fresh, "GET", "/v2/trace/setting")["trace_level"] == ["TIMESTAMPS"]
        ask(fresh, "POST", "/v2/models/identity/infer", {**document(3.0), "id": "after"})

    found = traces(file)
    by_request = {str(records[0].get("request_id")): records for records in found.values()}
    sampled = [str(number) for number in range(RATE - 1, CONNECTIONS, RATE)]
    changed = [f"changed {number}" for number in range(1, CONNECTIONS, 2)]
    assert sorted(by_request) == sorted([*sampled, *changed, "grpc", "after", "killed"])
    for request in (*sampled, *changed, "grpc", "after"):
        kind, received = ("GRPC", "WAITREAD") if request == "grpc" else ("HTTP", "RECV")
        order = [
            f"{kind}_{received}_START",
            f"{kind}_{received}_END",
            *SERVED,
            "INFER_RESPONSE_COMPLETE",
            "REQUEST_END",
            f"{kind}_SEND_START",
            f"{kind}_SEND_END",
        ]
        stamps = times(by_request[request])
        assert list(stamps) == order
        sent = [stamps[name] for name in order if name not in {"QUEUE_START", "REQUEST_START"}]
        assert sent == sorted(sent)
    assert "HTTP_SEND_END" not in times(by_request["killed"])
