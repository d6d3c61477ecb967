"""Calls through a model of the backend, between two real servers: protocols, tensors, batches, streams, chains."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from support.server import HOST, ServerProcess, free_ports
from support.waiting import until

from . import models

_PIPELINE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "ABOUT" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling {
  step { model_name: "by_http" model_version: -1
    input_map { key: "X" value: "X" } input_map { key: "TEXT" value: "TEXT" }
    output_map { key: "Y" value: "HALF" } }
  step { model_name: "by_grpc" model_version: -1
    input_map { key: "X" value: "HALF" } input_map { key: "TEXT" value: "TEXT" }
    output_map { key: "Y" value: "Y" } output_map { key: "ABOUT" value: "ABOUT" } }
}
"""


@pytest.fixture(scope="module")
def caller(target: ServerProcess, store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server with models of the backend, all of whose targets are models of the other server."""
    folder = tmp_path_factory.mktemp("caller")
    repository = folder / "models"
    http, grpc = f"http://{target.http_url}", f"grpc://{target.grpc_url}"
    models.add_remote(repository, "by_http", {"url": http, "model": "rows", "forward_headers": "x-user"})
    models.add_remote(repository, "by_grpc", {"url": grpc, "model": "rows", "forward_headers": "x-user"})
    batching = (
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 6 ] max_queue_delay_microseconds: 30000000 }"
    )
    models.add_remote(repository, "batched", {"url": http, "model": "rows"}, batching)
    models.add_remote(repository, "small_http", {"url": http, "model": "rows", "max_response_mib": "1"})
    models.add_remote(repository, "small_grpc", {"url": grpc, "model": "rows", "max_response_mib": "1"})
    models.add_remote(repository, "count", {"url": grpc})
    models.add_remote(repository, "fail_http", {"url": http, "model": "fail"})
    models.add_remote(repository, "fail_grpc", {"url": grpc, "model": "fail"})
    models.add_remote(repository, "wait", {"url": http})
    models.add_remote(repository, "wait_grpc", {"url": grpc, "model": "wait"})
    models.add_remote(repository, "bf16_http", {"url": http, "model": "bf16"})
    models.add_remote(repository, "bf16_grpc", {"url": grpc, "model": "bf16"})
    models.add_call(repository, "bls", "fail_http")
    models.add_remote(
        repository,
        "split",
        {"url": f"{http}, {http}/v2/models/canary", "model": "rows", "weights": "75, 25"},
    )
    models.add_remote(repository, "shadowed", {"url": http, "model": "rows", "shadow": f"{http}/v2/models/wait"})
    models.add_python(repository, "pipeline", "", _PIPELINE)
    (repository / "pipeline" / "1" / "model.py").unlink()
    with ServerProcess(repository, store, "--http-header-forward-pattern=x-.*", work=folder) as server:
        yield server


def rows_request(*texts: str, **parameters: object) -> dict[str, object]:
    """A request with one row for each text."""
    count = len(texts)
    return {
        "id": "seven",
        "inputs": [
            {"name": "X", "shape": [count, 2], "datatype": "FP32", "data": [[n, n + 0.5] for n in range(count)]},
            {"name": "TEXT", "shape": [count, 1], "datatype": "BYTES", "data": list(texts)},
        ],
        "parameters": parameters,
    }


def outputs_of(reply) -> dict[str, list[object]]:
    assert reply.status == 200, reply.body
    return {output["name"]: output["data"] for output in reply.json()["outputs"]}


def about(reply) -> dict[str, object]:
    return json.loads(outputs_of(reply)["ABOUT"][0])


def infer(server: ServerProcess, model: str, body: object, headers: dict[str, str] | None = None):
    return server.post(f"/v2/models/{model}/infer", body, headers)


@pytest.mark.parametrize("model", ["by_http", "by_grpc"])
def test_a_call_carries_tensors_parameters_and_ids_there_and_back(caller, model):
    reply = infer(caller, model, rows_request("ä", "", mode="fast", timeout=9_000_000), {"x-user": "Ada"})

    found = outputs_of(reply)
    assert found["Y"] == [0, 1, 2, 3]
    assert found["ECHO"] == ["ä", ""]
    seen = about(reply)
    assert (seen["rows"], seen["id"], seen["timeout"]) == (2, "seven", 9_000_000)
    assert seen["parameters"] == {"mode": "fast"}  # the header x-user is sent as a header, which is not forwarded there
    assert (reply.json()["model_name"], reply.json()["parameters"]) == (model, {"answered": True})


@pytest.mark.parametrize("headers", [{}, {"x-user": "Ada"}])
@pytest.mark.parametrize("name", ["X-User", "X-USER"])
def test_a_parameter_does_not_become_a_header(caller, name, headers):
    """A proxy that sets the header after a login has not seen the parameter."""
    reply = infer(caller, "by_http", rows_request("a", **{name: "admin"}), headers)

    assert reply.status == 400
    assert reply.error == (
        "cannot forward the header 'x-user': it came as a parameter of the request; send it as a header that the server "
        "forwards, and in calls between models pass the request's trace"
    )


@pytest.mark.parametrize("model", ["small_http", "small_grpc"])
def test_a_response_that_is_longer_than_the_model_accepts_is_an_error(caller, model):
    reply = infer(caller, model, rows_request("x" * 1_500_000))

    assert reply.status == 500
    assert "its response has more than 1048576 bytes; ask it for fewer outputs, or raise the parameter" in reply.error
    assert infer(caller, model, rows_request("x")).status == 200


def test_the_trace_context_and_the_chain_of_calls_travel_on(caller):
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    reply = infer(caller, "by_http", rows_request("a"), {"traceparent": traceparent, "naiad-call-chain": "edge/x:1"})

    context = about(reply)["context"]
    assert context["traceparent"] == traceparent
    first, second = context["naiad-call-chain"].split(",")
    assert first == "edge/x:1"
    assert second.endswith("/by_http:1")


def test_a_batch_of_the_caller_is_one_request_of_the_target(caller):
    with ThreadPoolExecutor(3) as threads:
        replies = list(
            threads.map(
                lambda texts: infer(caller, "batched", rows_request(*texts)), [("a",), ("b", "cc"), ("d", "", "é")]
            )
        )

    assert [outputs_of(reply)["ECHO"] for reply in replies] == [["a"], ["b", "cc"], ["d", "", "é"]]
    assert [outputs_of(reply)["Y"] for reply in replies] == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert [about(reply)["rows"] for reply in replies] == [6, 6, 6]


@pytest.mark.parametrize("model", ["bf16_http", "bf16_grpc"])
def test_tensors_that_numpy_does_not_know_pass_unchanged(caller, model):
    values = np.array([1.5, -2, 0.25], "<f4").tobytes()
    data = b"".join(values[start + 2 : start + 4] for start in range(0, len(values), 4))
    head = json.dumps(
        {
            "inputs": [{"name": "IN", "shape": [3], "datatype": "BF16", "parameters": {"binary_data_size": 6}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()

    reply = infer(caller, model, head + data, {"inference-header-content-length": str(len(head))})

    assert reply.status == 200, reply.body
    assert reply.body.endswith(data)


def count(server: ServerProcess, number: int) -> tuple[list[int], str]:
    """The numbers of a stream, and its error."""
    arrived: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
    given = grpcclient.InferInput("COUNT", [1], "INT32").set_data_from_numpy(np.array([number], np.int32))
    numbers = []
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer("count", [given], enable_empty_final_response=True)
        while True:
            result, error = arrived.get(timeout=60)
            if error is not None:
                return numbers, error.message()
            if result.as_numpy("NUMBER") is not None:
                numbers.append(result.as_numpy("NUMBER").item())
            if result.get_response().parameters["triton_final_response"].bool_param:
                return numbers, ""


@pytest.mark.parametrize("number", [0, 1, 3000])
def test_a_decoupled_model_streams_through(caller, number):
    """More responses than may be under way without a client that reads."""
    assert count(caller, number) == (list(range(number)), "")


def test_an_error_within_a_stream_follows_its_responses(caller, target):
    numbers, error = count(caller, -2)

    assert numbers == [0, 1]
    assert error == f"it counts up to here (from grpc://{target.grpc_url}/v2/models/count)"


@pytest.mark.parametrize(("model", "scheme"), [("fail_http", "http"), ("fail_grpc", "grpc")])
def test_an_error_keeps_its_status_and_text_and_names_the_target(caller, target, model, scheme):
    reply = infer(caller, model, {"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}]})

    address = target.http_url if scheme == "http" else target.grpc_url
    assert (reply.status, reply.error) == (404, f"there is no such row (from {scheme}://{address}/v2/models/fail)")


def test_a_model_that_calls_a_remote_model_gets_its_error(caller, target):
    reply = infer(caller, "bls", {"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}]})

    assert f"there is no such row (from http://{target.http_url}/v2/models/fail)" in reply.error


@pytest.mark.parametrize("model", ["wait", "wait_grpc"])
def test_a_client_that_disconnects_cancels_the_call_at_the_target(caller, target, model):
    begun, cancelled = target.work / "begun", target.work / "cancelled"
    before = [lines_of(begun), lines_of(cancelled)]
    request = grpcclient.InferInput("X", [1], "INT32").set_data_from_numpy(np.array([1], np.int32))
    with grpcclient.InferenceServerClient(caller.grpc_url) as client:
        call = client.async_infer(model, [request], callback=lambda result, error: None)
        until(lambda: lines_of(begun) == before[0] + 1, "the target to begin")
        call.cancel()
        until(lambda: lines_of(cancelled) == before[1] + 1, "the target to see the cancellation")


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize(("waiting", "answering"), [("wait", "by_http"), ("wait_grpc", "by_grpc")])
def test_requests_wait_for_no_other_request(caller, target, waiting, answering):
    """One instance has any number of calls in flight: while one waits at the target, others are answered or ended."""
    begun = target.work / "begun"
    before = lines_of(begun)
    request = grpcclient.InferInput("X", [1], "INT32").set_data_from_numpy(np.array([1], np.int32))
    with grpcclient.InferenceServerClient(caller.grpc_url) as client:
        ended = []
        call = client.async_infer(waiting, [request], callback=lambda result, error: ended.append(error))
        until(lambda: lines_of(begun) == before + 1, "the target to begin")
        for _ in range(5):
            assert outputs_of(infer(caller, answering, rows_request("a")))["ECHO"] == ["a"]
        second = infer(
            caller,
            waiting,
            {
                "inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}],
                "parameters": {"timeout": 300_000},
            },
        )
        assert second.status == 503
        # Ending that call has left the others and their connection alone.
        assert outputs_of(infer(caller, answering, rows_request("a")))["ECHO"] == ["a"]
        assert ended == []
        call.cancel()


def metric(server: ServerProcess, name: str, labels: str) -> float:
    """The value of a metric; 0 where it is not on the page."""
    return sum(server.samples(f"{name}{{{labels}}} ").values())


def test_calls_are_counted_for_each_target(caller, target):
    labels = f'kind="primary",model="fail_http",target="http://{target.http_url}/v2/models/fail",version="1"'
    before = metric(caller, "naiad_remote_requests_total", labels)
    infer(caller, "fail_http", {"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}]})

    until(lambda: metric(caller, "naiad_remote_requests_total", labels) == before + 1, "one more call")
    assert metric(caller, "naiad_remote_failures_total", f'cause="error",{labels}') == before + 1
    assert metric(caller, "naiad_remote_breaker_state", f'instance="fail_http_0",{labels}') == 0


def test_the_configuration_is_completed_from_the_targets(caller):
    for model in ("by_http", "by_grpc"):
        config = caller.get(f"/v2/models/{model}/config").json()
        assert config["max_batch_size"] == 8
        assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"]] == [
            ("X", "TYPE_FP32", [2]),
            ("TEXT", "TYPE_STRING", [1]),
        ]
    assert caller.get("/v2/models/count/config").json()["model_transaction_policy"] == {"decoupled": True}


# -- chains -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "frontends"), [("direct", "0"), ("bls", "0"), ("direct", "2")])
def test_a_chain_that_comes_back_to_its_caller_is_rejected_with_its_links(tmp_path, store, kind, frontends):
    """`here` of one server calls the other server, which calls `here`, directly or in a model of its own."""
    ports = dict(zip(("one", "other"), free_ports(2), strict=True))
    tensors = 'input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { name: "DONE" data_type: TYPE_INT32 dims: [ 1 ] }\n'
    first = "there" if kind == "direct" else "bls"
    models.add_remote(tmp_path / "a", "here", {"url": f"http://{HOST}:{ports['other']}", "model": first}, tensors)
    models.add_remote(tmp_path / "b", "there", {"url": f"http://{HOST}:{ports['one']}", "model": "here"}, tensors)
    models.add_call(tmp_path / "b", "bls", "there")
    one = ServerProcess(
        tmp_path / "a",
        store,
        f"--http-port={ports['one']}",
        f"--processes={max(int(frontends), 1)}",
        work=tmp_path / "work-a",
    )
    other = ServerProcess(tmp_path / "b", store, f"--http-port={ports['other']}", work=tmp_path / "work-b")
    one.http_port, other.http_port = ports["one"], ports["other"]
    with one, other:
        reply = infer(one, "here", {"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}]})

    chain = reply.error.partition("the chain of calls returns to its caller: ")[2].partition(";")[0].split(" -> ")
    assert [each.rpartition("/")[2] for each in chain] == ["here:1", "there:1", "here:1"]
    assert chain[0] == chain[2]
    assert chain[0].rpartition("/")[0] != chain[1].rpartition("/")[0]
    if kind == "direct":
        assert reply.status == 400
