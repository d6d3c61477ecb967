"""Repositories as namespaces: models of one name, told apart by where they lie."""

from __future__ import annotations

import pytest
from serving.contract import REFERENCE, ours
from serving.ensembles.ensembles import ask, outputs, write_ensemble, write_function
from support.console import shown_model
from support.server import TRITONSERVER, ServerProcess

NAMESPACES = "--model-namespacing=true"
EXPLICIT = "--model-control-mode=explicit"


def write(folder):
    """Two repositories with a model of one name, and a third whose ensemble names it."""
    first, second, third = folder / "a", folder / "b", folder / "c"
    for each, number in ((first, 1), (second, 2)):
        write_function(each, "m", f"x + {number}")
        write_ensemble(each, f"of_{each.name}", "m IN=X > OUT=Y")
    write_function(second, "only", "x * 10")
    write_ensemble(first, "far", "only IN=X > OUT=Y")
    write_ensemble(third, "lost", "m IN=X > OUT=Y")
    return first, second, third


@pytest.fixture
def folders(tmp_path):
    return write(tmp_path)


@pytest.fixture(scope="module")
def both(work):
    """A server of the first two repositories, and these."""
    folders = write(work)[:2]
    with start(work, folders, *(() if REFERENCE else ("--ui=true", "--log-verbose=1"))) as server:
        yield server, folders


def start(tmp_path, folders, *options, **more):
    command = [REFERENCE or TRITONSERVER]
    return ServerProcess(folders, NAMESPACES, *options, work=tmp_path, command=command, timeout=60, **more)


def index(server):
    return [(entry["name"], entry.get("state")) for entry in server.post("/v2/repository/index").json()]


def load(server, name, action="load"):
    return server.post(f"/v2/repository/models/{name}/{action}", {"parameters": {}})


AMBIGUOUS = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."


def test_models_of_one_name_are_served_to_ensembles_of_their_own_namespaces(both):
    server, folders = both
    assert index(server) == [(name, "READY") for name in ("far", "m", "of_a", "m", "of_b", "only")]
    assert outputs(ask(server, "of_a", 1)) == {"Y": [2]}
    assert outputs(ask(server, "of_b", 1)) == {"Y": [3]}
    assert outputs(ask(server, "far", 1)) == {"Y": [10]}
    assert outputs(ask(server, "only", 1, name="IN")) == {"OUT": [10]}
    step = server.get("/v2/models/far/config").json()["ensemble_scheduling"]["step"][0]
    assert (step["model_name"], step["model_namespace"]) == ("only", str(folders[1]))


def test_an_ambiguous_name_is_refused(both):
    server, _ = both
    for reply in (
        ask(server, "m", 1, name="IN"),
        server.get("/v2/models/m"),
        server.get("/v2/models/m/config"),
        server.get("/v2/models/m/versions/3"),
    ):
        assert (reply.status, reply.error) == (400, AMBIGUOUS)
    assert server.get("/v2/models/m/ready").status == 400
    assert server.get("/v2/models/m/stats").error == "requested model 'm' is not available"


def test_unknown_models_are_named_with_their_namespace_where_that_is_known(both):
    server, folders = both
    reply = server.get("/v2/models/nope")
    assert (reply.status, reply.error) == (400, "Request for unknown model: 'nope' is not found")
    reply = server.get("/v2/models/only/versions/3")
    assert (reply.status, reply.error) == (
        404,
        f"Request for unknown model: '{folders[1]}::only' version 3 is not found",
    )


def test_an_ensemble_of_an_ambiguous_model_is_refused_until_there_is_one(tmp_path, folders):
    with start(tmp_path, folders, EXPLICIT) as server:
        assert load(server, "m").status == 200
        reply = load(server, "lost")
        lost = f"{folders[2]}::lost"
        assert (reply.status, reply.error) == (
            400,
            f"load failed for model '{lost}': ensemble {lost} contains models that are not available or ambiguous: m\n",
        )
        write_function(folders[2], "m", "x + 3")
        assert load(server, "m").status == 200
        assert outputs(ask(server, "lost", 1)) == {"Y": [4]}


def test_loading_and_unloading_a_name_means_all_models_of_it(tmp_path, folders):
    with start(tmp_path, folders[:2], EXPLICIT, "--load-model=only") as server:
        assert [name for name, state in index(server) if state == "READY"] == ["only"]
        assert [name for name, _ in index(server)] == ["far", "m", "of_a", "m", "of_b", "only"]
        for name in ("m", "of_a", "of_b"):
            assert load(server, name).status == 200
        assert [name for name, state in index(server) if state == "READY"] == ["m", "of_a", "m", "of_b", "only"]
        assert load(server, "m", "unload").status == 200
        server.wait_for(
            lambda: [name for name, state in index(server) if state == "READY"] == ["only"], "both, and their ensembles"
        )
        reply = ask(server, "m", 1, name="IN")
        assert (reply.status, reply.error) == (404, "Identifier of model 'm' is not found in global map")


def test_metrics_say_the_namespace(both):
    server, folders = both
    start = 'nv_inference_request_success{model="m"'
    before = server.samples(start)
    ask(server, "of_a", 1)
    more = {series: value - before[series] for series, value in server.samples(start).items()}
    assert more == {f'{start},namespace="{folder}",version="1"}}': folder.name == "a" for folder in folders}


@pytest.mark.skipif(bool(REFERENCE), reason="the reference knows no way to name one of them")
def test_a_model_can_be_asked_for_with_its_namespace(both):
    server, folders = both
    answers = [outputs(ask(server, f"{folder}::m".replace("/", "%2F"), 1, name="IN")) for folder in folders]
    assert answers == [{"OUT": [2]}, {"OUT": [3]}]


def test_without_namespaces_a_name_in_two_repositories_is_not_served(tmp_path, folders):
    with ServerProcess(
        folders[:2],
        "--exit-on-error=false",
        "--strict-readiness=false",
        work=tmp_path,
        command=[REFERENCE or TRITONSERVER],
        timeout=60,
    ) as server:
        assert ("m", "UNAVAILABLE") in index(server)
        assert ask(server, "m", 1, name="IN").status == 404


@ours
def test_the_page_tells_where_each_model_of_one_name_comes_from(both):
    server, folders = both
    for folder in folders[:2]:
        shown = shown_model(server, f"{folder}::m")
        assert shown["directory"] == f"{folder}/m"
        assert shown["environment"]["source"] == "the host's interpreter"
