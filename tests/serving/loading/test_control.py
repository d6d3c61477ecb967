"""Explicit model control over HTTP and gRPC: models are loaded and unloaded, and no request is lost meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from serving.repositories import SAMPLES, Asking, index, infer, is_model_ready, repository, states, values
from support.server import ServerProcess

EXPLICIT = "--model-control-mode=explicit"


def client_of(server: ServerProcess, protocol: str):
    if protocol == "http":
        return tritonclient.http.InferenceServerClient(server.http_url)
    return tritonclient.grpc.InferenceServerClient(server.grpc_url)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    work = tmp_path_factory.mktemp("control")
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
        self._threads = [threading.Thread(target=self._ask, args=(server, model), daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, server: ServerProcess, model: str) -> None:
        client = tritonclient.http.InferenceServerClient(server.http_url)
        tensor = tritonclient.http.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        while not self._done.is_set():
            try:
                self.answers.append(float(client.infer(model, [tensor]).as_numpy("OUT")[0]))
            except Exception as error:
                self.wrong.append(error)
        client.close()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(20)


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


def test_reloading_takes_over_new_code_and_versions(control):
    server, models = control
    repository(models, ["versions"])
    load(server, "versions")
    shutil.copytree(models / "versions" / "5", models / "versions" / "7")
    client = client_of(server, "http")
    client.load_model("versions")
    assert values(infer(server, "versions", 0)) == [7]
    assert server.get("/v2/models/versions").json()["versions"] == ["5", "7"]
    assert infer(server, "versions", 0, version="3").status in {404, 503}
    (models / "versions" / "7" / "model.py").write_text("raise RuntimeError('a bad day')")
    with pytest.raises(Exception, match="a bad day"):
        client.load_model("versions")
    assert values(infer(server, "versions", 0)) == [7], "the loaded versions still serve"
    client.close()


def is_loaded_by(server: ServerProcess, model: str) -> bool:
    """Whether a load request loads anything."""
    before = server.log.count(f"loading: {model}:")
    assert server.post(f"/v2/repository/models/{model}/load").status == 200
    return server.log.count(f"loading: {model}:") > before


def test_a_load_of_an_unchanged_loaded_model_does_nothing(control):
    server, models = control
    repository(models, ["identity"])
    folder = models / "identity"
    config_file = folder / "config.pbtxt"
    load(server, "identity")
    [guest] = server.children()
    for _ in range(2):
        assert not is_loaded_by(server, "identity")
    assert "'identity' is loaded and has not changed since" in server.log
    assert [guest] == server.children()
    (folder / "1" / "__pycache__").mkdir()
    assert not is_loaded_by(server, "identity"), "bytecode is nobody's change"
    for change in (
        (folder / "1" / "model.py").touch,
        lambda: os.utime(folder / "1" / "model.py", (0, 0)),  # older, but another file
        lambda: config_file.write_text(config_file.read_text() + "\n"),
        lambda: (folder / "weights").write_text("new"),
        (folder / "weights").unlink,
        lambda: server.post("/v2/repository/models/identity/unload"),
    ):
        change()
        assert is_loaded_by(server, "identity")
        assert not is_loaded_by(server, "identity")
    config = server.get("/v2/models/identity/config").json()
    for _ in range(2):  # a configuration that comes along is a change, whatever it says
        before = server.log.count("loading: identity:")
        body = {"parameters": {"config": json.dumps(config)}}
        assert server.post("/v2/repository/models/identity/load", body).status == 200
        assert server.log.count("loading: identity:") == before + 1
    assert is_loaded_by(server, "identity"), "without it the model is what its files say"
    assert not is_loaded_by(server, "identity")


def test_a_failed_load_is_tried_again_though_nothing_has_changed(control):
    server, models = control
    repository(models, ["identity"])
    good = (models / "identity" / "1" / "model.py").read_text()
    load(server, "identity")
    (models / "identity" / "1" / "model.py").write_text("raise ValueError('not today')")
    for count in (1, 2):
        assert "not today" in server.post("/v2/repository/models/identity/load").error
        assert server.log.count("loading: identity:") == count + 1
    assert values(infer(server, "identity", 1)) == [1]
    (models / "identity" / "1" / "model.py").write_text(good)
    assert is_loaded_by(server, "identity")


def test_a_change_of_a_shared_backend_or_environment_is_a_change_of_each_model(tmp_path):
    """Triton reloads nothing here, because it compares only the model's own folder."""
    models = repository(tmp_path / "models", ["identity"])
    backend, environment = tmp_path / "backends" / "shared", tmp_path / "environment"
    backend.mkdir(parents=True)
    (models / "identity" / "1" / "model.py").rename(backend / "model.py")
    (environment / "bin").mkdir(parents=True)
    # No link: which environment a linked interpreter belongs to is not the same for every version.
    (environment / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (environment / "bin" / "python").chmod(0o755)
    config = models / "identity" / "config.pbtxt"
    named = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}\n'
    config.write_text(config.read_text().replace('"python"', '"shared"') + named)
    options = (EXPLICIT, "--load-model=identity", f"--backend-directory={tmp_path / 'backends'}")
    with ServerProcess(models, *options, work=tmp_path) as server:
        assert not is_loaded_by(server, "identity")
        (backend / "model.py").touch()
        assert is_loaded_by(server, "identity")
        assert not is_loaded_by(server, "identity")
        (environment / "pyvenv.cfg").write_text("")
        assert is_loaded_by(server, "identity")
        assert not is_loaded_by(server, "identity")


