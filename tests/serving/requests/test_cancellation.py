"""Models hear that nobody waits for an answer any more, whichever way the client has gone."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from serving.contract import Stream, code_input, ours, run, serving, stream
from serving.written import document_of
from support.server import ServerProcess
from support.waiting import until
from tritonclient.grpc import InferenceServerClient

MODELS = ("runs_code", "runs_code_decoupled", "runs_coroutine", "runs_coroutine_decoupled", "repeats", "identity")


@pytest.fixture(scope="module")
def server(work):
    with serving(work, *MODELS) as running:
        yield running


def watching(note: Path, sleep: str = "time.sleep(0.005)", of: str = "request") -> str:
    """Code that notes when it begins, and how many times it had to ask until it was told of the cancellation."""
    return f"""
from pathlib import Path
sender = request.get_response_sender()
Path({str(note)!r}).write_text("begun")
end = time.monotonic() + 30
while not {of}.is_cancelled() and time.monotonic() < end:
    {sleep}
Path({str(note)!r}).write_text("cancelled" if {of}.is_cancelled() else "never")
"""


def says(note: Path, text: str) -> None:
    until(lambda: note.exists() and note.read_text() == text, f"the model to say {text!r}")


@pytest.mark.parametrize("of", ["request", "sender"])
def test_a_cancelled_grpc_call_is_noticed(server, tmp_path, of):
    note = tmp_path / "note"
    code = watching(note, of=of) + "return [answer(1)]"
    with InferenceServerClient(server.grpc_url) as client:
        call = client.async_infer("runs_code", [code_input(code)], callback=lambda result, error: None)
        says(note, "begun")
        call.cancel()
        says(note, "cancelled")
    assert run(server, "runs_code", "return [answer('goes on')]") == "goes on"


@ours
def test_a_cancellation_is_logged_as_by_the_reference(tmp_path):
    with serving(tmp_path, "runs_code") as server:
        assert server.post("/v2/logging", {"log_verbose_level": 1}).status == 200
        with InferenceServerClient(server.grpc_url) as client:
            call = client.async_infer("runs_code", [code_input(watching(tmp_path / "note"))], callback=lambda *_: None)
            says(tmp_path / "note", "begun")
            call.cancel()
            says(tmp_path / "note", "cancelled")
        server.wait_for(lambda: "Cancellation notification received for ModelInferHandler" in server.log, "the line")


@ours
def test_a_coroutine_notices_without_giving_its_loop_away(server, tmp_path):
    """The check itself reads what has arrived; the reference asks its server each time."""
    note = tmp_path / "note"
    with InferenceServerClient(server.grpc_url) as client:
        code = watching(note) + "return [answer(1)]"
        call = client.async_infer("runs_coroutine", [code_input(code)], callback=lambda result, error: None)
        says(note, "begun")
        call.cancel()
        says(note, "cancelled")


@pytest.mark.parametrize(
    ("model", "sleep"),
    [("runs_code_decoupled", "time.sleep(0.005)"), ("runs_coroutine_decoupled", "await asyncio.sleep(0.005)")],
)
def test_a_stream_that_is_cancelled_is_noticed(server, tmp_path, model, sleep):
    note = tmp_path / "note"
    opened = Stream(server)
    opened.send(model, watching(note, sleep, "sender") + "sender.send(flags=FINAL)")
    says(note, "begun")
    opened.close(cancel=True)
    says(note, "cancelled")


def connect(server: ServerProcess, path: str, code: str) -> socket.socket:
    body = json.dumps(document_of(code) if path.endswith("infer") else {"CODE": code}).encode()
    client = socket.create_connection(("127.0.0.1", server.http_port), 60)
    client.sendall(
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    )
    return client


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/runs_code_decoupled/generate_stream",
        pytest.param("/v2/models/runs_code/infer", marks=ours),  # not noticed by the reference
        pytest.param("/v2/models/runs_code/generate", marks=ours),
    ],
)
def test_a_closed_http_connection_is_noticed(server, tmp_path, path):
    note = tmp_path / "note"
    end = "sender.send(flags=FINAL)" if "decoupled" in path else "return [answer(1)]"
    with connect(server, path, watching(note) + end):
        says(note, "begun")
    says(note, "cancelled")


@ours
def test_a_request_that_is_cancelled_while_it_waits_is_never_begun(server, tmp_path):
    busy, waiting, after = (tmp_path / name for name in ("busy", "waiting", "after"))
    with InferenceServerClient(server.grpc_url) as client, InferenceServerClient(server.grpc_url) as other:
        errors: list[object] = []
        first = client.async_infer("runs_code", [code_input(watching(busy) + "return [answer(1)]")], callback=lambda result, error: None)  # fmt: skip
        says(busy, "begun")
        second = other.async_infer(
            "runs_code",
            [code_input(watching(waiting) + "return [answer(1)]")],
            callback=lambda result, error: errors.append(error),
        )
        until(lambda: _pending(server) == 1, "it to wait")
        second.cancel()
        until(lambda: _pending(server) == 0, "it to be taken out of the queue")
        first.cancel()
        says(busy, "cancelled")
    assert run(server, "runs_code", f"open({str(after)!r}, 'w').close()\nreturn [answer(1)]") == 1
    assert not waiting.exists()
    until(lambda: errors, "the client to hear of it")
    assert len(errors) == 1


def _pending(server: ServerProcess) -> float:
    return sum(server.samples('nv_inference_pending_request_count{model="runs_code"').values())


@ours
@pytest.mark.parametrize(
    "give_up",
    [
        "call.cancel()\n    await asyncio.sleep(0)",
        "try:\n        await asyncio.wait_for(call, 0.2)\n    except asyncio.TimeoutError:\n        pass",
    ],
)
def test_an_awaited_call_that_is_given_up_is_cancelled(server, tmp_path, give_up):
    note = tmp_path / "note"
    inner = watching(note) + "return [answer(1)]"
    code = f"""if True:
    from pathlib import Path
    call = to("runs_code", code({inner!r})).async_exec()
    while not Path({str(note)!r}).exists():
        await asyncio.sleep(0.005)
    {give_up}
    return [answer(1)]
"""
    assert run(server, "runs_coroutine", code) == 1
    says(note, "cancelled")


@ours
def test_a_caller_that_dies_cancels_its_calls(server, tmp_path):
    note = tmp_path / "note"
    inner = watching(note) + "return [answer(1)]"
    code = f"""
    import os
    from pathlib import Path
    threading.Thread(target=to("runs_code", code({inner!r})).exec, daemon=True).start()
    while not (Path({str(note)!r}).exists() and Path({str(note)!r}).read_text()):
        time.sleep(0.005)
    os._exit(3)  # error ends it
    """
    [error] = stream(server, "runs_code_decoupled", code)
    assert "Stub process 'runs_code_decoupled_0' is not healthy" in error
    says(note, "cancelled")
    assert run(server, "runs_code", "return [answer('goes on')]") == "goes on"
