"""A server whose loads wait for an index of packages that does not answer: it stops, unloads, and loads other models."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.model_files import python_config, python_model, write_files
from support.server import HOST, ServerProcess
from support.threads import in_thread
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

CODE = python_model("""
def respond(self, request):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))])
""")
BLOCK = '# /// script\n# requires-python = ">=3.8"\n# dependencies = ["no-index-answers-for-NAME"]\n# ///\n'
REFUSAL = (
    r"Request for unknown model: 'built-0' has no available versions: it is loading "
    r"\(resolving the requirements of model\.py for Python [\d.]+\)"
)


@pytest.fixture
def silent_index() -> Iterator[str]:
    """The address of an index that accepts connections and sends nothing."""
    with socket.create_server((HOST, 0)) as listening:
        yield f"http://{HOST}:{listening.getsockname()[1]}/simple"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    built = [f"built-{number}" for number in range(5)]  # one more than there are slots of loading
    for name in (*built, "plain"):
        code = CODE if name == "plain" else BLOCK.replace("NAME", name) + CODE
        write_files(tmp_path / "models", name, python_config("", "OUT FP32 1"), code)
    return tmp_path / "models"


def start(models: Path, index: str, *options: str, wait: str) -> ServerProcess:
    return ServerProcess(
        models,
        "--env-build=allowed",
        "--exit-timeout-secs=5",
        *options,
        work=models.parent / "work",
        environ={"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index},
        wait=wait,
    )


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_waits_for_an_index_answers_probes_and_ends_at_a_signal(models, silent_index, number, processes):
    server = start(models, silent_index, f"--processes={processes}", wait="")
    server.start()
    server.wait_log("environment of 'built-0': resolving the requirements of")
    server.wait_health("live")
    with grpc.InferenceServerClient(server.grpc_url) as client:
        assert (client.is_server_live(), client.is_server_ready()) == (True, False)
        with pytest.raises(InferenceServerException, match=REFUSAL) as refused:
            client.infer("built-0", [])
        assert refused.value.status() == "StatusCode.UNAVAILABLE"
    reply = server.post("/v2/models/built-0/infer", {"inputs": []})
    assert (reply.status, re.fullmatch(REFUSAL, reply.error) is not None) == (503, True)
    os.kill(server.pid, number)

    assert server.wait_exit(30) == 0
    assert "Stopping before the models are loaded; a second signal ends at once." in server.log
    assert "Ending the loads and unloads in progress: 'built-" in server.log
    assert "cannot start process" not in server.log
    assert not list(models.parent.rglob("staging/*"))


def test_loads_that_wait_for_an_index_hold_neither_others_nor_unloads(models, silent_index):
    with start(models, silent_index, "--model-control-mode=explicit", wait="loaded") as server:
        loads = [in_thread(server.post, f"/v2/repository/models/built-{number}/load") for number in range(4)]
        for number in range(4):
            server.wait_log(f"environment of 'built-{number}': resolving")
        # After the others: which of five that begin together gets no slot is left to chance.
        loads.append(in_thread(server.post, "/v2/repository/models/built-4/load"))

        assert server.post("/v2/repository/models/plain/load").status == 200
        assert server.post("/v2/repository/models/built-0/unload").status == 200
        assert "the load was ended by an unload" in loads[0].result().error
        assert server.stop() == 0
        assert {each.result().status for each in loads[1:]} == {503}


def test_a_second_signal_ends_at_once(models, silent_index):
    server = start(models, silent_index, wait="")
    server.start()
    server.wait_log("resolving the requirements of")
    os.kill(server.pid, signal.SIGTERM)
    os.kill(server.pid, signal.SIGINT)

    assert server.wait_exit(30) in {0, -signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT}
