"""A server in poll mode: models follow their repositories, once what changed there has settled."""

from __future__ import annotations

import shutil
import threading

from serving.ensembles.ensembles import ask, outputs, write_ensemble, write_function
from support.server import ServerProcess

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


def test_versions_come_and_go_and_others_are_left_alone(tmp_path):
    models = tmp_path / "models"
    write_function(models, "m", "x + 1", "version_policy { all {} }\n")
    with start(tmp_path) as server:
        (models / "m" / "2").mkdir()
        (models / "m" / "2" / "model.py").write_text(
            (models / "m" / "1" / "model.py").read_text().replace("+ 1", "+ 2")
        )
        server.wait_for(lambda: answers(server, "m") == [3], "the second version")
        shutil.rmtree(models / "m" / "2")
        server.wait_for(lambda: "successfully unloaded 'm' version 2" in server.log, "the second version to go")
        assert answers(server, "m") == [2]
        assert server.log.count("loading: m:1") == 1


def test_bytecode_and_files_of_editors_change_nothing(tmp_path):
    models = tmp_path / "models"
    write_function(models, "m", "x + 1")
    with start(tmp_path) as server:
        folder = models / "m" / "1"
        (folder / "__pycache__").mkdir()
        for name in ("__pycache__/model.pyc", ".model.py.swp", "model.py~", "#model.py#", "4913", "model.py.lock"):
            (folder / name).write_text("x")
        for name in (".git", ".ipynb_checkpoints"):
            (models / "m" / name).mkdir()
            (models / name).mkdir()
        # Whatever comes after it in the repository has been looked at twice when this one is there.
        write_function(models, "later", "x + 2")
        server.wait_for(lambda: answers(server, "later") == [3], "a model that came later")
        assert server.log.count("loading: m:1") == 1
        assert states(server) == {"m": "READY", "later": "READY"}


def test_a_broken_change_leaves_the_old_version_serving_until_it_is_mended(tmp_path):
    models = tmp_path / "models"
    write_function(models, "m", "x + 1")
    with start(tmp_path) as server:
        text = (models / "m" / "1" / "model.py").read_text()
        (models / "m" / "1" / "model.py").write_text("raise ValueError('no luck')")
        server.wait_for(
            lambda: "failed to load 'm' version 1: Internal: ValueError: no luck" in server.log, "its failure"
        )
        assert answers(server, "m") == [2]
        assert states(server) == {"m": "READY"}
        (models / "m" / "1" / "model.py").write_text(text.replace("+ 1", "+ 5"))
        server.wait_for(lambda: answers(server, "m") == [6], "the mended model")


def test_a_model_that_cannot_be_loaded_is_tried_again_without_a_change_of_its_files(tmp_path):
    models = tmp_path / "models"
    flag = tmp_path / "flag"
    write_function(models, "m", "x + 1")
    text = (models / "m" / "1" / "model.py").read_text()
    (models / "m" / "1" / "model.py").write_text(f"import pathlib\nassert pathlib.Path({str(flag)!r}).exists()\n{text}")
    with start(tmp_path, "--exit-on-error=false", wait="live") as server:
        server.wait_for(lambda: states(server) == {"m": "UNAVAILABLE"}, "it to fail")
        flag.touch()
        server.wait_for(lambda: answers(server, "m") == [2], "it to be tried again")


def test_a_removed_model_that_never_loaded_is_forgotten(tmp_path):
    models = tmp_path / "models"
    write_function(models, "good", "x + 1")
    write_function(models, "bad", "(")
    with start(tmp_path, "--exit-on-error=false", wait="live") as server:
        server.wait_for(lambda: states(server).get("bad") == "UNAVAILABLE", "it to fail")
        assert server.get("/v2/health/ready").status == 400
        shutil.rmtree(models / "bad")
        server.wait_for(lambda: server.get("/v2/health/ready").status == 200, "the server to be ready")
        assert states(server) == {"good": "READY"}


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


def test_an_ensemble_changes_to_live_without_a_model_that_goes(tmp_path):
    models = tmp_path / "models"
    write_function(models, "plus", "x + 1")
    write_function(models, "other", "x + 2")
    write_ensemble(models, "chain", "plus IN=X > OUT=Y")
    with start(tmp_path) as server:
        config = models / "chain" / "config.pbtxt"
        config.write_text(config.read_text().replace('"plus"', '"other"'))
        shutil.rmtree(models / "plus")
        server.wait_for(lambda: "successfully unloaded 'plus' version 1" in server.log, "the removed model to go")
        assert answers(server, "chain", name="X") == [3]
        assert "unloaded 'chain' version 1" not in server.log


def test_a_model_in_two_repositories_is_not_served_until_it_is_in_one(tmp_path):
    write_function(tmp_path / "a", "m", "x + 1")
    write_function(tmp_path / "b", "other", "x + 2")
    with start(tmp_path, repositories=("a", "b")) as server:
        write_function(tmp_path / "b", "m", "x + 3")
        server.wait_for(lambda: states(server) == {"m": "UNAVAILABLE", "other": "READY"}, "it to be refused")
        reasons = [entry.get("reason") for entry in server.post("/v2/repository/index").json()]
        assert reasons[0] == "model appears in two or more repositories"
        shutil.rmtree(tmp_path / "a" / "m")
        server.wait_for(lambda: answers(server, "m") == [4], "the one that is left")


def test_load_and_unload_requests_are_refused(tmp_path):
    write_function(tmp_path / "models", "m", "x + 1")
    with start(tmp_path) as server:
        for action in ("load", "unload"):
            reply = server.post(f"/v2/repository/models/m/{action}")
            assert (reply.status, reply.error) == (
                503,
                "explicit model load / unload is not allowed if polling is enabled",
            )


def test_a_repository_that_cannot_be_read_for_a_while_loses_no_model(tmp_path):
    write_function(tmp_path / "models", "m", "x + 1")
    with start(tmp_path) as server:
        (tmp_path / "models").rename(tmp_path / "away")
        server.wait_for(lambda: "models stay as they are" in server.log, "a look that fails")
        assert answers(server, "m") == [2]
        (tmp_path / "away").rename(tmp_path / "models")
        write_function(tmp_path / "models", "n", "x + 2")
        server.wait_for(lambda: answers(server, "n") == [3], "looks that succeed")
        assert server.log.count("loading: m:1") == 1


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
        threads = [
            threading.Thread(target=keep_asking, args=(server, *which))
            for which in (("m", "IN"), ("e", "X"), ("m", "IN"), ("e", "X"))
        ]
        for thread in threads:
            thread.start()
        for number in (2, 3, 4):
            file = models / "m" / "1" / "model.py"
            file.with_name("new").write_text(file.read_text().replace(f"x + {number - 1}", f"x + {number}"))
            file.with_name("new").replace(file)
            server.wait_for(lambda number=number: [1.0 + number] in seen[-8:], "the changed model")
        done.set()
        for thread in threads:
            thread.join(30)
    assert {tuple(answer) for answer in seen} == {(2.0,), (3.0,), (4.0,), (5.0,)}
