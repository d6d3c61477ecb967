"""The server's responses, status and text, are the reference's for valid and invalid requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import departures
from conformance.cases import Case
from conformance.exchange import ask
from conformance.grpc_cases import GrpcCase, call
from conformance.judge import judge_grpc, judge_http, recorded
from conformance.running import GRPC_CASES, HTTP_CASES, serving

EXPECTED = recorded()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("conformance")) as (server, repository):
        yield server, repository


@pytest.mark.parametrize("case", HTTP_CASES, ids=lambda case: case.name)
def test_http_responses_are_the_expected_ones(served, case: Case):
    server, repository = served
    assert judge_http(case, EXPECTED["http"][case.name], ask(server.http_port, case, str(repository))) == ""


@pytest.mark.parametrize("case", GRPC_CASES, ids=lambda case: case.name)
def test_grpc_responses_are_the_expected_ones(served, case: GrpcCase):
    server, repository = served
    assert judge_grpc(case, EXPECTED["grpc"][case.name], call(server.grpc_url, case, str(repository))) == ""


def test_the_server_serves_after_every_wrong_request(served):
    """In any order, no case may crash a model or the server."""
    server, _ = served
    assert server.get("/v2/health/live").status == 200
    assert server.get("/v2/models/misbehaves/ready").status == 200


def test_every_case_is_recorded_and_every_departure_has_a_case():
    """A renamed case would otherwise be compared with nothing."""
    http_names, grpc_names = [case.name for case in HTTP_CASES], [case.name for case in GRPC_CASES]
    assert sorted(http_names) == sorted(EXPECTED["http"])
    assert sorted(grpc_names) == sorted(EXPECTED["grpc"])
    assert set(departures.HTTP) <= set(http_names)
    assert set(departures.GRPC) <= set(grpc_names)


def test_bytes_on_the_wire_are_those_of_the_case():
    """The client must send wrong lengths as they are."""
    case = Case(name="n", path="/p", body=b"12345", content_length="3", headers={"A": "b"})
    head = b"POST /p HTTP/1.1\r\nHost: 127.0.0.1:80\r\nContent-Length: 3\r\nA: b\r\n\r\n"
    assert case.wire(80) == head + b"12345"


def test_models_of_the_cases_are_complete():
    models = Path(__file__).with_name("models")
    assert all(any(folder.glob("*/model.py")) for folder in models.iterdir() if folder.is_dir())
