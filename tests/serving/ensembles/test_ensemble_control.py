"""Ensembles that are loaded, that come and go with their models, and that do not fit."""

from __future__ import annotations

import json
import threading

import pytest
from serving.contract import REFERENCE
from serving.ensembles.ensembles import ask, write_ensemble, write_function, write_model
from support.server import TRITONSERVER, ServerProcess
from support.threads import in_thread

EXPLICIT = "--model-control-mode=explicit"


def write_misfits(folder):
    integers = (
        'input { name: "IN" data_type: TYPE_INT32 dims: -1 }\noutput { name: "OUT" data_type: TYPE_FP32 dims: -1 }\n'
    )
    write_function(folder, "integers", "x.astype(np.float32)", tensors=integers)
    write_function(folder, "batched", "x", "max_batch_size: 4\n")
    write_model(folder, "broken", "def initialize(self, args):\n    raise ValueError('no luck')\n")
    write_ensemble(folder, "bad_type", "integers IN=X > OUT=Y")
    write_ensemble(folder, "bad_batch", "batched IN=X > OUT=Y", extra="max_batch_size: 8\n")
    write_ensemble(folder, "bad_input", "plus NOPE=X > OUT=Y")
    write_ensemble(folder, "missing", "nowhere IN=X > OUT=A", "plus IN=A > OUT=Y")
    write_ensemble(folder, "of_bad", "bad_type X=X > Y=Y")
    write_ensemble(folder, "of_broken", "broken IN=X > OUT=Y")
    write_ensemble(folder, "ring_a", "ring_b X=X > Y=Y")
    write_ensemble(folder, "ring_b", "ring_a X=X > Y=Y")
    write_ensemble(folder, "itself", "itself X=X > Y=Y")
    write_ensemble(folder, "other_version", "plus IN=X > OUT=Y")
    config = folder / "other_version" / "config.pbtxt"
    config.write_text(config.read_text().replace("model_version: -1", "model_version: 7"))


BAD_TYPE = (
    "in ensemble bad_type, ensemble tensor X: inconsistent data type: TYPE_FP32 is inferred from model bad_type while "
    "TYPE_INT32 is inferred from model integers"
)
MISFITS = {
    "bad_type": BAD_TYPE,
    "bad_batch": (
        "ensemble bad_batch allows maximum batch size 8, but it contains model batched which only allows maximum batch "
        "size to be 4"
    ),
    "bad_input": "in ensemble bad_input, ensemble tensor X is mapping to non-existing input NOPE in model plus",
    "missing": "ensemble missing contains models that are not available or ambiguous: nowhere",
    "of_bad": f"ensemble 'of_bad' depends on 'bad_type' which is not valid. Model 'bad_type' failed with error: {BAD_TYPE}",
    "ring_a": "circular dependency between ensembles: ring_a -> ... -> ring_b -> ring_a",
    "itself": "circular dependency between ensembles: itself -> ... -> itself -> itself",
    "other_version": "ensemble 'other_version' depends on 'plus' whose required version 7 is not loaded.",
}


class Control:
    """A server in explicit mode."""

    def __init__(self, server):
        self.server = server

    def load(self, name, **parameters):
        return self.server.post(f"/v2/repository/models/{name}/load", {"parameters": parameters})

    def unload(self, name):
        assert self.server.post(f"/v2/repository/models/{name}/unload").status == 200
        self.server.wait_for(lambda: "UNLOADING" not in self.states().values(), f"'{name}' to be unloaded")

    def index(self):
        return {entry["name"]: entry for entry in self.server.post("/v2/repository/index").json()}

    def states(self):
        return {name: entry["state"] for name, entry in self.index().items() if "version" in entry}

    def ready(self):
        return {name for name, state in self.states().items() if state == "READY"}


def start(tmp_path, *options, **more):
    return ServerProcess(
        tmp_path / "models", *options, work=tmp_path, command=[REFERENCE or TRITONSERVER], timeout=60, **more
    )


def test_ensembles_that_do_not_fit_are_refused_one_by_one(tmp_path):
    write_function(tmp_path / "models", "plus", "x + 1")
    write_misfits(tmp_path / "models")
    with start(tmp_path, EXPLICIT) as server:
        control = Control(server)
        for name, text in MISFITS.items():
            reply = control.load(name)
            assert (reply.status, reply.error) == (400, f"load failed for model '{name}': {text}\n")
        reply = control.load("of_broken")
        assert reply.error.startswith(
            "load failed for model 'of_broken': ensemble 'of_broken' depends on 'broken' which has no loaded version. "
            "Model 'broken' loading failed with error: version 1 is at UNAVAILABLE state: Internal: ValueError: no luck"
        )
        assert not set(MISFITS) & control.ready()


@pytest.mark.skipif(bool(REFERENCE), reason="the reference may find a model gone between two steps")
def test_reloading_and_unloading_models_loses_no_request_of_an_ensemble(tmp_path):
    models = tmp_path / "models"
    write_function(models, "plus", "x + 1")
    write_function(models, "slow", "[time.sleep(0.1), x * 2][1]")
    write_ensemble(models, "chain", "slow IN=X > OUT=A", "plus IN=A > OUT=Y")
    wrong = []
    right = []
    done = threading.Event()

    def keep_asking(server):
        while not done.is_set():
            reply = ask(server, "chain", 1)
            (right if reply.status == 200 else wrong).append(reply.body)

    with start(tmp_path, EXPLICIT) as server:
        control = Control(server)
        control.load("chain")
        askers = [in_thread(keep_asking, server) for _ in range(4)]
        for name in ("plus", "slow", "chain", "plus"):
            count = len(right)
            assert control.load(name).status == 200
            server.wait_for(lambda count=count: len(right) > count + 4, "answers")
        control.unload("plus")
        done.set()
        for asker in askers:
            asker.result(30)
    # Once it is unloaded it is told so; what was under way until then has been answered.
    texts = {json.loads(body)["error"] for body in wrong}
    assert texts <= {"Request for unknown model: 'chain' has no available versions"}
