"""The document of the API, made from an engine's models, beside the handwritten one."""

from __future__ import annotations

import asyncio
import json

import pytest
from fakes.engine import FakeEngine
from frontends.openapi.document import DOCUMENT

from naiad.frontends.api_page.document import ApiDocument, ServedApis
from naiad.protocol.metadata import IndexEntry, ModelState

ALL = ServedApis(openai=True, openai_port=8000, console=True)


def read(engine=None, served=ALL):
    return json.loads(asyncio.run(ApiDocument(engine or FakeEngine(), served).read()))


def test_every_route_of_the_handwritten_document_is_in_the_servers_and_no_other_but_those_of_its_models():
    found = read()
    assert {path: found["paths"][path] for path in DOCUMENT["paths"]} == DOCUMENT["paths"]
    assert found["components"] == DOCUMENT["components"]
    models = {path.split("/")[3] for path in found["paths"].keys() - DOCUMENT["paths"].keys()}
    assert models == {"add_sub", "identity", "later", "held", "failing", "repeat"}  # without `not_ready`


def test_every_operation_of_a_model_is_one_of_the_handwritten_document():
    found = read()
    for path in found["paths"].keys() - DOCUMENT["paths"].keys():
        parts = path.split("/")
        general = DOCUMENT["paths"]["/".join([*parts[:3], "{model}", *parts[4:]])]["post"]
        here = found["paths"][path]["post"]
        assert set(here["requestBody"]["content"]) <= set(general["requestBody"]["content"])
        for status, answer in here["responses"].items():
            assert set(answer.get("content", ())) <= set(general["responses"][status].get("content", ()))


def test_operations_have_names_of_their_own():
    found = read()
    names = [item["post"]["operationId"] for item in found["paths"].values() if "operationId" in item.get("post", {})]
    assert len(names) == len(set(names)) == 11


@pytest.mark.parametrize(
    ("served", "missing"),
    [
        (ServedApis(openai=True, openai_port=8000), {"/ui", "/ui/data/state"}),
        (
            ServedApis(console=True),
            {path for path in DOCUMENT["paths"] if not path.startswith(("/v2", "/ui", "/docs", "/openapi"))},
        ),
    ],
)
def test_paths_that_the_port_does_not_serve_are_missing(served, missing):
    assert DOCUMENT["paths"].keys() - read(served=served)["paths"].keys() == missing
    assert missing


def test_the_server_and_the_port_of_openais_api_are_named():
    found = read(served=ServedApis(openai_port=9000))
    assert (found["info"]["title"], found["info"]["version"]) == ("naiad", "2.73.0")
    assert "`/v1` are on port 9000" in found["info"]["description"]
    assert found["servers"] == [{"url": "/"}]


def test_a_model_that_goes_while_the_document_is_made_is_left_out():
    class Forgetful(FakeEngine):
        def ready_index(self):
            gone = IndexEntry(name="gone", version="1", state=ModelState.READY)
            return [gone, *super().ready_index(), *super().ready_index()]  # with two versions each

    assert read(Forgetful()) == read()


def test_many_clients_at_once_cost_one_making():
    class Counted(FakeEngine):
        makings = 0

        def ready_index(self):
            self.makings += 1
            return super().ready_index()

    engine = Counted()

    async def ask():
        document = ApiDocument(engine, ALL)
        answers = await asyncio.gather(*(document.read() for _ in range(50)))
        return set(answers), await document.read()

    answers, later = asyncio.run(ask())
    assert answers == {later}
    assert engine.makings == 2


def test_a_client_that_leaves_does_not_take_the_document_from_the_others():
    async def ask():
        document = ApiDocument(FakeEngine(), ALL)
        leaving, staying = (asyncio.ensure_future(document.read()) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert json.loads(asyncio.run(ask()))["openapi"] == "3.0.3"


def test_the_loop_turns_while_a_document_of_many_models_is_made():
    class Many(FakeEngine):
        def ready_index(self):
            return [IndexEntry(name=f"model-{number}", version="1", state=ModelState.READY) for number in range(3000)]

        def _find(self, name, version):
            return super()._find("add_sub", version)

    async def ask():
        turns = 0
        making = asyncio.ensure_future(ApiDocument(Many(), ALL).read())
        while not making.done():
            turns += 1
            await asyncio.sleep(0)
        return turns, await making

    turns, made = asyncio.run(ask())
    assert turns > 10
    assert len(json.loads(made)["paths"]) == len(DOCUMENT["paths"]) + 6000
