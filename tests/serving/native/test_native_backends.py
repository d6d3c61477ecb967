"""Backends written in C, compiled by these tests, served end to end."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.grpc as client
from naiad_stub.native.call_delivery import MAX_THREADS
from naiad_stub.native.elf import read_shared_object, write_library
from naiad_stub.native.signatures import functions
from support.native import SOURCES, add_model
from support.server import Reply, ServerProcess
from support.system_packages import require
from support.waiting import until

DYNAMIC = "dynamic_batching { max_queue_delay_microseconds: 1000 }\n"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
SEQUENCES = """sequence_batching {
  state {
    input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true name: "zero" }
  }
}
"""
TWO = "instance_group { count: 2 }\n"


def factor(value: str) -> str:
    """The parameter of models of `scales.cc`."""
    return f'parameters {{ key: "factor" value {{ string_value: "{value}" }} }}\n'


def add_models(repository: Path) -> None:
    """One model or more of each backend."""
    add_model(repository, "echo", "echo.c")
    add_model(repository, "unbatched", "echo.c", max_batch_size=0)
    add_model(repository, "batching", "batching.c", config=DYNAMIC)
    add_model(repository, "stream", "stream.c", config=DECOUPLED)
    add_model(repository, "later", "later.c")
    add_model(repository, "faults", "faults.c", max_batch_size=1)
    add_model(repository, "complete", "complete.c", tensors=False)
    add_model(repository, "tells", "tells.c")
    add_model(repository, "waits", "waits.c")
    for called in ("echo", "stream", "faults", "none", "itself"):
        policy = DECOUPLED if called == "stream" else ""
        other = f"calls_{called}" if called == "itself" else called
        parameter = f'parameters {{ key: "model" value {{ string_value: "call-{other}" }} }}\n'
        add_model(repository, f"calls_{called}", "calls.c", config=policy + parameter)
    add_model(repository, "asks", "asks.c")
    add_model(repository, "chains", "chains.c")
    add_model(repository, "counters", "counters.c")
    add_model(repository, "sums", "sums.c", config=SEQUENCES, max_batch_size=2)
    add_model(repository, "throws", "throws.cc")
    add_model(repository, "scales", "scales.cc", config=DYNAMIC + factor("2.5"))


@pytest.fixture(scope="module")
def server(work):
    add_models(work / "models")
    with ServerProcess(work / "models", "--backend-config=complete,color=blue", work=work) as started:
        yield started


def ask(server: ServerProcess, model: str, *values: float, shape: list[int] | None = None) -> Reply:
    tensor = {"name": "IN", "datatype": "FP32", "shape": shape or [1, len(values)], "data": list(values)}
    return server.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})


def data(reply: Reply) -> list[float]:
    assert reply.status == 200, reply.body
    return reply.json()["outputs"][0]["data"]


@pytest.mark.parametrize("count", [0, 1, 3, 255, 256, 257, 300_000])
def test_tensors_of_any_size_come_back(server, count):
    values = [float(number % 1000) for number in range(count)]
    assert data(ask(server, "echo", *values)) == values


def test_a_model_that_does_not_batch_gets_one_request_at_a_time(server):
    assert data(ask(server, "unbatched", 4, 5, shape=[2])) == [4, 5]


def test_requests_are_batched_for_the_backend(server):
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda value: ask(server, "batching", value), range(24)))
    assert [data(reply) for reply in replies] == [[value] for value in range(24)]
    assert max(reply.json()["parameters"]["batch"] for reply in replies) > 1


def test_a_batch_is_gathered_and_scattered_and_one_request_of_it_may_fail_alone(server):
    def scaled(number: int) -> Reply:
        if number % 5 == 4:
            head = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}]}'
            length = {"Inference-Header-Content-Length": str(len(head))}
            return server.post("/v2/models/scales/infer", head + b"\0\0\x80\x7f", length)
        rows = number % 3 + 1
        return ask(server, "scales", *range(2 * rows), shape=[rows, 2])

    before = infer_statistics(server, "scales")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(scaled, range(40)))
    after = infer_statistics(server, "scales")
    for number, reply in enumerate(replies):
        if number % 5 == 4:
            assert (reply.status, reply.error) == (400, "value 0 is not finite")
        else:
            assert data(reply) == [2.5 * value for value in range(2 * (number % 3 + 1))]
    assert after["success"]["count"] - before["success"]["count"] == 32
    assert after["fail"]["count"] - before["fail"]["count"] == 8


def infer_statistics(server: ServerProcess, model: str) -> dict[str, dict[str, int]]:
    return server.get(f"/v2/models/{model}/stats").json()["model_stats"][0]["inference_stats"]


def test_a_thread_answers_after_execute_has_returned(server):
    assert data(ask(server, "later", 7)) == [7]


def test_threads_stream_to_several_clients_at_once(server):
    def stream(copies: int) -> list[float]:
        reply = server.post("/v2/models/stream/generate_stream", {"IN": [float(copies), 2.0]})
        assert reply.status == 200, reply.body
        events = re.findall(rb"data: (.*)", reply.body)
        return [json.loads(event)["OUT"][0] for event in events]

    with ThreadPoolExecutor(4) as pool:
        streams = list(pool.map(stream, [0, 1, 5, 200]))
    assert streams == [[float(number) for number in range(count)] for count in (0, 1, 5, 200)]


# -- what backends do wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        (1, 400, "the backend does not like this value"),
        (2, 503, "the backend cannot execute this"),
        (9, 400, r"TRITONBACKEND_ResponseSend: TRITONBACKEND_Request \d+ is not a live TRITONBACKEND_Response"),
        (7, 503, r"outputs of 1125899906842624 bytes do not fit into the output segment of \d+ bytes"),
        (
            11,
            501,
            "TRITONSERVER_ServerStop is not supported: a backend runs inside a server and does not create or .* one",
        ),
        (12, 400, r"no buffer at 0x[0-9a-f]+ was allocated by this memory manager, or it was freed"),
        (13, 400, "TRITONBACKEND_RequestInputByIndex: a null pointer is not a live TRITONBACKEND_Request"),
        (14, 400, r"\[request id: <id_unknown>\] unknown request input name NONE"),
        (15, 400, "unexpected inference output 'NONE' for model 'faults'"),
    ],
)
def test_an_error_reaches_the_client_and_the_backend_serves_on(server, fault, status, text):
    reply = ask(server, "faults", fault)
    assert re.fullmatch(text, reply.error), reply.error
    assert reply.status == status
    assert data(ask(server, "faults", 0, 9)) == [0, 9]


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (
            3,
            r"second send: TRITONBACKEND_ResponseSend: TRITONBACKEND_Response \d+ is not a live TRITONBACKEND_Response",
        ),
        (4, r"second release: TRITONBACKEND_RequestRelease: TRITONBACKEND_Request \d+ is not a live TRITONBACKEND_Req"),
        (8, "second response: Unable to send response"),
    ],
)
def test_a_call_of_the_api_that_may_happen_once_is_an_error_the_second_time(server, fault, what):
    ask(server, "faults", fault, 1)
    until(lambda: re.search(what, server.log), f"'{what}' in the log")
    assert data(ask(server, "faults", 0)) == [0]


def test_a_request_that_is_released_without_a_response_fails(server):
    reply = ask(server, "faults", 5)
    assert reply.status == 500
    assert "no response" in reply.error
    assert data(ask(server, "faults", 0)) == [0]


@pytest.mark.parametrize(("fault", "signal"), [(6, "SIGSEGV"), (10, "SIGABRT")])
def test_a_crash_names_the_signal_and_takes_only_its_own_requests_down(server, fault, signal):
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(ask, server, "echo", number) for number in range(50)]
        crashed = ask(server, "faults", fault)
        assert [data(other.result()) for other in others] == [[number] for number in range(50)]
    assert crashed.status >= 500
    assert signal in crashed.error
    until(lambda: server.get("/v2/models/faults/ready").status == 200, "the backend's restart")
    assert data(ask(server, "faults", 0, 3)) == [0, 3]


def test_an_exception_of_cpp_is_an_error_where_it_is_caught_and_a_crash_where_it_is_not(server):
    caught = ask(server, "throws", 200)
    assert (caught.status, caught.error) == (400, "the value is 200")
    assert data(ask(server, "throws", 1)) == [1]
    crashed = ask(server, "throws", -1)
    assert "SIGABRT" in crashed.error
    assert "nobody catches this" in crashed.error
    until(lambda: server.get("/v2/models/throws/ready").status == 200, "the backend's restart")
    assert data(ask(server, "throws", 2)) == [2]


# -- calls, metrics, states -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 50_000])
def test_a_backend_calls_another_model(server, count):
    values = [2.0, *range(1, count)]
    assert data(ask(server, "calls_echo", *values)) == values


def test_calls_from_several_requests_run_side_by_side(server):
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda value: ask(server, "calls_echo", 3, value), range(20)))
    assert [data(reply) for reply in replies] == [[3, value] for value in range(20)]


def test_an_error_of_the_called_model_is_passed_on(server):
    reply = ask(server, "calls_faults", 1)
    assert reply.error == "the backend does not like this value"


def test_a_model_that_is_not_there_is_an_error(server):
    assert ask(server, "calls_none", 1).error == "the model called is not ready"


def test_a_backend_passes_on_the_stream_of_a_decoupled_model(server):
    reply = server.post("/v2/models/calls_stream/generate_stream", {"IN": [3.0, 2.0]})
    events = [json.loads(event) for event in re.findall(rb"data: (.*)", reply.body)]
    assert [(event["OUT"], event["policy"]) for event in events] == [([number, 2.0], 2) for number in range(3)]


def test_a_backend_knows_the_policy_of_the_model_it_calls(server):
    assert ask(server, "calls_echo", 1).json()["parameters"]["policy"] == 1


@pytest.mark.parametrize(("depth", "chains"), [(0, 3), (1, 1), (4, 1), (1, 5), (3, 10)])
def test_the_callback_of_a_call_may_wait_for_other_calls(server, depth, chains):
    assert data(ask(server, "chains", depth, chains)) == [depth, chains]


def test_a_chain_of_calls_may_be_as_deep_as_there_are_threads_for_it(server):
    assert data(ask(server, "chains", MAX_THREADS - 1, 1)) == [MAX_THREADS - 1, 1]


def test_a_call_that_closes_a_cycle_fails_and_names_it(server):
    reply = ask(server, "calls_itself", 1)
    assert "the call can never be answered" in reply.error
    assert "'calls_itself_0' -> 'calls_itself_0'" in reply.error


# -- what a backend sees of a request -----------------------------------------------------------------------------------


def tell(server: ServerProcess, **fields: object) -> dict[str, object]:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    reply = server.post("/v2/models/tells/infer", {"inputs": [tensor], **fields})
    assert reply.status == 200, reply.body
    return reply.json()["parameters"]


def test_a_backend_sees_all_of_a_request(server):
    parameters = {"sequence_id": 9, "sequence_start": True, "timeout": 1234, "text": "t", "number": 5, "yes": True}
    told = tell(server, id="mine", parameters={**parameters, "share": 0.5})
    assert told == {
        "id": "mine",
        "correlation": 9,
        "not a text": "[request id: mine] correlation ID in request is not a string",
        "flags": 1,
        "timeout": 1234,
        "inputs": 1,
        "input": "IN",
        "outputs": 1,
        "output": "OUT",
        "memory": 0,
        "parameter text": "t",
        "parameter number": 5,
        "parameter yes": True,
        "parameter share": 0.5,
        "input 5": "[request id: mine] out of bounds index 5: request has 1 inputs",
        "output 5": "[request id: mine] out of bounds index 5: request has 1 requested outputs",
        "parameter 50": "out of bounds index 50: request has 4 parameters",
    }


def test_a_backend_can_ask_about_the_server_and_its_models(server):
    data(ask(server, "echo", 1))
    told = ask(server, "asks", 1).json()["parameters"]
    for name in ("server", "echo", "statistics", "index", "index of ready ones"):
        told[name] = json.loads(told[name])
    statistics = server.get("/v2/models/echo/stats").json()["model_stats"][0]
    assert told.pop("server") == server.get("/v2").json()
    assert told.pop("echo") == server.get("/v2/models/echo").json()
    assert told.pop("index") == server.post("/v2/repository/index").json()
    assert told.pop("index of ready ones") == server.post("/v2/repository/index", {"ready": True}).json()
    assert told.pop("statistics")["model_stats"][0]["inference_count"] == statistics["inference_count"] - 1
    unknown = "Not found: Request for unknown model: 'none' is not found"
    version = "Invalid argument: model configuration version 2 not supported, supported versions are: 1"
    assert told == {
        "log levels -1 to 4": "011100",
        "log level 9": "Invalid argument: unknown logging level '9'",
        "ready": "1",
        "batches": "2",
        "batches of none": unknown,
        "configuration 2": version,
        "configuration 2 of echo": version,
        "configuration of none": unknown,
        "echo 5": "Not found: Request for unknown model: 'echo' version 5 is not found",
        "added twice without an id": "Invalid argument: [request id: <id_unknown>] input 'IN' already exists in request",
        "added twice": "Invalid argument: [request id: abc] input 'IN' already exists in request",
        "answered by": "echo 1 abc",
        "answer": "fine",
        "second buffer": "Already exists: allocated buffer for output 'OUT' already exists",
    }


def test_a_correlation_id_may_be_a_text(server):
    told = tell(server, parameters={"sequence_id": "abc", "sequence_start": True, "sequence_end": True})
    assert told["correlation"] == "abc"
    assert told["not a number"] == "[request id: <id_unknown>] correlation ID in request is not an unsigned int"
    assert told["flags"] == 3


def test_a_backend_sees_that_its_client_has_disconnected(server):
    before = server.log.count("saw the end")
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}).encode()
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as client:
        head = f"POST /v2/models/waits/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        until(lambda: "waits for the end of its client" in server.log, "the start of Execute")
    until(lambda: server.log.count("saw the end") > before, "the end of Execute")
    assert "waits.c:" in server.log
    assert "nobody wants to know this" not in server.log


def test_a_library_may_need_the_servers_by_a_name_with_a_digest(tmp_path):
    """As the wheels of Triton do, whose libraries are renamed."""
    compiler = require("cc")
    name = "libtritonserver-0123abcd.so"
    (tmp_path / name).write_bytes(write_library([function.name for function in functions()], name))
    folder = add_model(tmp_path / "models", "echo", "echo.c")
    source = SOURCES / "echo.c"
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-o", folder / "libtriton_echo.so", source),
            *(f"-L{tmp_path}", "-Wl,--no-as-needed", f"-l:{name}"),
        ],
        check=True,
        timeout=60,
    )
    (tmp_path / name).unlink()
    assert name in read_shared_object((folder / "libtriton_echo.so").read_bytes()).needed
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        assert data(ask(server, "echo", 1, 2)) == [1, 2]


def test_metrics_of_a_backend_are_on_the_page(server):
    reply = ask(server, "counters", 1, 2, 7)
    assert reply.json()["parameters"] == {
        "error": "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
        "last": 7,
    }
    page = server.metrics()
    assert 'native_values_total{model="counters"} 3' in page
    assert 'native_last_value{model="counters"} 7' in page


def test_the_server_keeps_the_states_of_sequences(server):
    def send(value: float, sequence: int, **parameters: bool) -> list[float]:
        tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}
        body = {"inputs": [tensor], "parameters": {"sequence_id": sequence, **parameters}}
        return data(server.post("/v2/models/sums/infer", body))

    assert send(1, 7, sequence_start=True) == [1]
    assert send(10, 8, sequence_start=True) == [10]
    assert send(2, 7) == [3]
    assert send(20, 8) == [30]
    assert send(3, 7, sequence_end=True) == [6]
    text = "unknown state: state 'NONE' is not a valid state name."
    assert text in server.log


# -- lifecycle ------------------------------------------------------------------------------------------------------


def test_the_backend_completes_the_configuration_and_its_lifecycle_is_logged(server):
    config = server.get("/v2/models/complete/config").json()
    assert config["max_batch_size"] == 4
    assert [tensor["name"] for tensor in config["input"]] == ["IN"]
    assert data(ask(server, "complete", 1)) == [1]
    log = server.log
    assert re.search(r"Initialize complete, API 1\.19, artifacts 0 in \S+/models/complete, config \{", log)
    assert '"color":"blue"' in log
    assert re.search(r"ModelInitialize complete 1 in \S+/models/complete, auto-complete 1", log)
    assert "ModelInstanceInitialize complete_0" in log
    assert "complete.c:" in log


def test_a_backend_may_change_the_configuration_without_being_asked(tmp_path):
    parameter = 'parameters { key: "unasked" value { string_value: "yes" } }\n'
    add_model(tmp_path / "models", "complete", "complete.c", tensors=False, config=parameter)
    with ServerProcess(tmp_path / "models", "--disable-auto-complete-config", work=tmp_path) as server:
        config = server.get("/v2/models/complete/config").json()
        assert config["max_batch_size"] == 4
        assert [tensor["name"] for tensor in config["output"]] == ["OUT"]
        assert data(ask(server, "complete", 1)) == [1]
        assert "auto-complete 1" not in server.log
        assert len(re.findall("auto-complete 0", server.log)) == 2  # a process that completes, and the instance


def test_the_start_up_table_names_the_library(server):
    assert re.search(r"\| echo +\| \S+/models/echo/libtriton_echo\.so +\| \{", server.log)


def test_entry_points_are_called_in_order_at_unload(tmp_path):
    repository = tmp_path / "models"
    add_model(repository, "complete", "complete.c", tensors=False)
    with ServerProcess(repository, "--model-control-mode=explicit", work=tmp_path) as server:
        assert server.post("/v2/repository/models/complete/load").status == 200
        begin = len(server.log)
        assert server.post("/v2/repository/models/complete/unload").status == 200
        until(lambda: " Finalize" in server.log[begin:], "the end of the backend")
        assert re.findall(r"\b(\w*Finalize)\b", server.log[begin:]) == [
            "ModelInstanceFinalize",
            "ModelFinalize",
            "Finalize",
        ]
        assert server.post("/v2/repository/models/complete/load").status == 200
        assert data(ask(server, "complete", 3)) == [3]
        for parameter, text in (
            ("model-initialize", "the model is not to my liking"),
            ("instance-initialize", "no room for an instance"),
        ):
            config = {"backend": "complete", "parameters": {"fail": {"string_value": parameter}}}
            body = {"parameters": {"config": json.dumps(config)}}
            assert text in server.post("/v2/repository/models/complete/load", body).error


# -- statistics -----------------------------------------------------------------------------------------------------


def test_statistics_are_what_the_backend_reports(tmp_path):
    repository = tmp_path / "models"
    add_reporting_models(repository)
    with ServerProcess(repository, work=tmp_path) as server:
        ask_reporting_models(server)
        found = {entry["name"]: entry for entry in server.get("/v2/models/stats").json()["model_stats"]}
        page = server.metrics()
        log = server.log
        channel = client.InferenceServerClient(server.grpc_url)
        over_grpc = channel.get_inference_statistics("reports", as_json=True)["model_stats"][0]
        channel.close()

    counts = {
        name: (
            entry["inference_count"],
            entry["execution_count"],
            entry["inference_stats"]["success"]["count"],
            entry["inference_stats"]["fail"]["count"],
            entry["last_inference"] > 0,
        )
        for name, entry in found.items()
    }
    assert counts == {
        "echo": (4, 3, 3, 0, True),  # reports requests and batches
        "stream": (1, 0, 1, 0, False),  # reports requests alone
        "later": (0, 0, 0, 0, False),  # reports nothing
        "faults": (0, 0, 0, 1, False),  # Execute failed once; an error as a response is counted by its report
        "reports": (2, 0, 2, 0, False),
        "scales": (3, 1, 1, 0, True),
    }
    assert 'nv_inference_request_failure{model="faults",reason="BACKEND",version="1"} 1' in page
    none, nothing = (
        {"count": 0, "ns": 0},
        ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"),
    )
    expected = {
        "0": {"compute_infer": (2, 40), "compute_output": (2, 60), "success": (2, 100)},
        "1": {"compute_infer": (2, 100), "fail": (2, 100)},
        "2": {"compute_infer": (2, 40), "compute_output": (2, 60), "fail": (2, 100)},
        "3": {"cancel": (2, 100)},
        "4": {"compute_infer": (2, 100), "empty_response": (2, 100)},
        "8": {"cancel": (2, 100)},
    }
    assert found["reports"]["response_stats"] == {
        position: dict.fromkeys(nothing, none)
        | {name: {"count": count, "ns": ns} for name, (count, ns) in values.items()}
        for position, values in expected.items()
    }
    assert found["stream"]["response_stats"] == {}
    memory = [("CPU", 1030), ("CPU_PINNED", 50), ("GPU", 7)]
    assert found["reports"]["memory_usage"] == [{"type": kind, "id": 0, "byte_size": size} for kind, size in memory]
    assert over_grpc["memory_usage"] == [{"type": kind, "byte_size": str(size)} for kind, size in memory]
    assert over_grpc["response_stats"]["8"]["cancel"] == {"count": "2", "ns": "100"}
    assert re.findall(r"report: ([^\"\n]+)", log) == 2 * [
        "Response start cannot happen after compute output start",
        "Compute output start cannot happen after response end",
        "Response start cannot happen after response end",
    ]


def add_reporting_models(repository: Path) -> None:
    """Models whose backends report requests, batches, responses and memory, or nothing."""
    add_model(repository, "echo", "echo.c")
    add_model(repository, "stream", "stream.c", config=DECOUPLED)
    add_model(repository, "later", "later.c")
    add_model(repository, "faults", "faults.c", max_batch_size=1)
    add_model(repository, "reports", "reports.c", config=DECOUPLED)
    add_model(repository, "scales", "scales.cc", config=factor("-1"))


def ask_reporting_models(server: ServerProcess) -> None:
    """Send each of these models requests, one after the other."""
    for model in ("echo", "echo", "later"):
        data(ask(server, model, 1))
    data(ask(server, "echo", 1, 2, shape=[2, 1]))
    for model in ("stream", "reports", "reports"):
        server.post(f"/v2/models/{model}/generate_stream", {"IN": [2.0, 1.0]})
    for fault in (0, 1, 2):
        ask(server, "faults", fault)
    data(ask(server, "scales", 1, 2, 3, shape=[3, 1]))
    # It reports after its last response: the client may have that before.
    until(lambda: infer_statistics(server, "reports")["success"]["count"] == 2, "the last report")
