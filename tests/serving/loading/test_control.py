"""Explicit model control over HTTP and gRPC: models are loaded and unloaded, and no request is lost meanwhile."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import wait

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from serving.repositories import index, infer, repository, states, values
from support.client_inputs import input_of
from support.server import ServerProcess
from support.threads import in_thread

EXPLICIT = "--model-control-mode=explicit"


def client_of(server: ServerProcess, protocol: str):
    if protocol == "http":
        return tritonclient.http.InferenceServerClient(server.http_url)
    return tritonclient.grpc.InferenceServerClient(server.grpc_url)


@pytest.fixture(scope="module")
def shared(work):
    (work / "models").mkdir()
    with ServerProcess(work / "models", EXPLICIT, work=work) as running:
        yield running


@pytest.fixture
def control(shared):
    """A server without loaded models, and its empty repository; the same server for all tests of this file."""
    models = shared.work / "models"
    shared.begin_log()
    yield shared, models
    for name in {entry["name"] for entry in shared.post("/v2/repository/index").json() if "state" in entry}:
        shared.post(f"/v2/repository/models/{name}/unload")
    shared.wait_for(lambda: not shared.children(), "all guests to end")
    for folder in models.iterdir():
        shutil.rmtree(folder)


def load(server: ServerProcess, model: str) -> None:
    assert server.post(f"/v2/repository/models/{model}/load").status == 200


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_model_is_loaded_and_unloaded_on_request(tmp_path, protocol):
    models = repository(tmp_path / "models", ["identity", "raises_in_initialize"])
    with ServerProcess(models, EXPLICIT, work=tmp_path) as server:
        client = client_of(server, protocol)
        assert infer(server, "identity", 1).error == "Request for unknown model: 'identity' is not found"
        client.load_model("identity")
        assert values(infer(server, "identity", 1)) == [1]
        with pytest.raises(
            Exception, match="load failed for model 'raises_in_initialize': version 1 is at UNAVAILABLE"
        ):
            client.load_model("raises_in_initialize")
        with pytest.raises(Exception, match="failed to load 'nothing', failed to poll from model repository"):
            client.load_model("nothing")
        [guest] = server.wait_for(lambda: len(found := server.children()) == 1 and found, "the failed guest to go")
        client.unload_model("identity")
        server.wait_for(lambda: index(server)["identity"]["state"] == "UNAVAILABLE", "the model to be unloaded")
        assert index(server)["identity"]["reason"] == "unloaded"
        server.wait_for(lambda: not guest.is_running(), "its guest to be gone")
        assert infer(server, "identity", 1).status == 404
        client.unload_model("never heard of")
        client.load_model("identity")
        assert values(infer(server, "identity", 2)) == [2]
        client.close()


class Crowd:
    """Threads that send requests to one model until `stop`."""

    def __init__(self, server: ServerProcess, model: str, count: int = 4) -> None:
        self.wrong: list[object] = []
        self.answers: list[float] = []
        self._done = threading.Event()
        self._askers = [in_thread(self._ask, server, model) for _ in range(count)]

    def _ask(self, server: ServerProcess, model: str) -> None:
        client = tritonclient.http.InferenceServerClient(server.http_url)
        tensor = input_of(tritonclient.http, "IN", np.zeros(1, np.float32))
        while not self._done.is_set():
            try:
                self.answers.append(float(client.infer(model, [tensor]).as_numpy("OUT")[0]))
            except Exception as error:
                self.wrong.append(error)
        client.close()

    def stop(self) -> None:
        self._done.set()
        wait(self._askers, 20)


def test_reloading_loses_no_request(control):
    """With two versions, so that the old guest of one ends while the new guest of the other starts."""
    server, models = control
    repository(models, ["versions"])
    load(server, "versions")
    crowd = Crowd(server, "versions")
    client = client_of(server, "http")
    for number in range(3):
        (models / "versions" / "config.pbtxt").touch()
        client.load_model("versions")
        assert server.log.count("successfully loaded 'versions'") == 2 * (number + 2)
    crowd.stop()
    assert crowd.wrong == []
    assert set(crowd.answers) == {5.0}
    server.wait_for(lambda: len(server.children()) == 2, "the old guests to end")
    client.close()


def test_unloading_amid_a_load_leaves_no_guest(control):
    server, models = control
    repository(models, ["versions"])
    load(server, "versions")
    (models / "versions" / "config.pbtxt").touch()
    loading = in_thread(load, server, "versions")
    server.wait_for(lambda: server.log.count("loading: versions:") > 2, "the second load to begin")
    assert server.post("/v2/repository/models/versions/unload").status == 200
    loading.exception(60)  # its model may be gone before it is loaded
    server.wait_for(lambda: states(server) == {"UNAVAILABLE"}, "both versions to be unloaded")
    server.wait_for(lambda: not server.children(), "all guests to end")


def test_control_is_refused_where_it_was_not_asked_for(tmp_path):
    with ServerProcess(repository(tmp_path / "models", ["identity"]), work=tmp_path) as server:
        for action in ("load", "unload"):
            reply = server.post(f"/v2/repository/models/identity/{action}")
            assert reply.error == "explicit model load / unload is not allowed if polling is enabled"
        assert values(infer(server, "identity", 1)) == [1]
