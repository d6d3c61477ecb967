"""A model with an invalid parameter of the server is not loaded; the error names the place in its file."""

from __future__ import annotations

import json

import pytest
from serving.repositories import is_model_ready
from serving.written import evaluate, write_model
from support.server import ServerProcess

GIVEN = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
SOON = "parameter HANG_SECONDS of model 'm' is 'soon': give a number of seconds, or 0 for no limit"


@pytest.fixture(scope="module")
def server(work):
    write_model(work / "models", "m", config="\n\n" + GIVEN.format("HANG_SECONDS", "soon"))
    write_model(work / "models", "serves")
    write_model(work / "models", "later", config=GIVEN.format("demand", "sometimes"))
    with ServerProcess(work / "models", "--model-control-mode=explicit", "--load-model=serves", work=work) as running:
        yield running


def reasons(server):
    return {each["name"]: each.get("reason", "") for each in server.post("/v2/repository/index").json()}


def test_a_load_names_file_and_line_of_an_invalid_parameter(server):
    reply = server.post("/v2/repository/models/m/load")
    wanted = f"{server.work / 'models' / 'm' / 'config.pbtxt'}:7: {SOON}"
    assert (reply.status, reply.error) == (400, f"failed to load 'm': {wanted}")
    assert wanted in server.log
    assert reasons(server)["m"] == wanted


def test_an_invalid_parameter_in_a_load_request_leaves_the_served_model_alone(server):
    config = server.get("/v2/models/serves/config").json()
    config["parameters"] = {"PREWARM": {"string_value": "1st"}}
    reply = server.post("/v2/repository/models/serves/load", {"parameters": {"config": json.dumps(config)}})
    assert reply.status == 500, "as the reference's for any configuration that a load request gets wrong"
    assert "parameter PREWARM of model 'serves' is '1st', in which '1st' is not a module's name" in reply.error
    assert is_model_ready(server, "serves")
    assert evaluate(server, "serves", "1 + 1") == "2"
    assert reasons(server)["serves"] == ""