def test_unloading_lets_requests_in_flight_finish(control):
    server, models = control
    repository(models, ["dies_mid_request"])
    load(server, "dies_mid_request")
    asking = Asking(server, "dies_mid_request", 1)
    server.wait_log("works for 1.0 s")
    assert server.post("/v2/repository/models/dies_mid_request/unload").status == 200
    assert infer(server, "dies_mid_request", 0).status == 404
    assert values(asking.reply()) == [1]
    server.wait_for(lambda: not server.children(), "the guest to end")


def test_loading_again_while_unloading_serves_at_once(control):
    server, models = control
    repository(models, ["dies_mid_request"])
    load(server, "dies_mid_request")
    asking = Asking(server, "dies_mid_request", 2)
    server.wait_log("works for 2.0 s")
    assert server.post("/v2/repository/models/dies_mid_request/unload").status == 200
    assert server.post("/v2/repository/models/dies_mid_request/load").status == 200
    assert values(infer(server, "dies_mid_request", 0)) == [0]
    assert values(asking.reply()) == [2]
    server.wait_for(lambda: len(server.children()) == 1, "the old guest to end")
    assert index(server)["dies_mid_request"]["state"] == "READY"
    assert is_model_ready(server, "dies_mid_request")


def test_unloading_amid_a_load_leaves_no_guest(control):
    server, models = control
    repository(models, ["versions"])
    load(server, "versions")
    (models / "versions" / "config.pbtxt").touch()
    loading = threading.Thread(target=server.post, args=("/v2/repository/models/versions/load",))
    loading.start()
    server.wait_for(lambda: server.log.count("loading: versions:") > 2, "the second load to begin")
    assert server.post("/v2/repository/models/versions/unload").status == 200
    loading.join()
    server.wait_for(lambda: states(server) == {"UNAVAILABLE"}, "both versions to be unloaded")
    server.wait_for(lambda: not server.children(), "all guests to end")


def test_control_is_refused_where_it_was_not_asked_for(tmp_path):
    models = repository(tmp_path / "models", ["identity"])
    with ServerProcess(models, work=tmp_path) as server:
        for action in ("load", "unload"):
            reply = server.post(f"/v2/repository/models/identity/{action}")
            assert reply.error == "explicit model load / unload is not allowed if polling is enabled"
        assert values(infer(server, "identity", 1)) == [1]


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("latest { num_versions: 1 }", ["5"]),
        ("all { }", ["1", "3", "5"]),
        ("specific { versions: [ 1, 3 ] }", ["1", "3"]),
    ],
)
def test_the_version_policy_chooses_the_served_versions(control, policy, versions):
    server, models = control
    repository(models, ["versions"])
    config = models / "versions" / "config.pbtxt"
    text = (SAMPLES / "versions" / "config.pbtxt").read_text()
    config.write_text(text.replace("latest { num_versions: 2 }", policy))
    load(server, "versions")
    assert server.get("/v2/models/versions").json()["versions"] == versions
    assert values(infer(server, "versions", 0)) == [float(versions[-1])]
