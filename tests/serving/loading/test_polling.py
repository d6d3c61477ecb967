"""A server in poll mode: models follow their repositories, once what changed there has settled."""

from __future__ import annotations

import shutil
import threading

from serving.ensembles.ensembles import ask, outputs, write_ensemble, write_function
from support.server import ServerProcess
from support.threads import in_thread

POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")


def start(tmp_path, *options, repositories=("models",), **more):
    folders = [tmp_path / name for name in repositories]
    return ServerProcess(folders, *POLL, *options, work=tmp_path, timeout=60, **more)


def rewrite(folder, name, expression, **more):
    """Another model in the place of *name*, put there as a careful person does."""
    shutil.rmtree(folder / name, ignore_errors=True)
    write_function(folder, name, expression, **more)


def states(server):
    return {entry["name"]: entry.get("state") for entry in server.post("/v2/repository/index").json()}


def answers(server, model, *, name="IN"):
    reply = ask(server, model, 1, name=name)
    return outputs(reply)["OUT" if name == "IN" else "Y"] if reply.status == 200 else None


def test_new_models_load_changed_ones_reload_and_removed_ones_unload(tmp_path):
    models = tmp_path / "models"
    write_function(models, "stays", "x + 1")
    with start(tmp_path) as server:
        write_function(models, "new", "x + 2")
        server.wait_for(lambda: answers(server, "new") == [3], "the new model")
        rewrite(models, "new", "x + 30")
        server.wait_for(lambda: answers(server, "new") == [31], "the changed model")
        with (models / "new" / "config.pbtxt").open("a") as file:
            file.write('parameters { key: "k" value { string_value: "v" } }\n')
        server.wait_for(
            lambda: server.get("/v2/models/new/config").json()["parameters"] == {"k": {"string_value": "v"}},
            "the changed configuration",
        )
        shutil.rmtree(models / "new")
        server.wait_for(lambda: "successfully unloaded 'new' version 1" in server.log, "the end of the removed model")
        server.wait_for(lambda: states(server) == {"stays": "READY"}, "it to be listed no more")
        # The model is forgotten with the next look: names of models may be a client's.
        unknown = "Request for unknown model: 'new' is not found"
        server.wait_for(lambda: ask(server, "new", 1, name="IN").error == unknown, "it to be forgotten")
        assert server.log.count("loading: stays:1") == 1


def test_ensembles_follow_what_they_need(tmp_path):
    models = tmp_path / "models"
    write_function(models, "plus", "x + 1")
    write_ensemble(models, "chain", "plus IN=X > OUT=A", "later IN=A > OUT=Y")
    with start(tmp_path, "--exit-on-error=false", "--strict-readiness=false") as server:
        assert answers(server, "chain", name="X") is None
        write_function(models, "later", "x * 2")
        server.wait_for(lambda: answers(server, "chain", name="X") == [4], "the ensemble whose model was missing")
        rewrite(models, "plus", "x + 2")
        server.wait_for(lambda: answers(server, "chain", name="X") == [6], "the changed member")
        shutil.rmtree(models / "plus")
        server.wait_for(lambda: states(server) == {"chain": "UNAVAILABLE", "later": "READY"}, "the ensemble to go, too")
        write_function(models, "plus", "x + 3")
        server.wait_for(lambda: answers(server, "chain", name="X") == [8], "the ensemble to come back")


def test_reloads_lose_no_request(tmp_path):
    models = tmp_path / "models"
    write_function(models, "m", "[time.sleep(0.02), x + 1][1]")
    write_ensemble(models, "e", "m IN=X > OUT=Y")
    seen = []
    done = threading.Event()

    def keep_asking(server, model, name):
        while not done.is_set():
            reply = ask(server, model, 1, name=name)
            seen.append(reply.json()["outputs"][0]["data"] if reply.status == 200 else reply.body)

    with start(tmp_path) as server:
        askers = [in_thread(keep_asking, server, *which) for which in (("m", "IN"), ("e", "X")) * 2]
        for number in (2, 3, 4):
            file = models / "m" / "1" / "model.py"
            file.with_name("new").write_text(file.read_text().replace(f"x + {number - 1}", f"x + {number}"))
            file.with_name("new").replace(file)
            server.wait_for(lambda number=number: [1.0 + number] in seen[-8:], "the changed model")
        done.set()
        for asker in askers:
            asker.result(30)
    assert {tuple(answer) for answer in seen} == {(2.0,), (3.0,), (4.0,), (5.0,)}
