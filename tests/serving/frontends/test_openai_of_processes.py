"""OpenAI's API over several processes: what one of them stored, another one continues."""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path

import pytest
from serving.frontends.killing import serving
from support.server import HOST, ServerProcess, free_ports

MODELS = Path(__file__).parents[2] / "llm" / "openai" / "models"
CONNECTIONS = 24
"""The chance that the kernel gives all of them to one of two processes is one in eight million."""


@pytest.fixture(scope="module")
def served(work):
    (port,) = free_ports(1)
    options = (f"--openai-port={port}", "--openai-metrics", "--processes=2", "--openai-stored-responses=4")
    with ServerProcess(MODELS, *options, work=work) as server:
        assert len(serving(server)) == 2
        yield port


@pytest.fixture
def connections(served):
    with contextlib.ExitStack() as stack:
        made = [http.client.HTTPConnection(HOST, served, timeout=60) for _ in range(CONNECTIONS)]
        for connection in made:
            stack.enter_context(contextlib.closing(connection))
            connection.connect()
        yield made


def ask(connection, method, path, **document):
    connection.request(method, path, json.dumps(document) if document else None)
    response = connection.getresponse()
    return response.status, response.read()


def respond(connection, text, **given):
    status, body = ask(connection, "POST", "/v1/responses", model="speaker", input=text, **given)
    assert status == 200, body
    return json.loads(body)


def test_a_response_is_continued_read_and_deleted_over_any_connection(connections):
    said = "one"
    response = respond(connections[0], said)
    expected = [{"role": "user", "content": said}]
    for connection in connections[1:]:
        expected.append({"role": "assistant", "content": f"{said} "})
        said = f"{said} more"
        response = respond(connection, said, previous_response_id=response["id"])
        expected.append({"role": "user", "content": said})
    told = respond(connections[0], "conversation", previous_response_id=response["id"], max_output_tokens=10_000)
    messages = json.loads(told["output"][0]["content"][0]["text"])["messages"]
    plain = [(each["role"], each["content"]) for each in messages]
    assert plain[:3] == [("user", "one"), ("assistant", "one "), ("user", "one more")]
    assert len(plain) == 2 * CONNECTIONS + 1

    path = f"/v1/responses/{response['id']}"
    for connection in connections:
        assert json.loads(ask(connection, "GET", path)[1]) == response
    assert ask(connections[3], "DELETE", path)[0] == 200
    assert {ask(connection, "GET", path)[0] for connection in connections} == {404}


def test_the_bounds_hold_for_all_processes_together(connections):
    made = [respond(connection, f"number {place}")["id"] for place, connection in enumerate(connections)]
    kept = [ask(connections[0], "GET", f"/v1/responses/{each}")[0] for each in made]
    assert kept == [404] * (CONNECTIONS - 4) + [200] * 4


def test_metrics_are_the_same_page_over_any_connection(connections):
    # A response shows that a process has accepted the connection: until then only the kernel knows it.
    assert len({ask(connection, "GET", "/v1/models")[1] for connection in connections}) == 1
    for connection in connections:
        status, body = ask(connection, "GET", "/metrics")
        assert status == 200
        opened = [line for line in body.decode().splitlines() if line.startswith("naiad_process_connections{")]
        assert len(opened) == 2
        assert sum(float(line.rpartition(" ")[2]) for line in opened) >= CONNECTIONS
