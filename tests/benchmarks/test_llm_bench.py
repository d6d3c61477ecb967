"""The benchmark of language models reports what was measured, and each page-writer leaves the other's part alone."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2

from bench.llm import clients, report
from bench.llm.contestants import ENGINE
from bench.llm.session import FIRST, RATE, case, prompts
from bench.report import MODELS_BEGIN, MODELS_END, section_of, with_section
from bench.report import write as write_page
from bench.results import Results


def results_of(figures: dict[tuple[str, int, str], tuple[float, float]]) -> Results:
    results = Results()
    for (model, streams, contestant), (rate, first) in figures.items():
        results.add(case(model, streams), contestant, {RATE: rate, FIRST: first})
    return results


def test_targets_are_judged_against_the_engine_and_against_triton():
    made = report.section(
        results_of(
            {
                ("SmolLM2-135M", 1, ENGINE): (100, 20.0),
                ("SmolLM2-135M", 1, "naiad HTTP"): (97, 22.0),
                ("SmolLM2-135M", 1, "naiad gRPC"): (90, 26.0),
                ("tiny", 8, "naiad HTTP"): (3000, 3),
                ("tiny", 8, "triton HTTP"): (1000, 3),
            }
        ),
        "settings",
    )
    assert "| SmolLM2-135M, 1 stream, HTTP: rate / engine's | at least 0.95 x | 0.97 x | yes |" in made
    assert "| SmolLM2-135M, 1 stream, gRPC: rate / engine's | at least 0.95 x | 0.90 x | **no** |" in made
    assert "| SmolLM2-135M, 1 stream, HTTP: first text after the engine's | at most 5 ms | 2.0 ms | yes |" in made
    assert "| SmolLM2-135M, 1 stream, gRPC: first text after the engine's | at most 5 ms | 6.0 ms | **no** |" in made
    assert "| tiny, 8 streams, HTTP: rate / Triton's | at least 1.5 x | 3.00 x | yes |" in made
    assert "| SmolLM2-135M, 1 stream, OpenAI: rate / engine's | at least 0.95 x | not measured |  |" in made
    assert made.startswith(MODELS_BEGIN)
    assert made.endswith(MODELS_END)


def test_the_section_replaces_its_older_self_and_outlives_the_rest_of_the_page(tmp_path):
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\nwords\n")
    report.write(page, f"{MODELS_BEGIN}\nfirst\n{MODELS_END}")
    report.write(page, f"{MODELS_BEGIN}\nsecond\n{MODELS_END}")
    assert page.read_text() == f"# Benchmarks\n\nwords\n\n{MODELS_BEGIN}\nsecond\n{MODELS_END}\n"

    write_page(page, Results(), "settings", "3.11")

    assert section_of(page.read_text(), (MODELS_BEGIN, MODELS_END)) == f"{MODELS_BEGIN}\nsecond\n{MODELS_END}"
    assert "words" not in page.read_text()
    assert with_section("page\n", "", (MODELS_BEGIN, MODELS_END)) == "page\n"


def test_no_two_prompts_begin_alike():
    made = [prompt for stream in (*prompts(8), *prompts(1, each=3)) for prompt in stream]
    assert len({prompt.partition(":")[0] for prompt in made}) == len(made) == 11


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"text_output":"a"}\n\ndata: {"error":"no more"}\n\n', "no more"),
        (b'HTTP/1.1 400 Bad Request\r\n\r\n{"error":"what"}', "without an event"),
    ],
)
def test_a_stream_that_fails_is_no_measurement(answer, told):
    with socket.create_server((clients.HOST, 0)) as listener:
        threading.Thread(target=serve_once, args=(listener, answer)).start()
        ask = clients.over_http(listener.getsockname()[1], "m")
        with pytest.raises(SystemExit, match=told):
            clients.measure(ask, [["a"]], 3)


def test_streams_are_read_to_their_end_and_their_first_text_is_seen():
    with socket.create_server((clients.HOST, 0)) as listener:
        threading.Thread(target=serve_once, args=(listener, b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n" * 3)).start()
        reading = clients.measure(clients.over_openai(listener.getsockname()[1], "m"), [["a"]], 3)
    assert reading.rate > 0
    assert 0 < reading.first[0] < 20


def test_a_stream_of_grpc_is_read_to_its_end_by_a_client_that_knows_little_of_http2():
    def answer(requests):
        (request,) = requests
        assert request.inputs[0].name == "text_input"
        for _ in range(3):
            yield service_pb2.ModelStreamInferResponse(infer_response={"model_name": request.model_name})

    with grpc_server(answer) as port:
        reading = clients.measure(clients.over_grpc(port, "m"), [["a", "b"], ["c"]], 3)
    assert len(reading.first) == 3
    assert all(0 < first < 20 for first in reading.first)


def test_a_stream_of_grpc_that_fails_is_no_measurement():
    def fail(requests):
        next(requests)
        yield service_pb2.ModelStreamInferResponse(error_message="no more")

    with grpc_server(fail) as port, pytest.raises(SystemExit, match="no more"):
        clients.measure(clients.over_grpc(port, "m"), [["a"]], 3)

    def abort(requests, context):
        next(requests)
        context.abort(grpc.StatusCode.UNAVAILABLE, "not now")

    with grpc_server(None, abort) as port, pytest.raises(SystemExit, match="answered nothing"):
        clients.measure(clients.over_grpc(port, "m"), [["a"]], 3)


@contextlib.contextmanager
def grpc_server(answer, answer_in_context=None):
    """A server of the one method; yields its port."""
    method = grpc.stream_stream_rpc_method_handler(
        answer_in_context or (lambda requests, _: answer(requests)),
        request_deserializer=service_pb2.ModelInferRequest.FromString,
        response_serializer=service_pb2.ModelStreamInferResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {"ModelStreamInfer": method}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    port = server.add_insecure_port(f"{clients.HOST}:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def serve_once(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(answer)
