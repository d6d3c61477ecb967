"""`/mcp` by the official package's own client: models as tools, calls, limits, keys, and what is rejected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakes.engine import FakeModel
from llm.openai.fake_models import Api, said, served
from support.server import ServerProcess, free_ports

from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.protocol.metadata import TensorMetadata

KEY = "a key of the test's"


def many(_, request, sink):
    """Answers as often as its only input says, then ends."""
    count = int(np.frombuffer(request.inputs[0].data, "<i8")[0])
    for number in range(count):
        data = np.array([number], "<i4").tobytes()
        sink.send(InferResponse("many", 1, "", [OutputTensor("OUT", Datatype.INT32, (1,), data)]), False)
    sink.send(None, True)


def large(_, request, sink):
    output = OutputTensor("OUT", Datatype.INT8, (200_000,), bytes(200_000))
    sink.send(InferResponse("large", 1, "", [output]), True)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with served(
        lambda _, request, sink: sink.send(said("hello"), True), mcp=True, origins=("https://ok.example",)
    ) as api:
        one = (TensorMetadata(name="COUNT", datatype="INT64", shape=(1,), required=True),)
        out = (TensorMetadata(name="OUT", datatype="INT32", shape=(1,)),)
        models = api.engine.models
        models["many"] = FakeModel("many", many, one, out, decoupled=True)
        models["large"] = FakeModel("large", large, one, out)
        models["no inputs"] = FakeModel("no inputs", many, one, out)
        models["undescribed"] = FakeModel("undescribed", many, (), ())
        models["add_sub"].config["parameters"] = {"description": {"string_value": "Adds and subtracts."}}
        yield api


def use(api: Api, *calls: tuple[str, dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The tools, and the results of calls."""

    from mcp import Client  # imported late: it takes long, and every process of a run collects these tests

    async def run() -> tuple[list[Any], list[Any]]:
        async with Client(f"http://127.0.0.1:{api.port}/mcp") as client:
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(asyncio.wait_for(run(), 30))


def post(api: Api, document: Any, **headers: str) -> Any:
    body = document if isinstance(document, str) else json.dumps(document)
    return api.request("POST", "/mcp", body, Content_Type="application/json", **headers)


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def test_models_with_described_inputs_are_tools(api):
    tools, _ = use(api)
    found = {tool.name: tool for tool in tools}
    assert {"add_sub", "identity", "repeat", "fake", "many"} <= set(found)
    assert not {"not_ready", "no inputs", "undescribed"} & set(found)
    assert found["add_sub"].description == "Adds and subtracts."
    assert found["many"].description == "Runs the model many and returns OUT (INT32)."
    numbers = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4, "description": "FP32 [4]"}
    assert found["add_sub"].input_schema == {
        "type": "object",
        "properties": {"INPUT0": numbers, "INPUT1": numbers},
        "additionalProperties": False,
    }
    assert found["many"].input_schema["properties"]["COUNT"] == {"type": "integer", "description": "INT64 [1]"}
    assert found["many"].input_schema["required"] == ["COUNT"]


def test_a_call_is_a_batch_of_one(api):
    _, (result,) = use(api, ("add_sub", {"INPUT0": [1, 2, 3, 4], "INPUT1": [1, 1, 1, 0.5]}))
    assert result.structured_content == {"OUTPUT0": [2, 3, 4, 4.5], "OUTPUT1": [0, 1, 2, 3.5]}
    assert json.loads(result.content[0].text) == result.structured_content
    assert not result.is_error
    request = api.engine.requests[-1]
    assert [tensor.shape for tensor in request.inputs] == [(1, 4), (1, 4)]


def test_single_values_and_several_responses_become_a_result(api):
    _, (text, one, two, none) = use(
        api, ("fake", {"text_input": "x"}), ("many", {"COUNT": 1}), ("many", {"COUNT": 2}), ("many", {"COUNT": 0})
    )
    assert text.structured_content == {"text_output": "hello"}
    assert one.structured_content == {"OUT": 0}
    assert two.structured_content == {"responses": [{"OUT": 0}, {"OUT": 1}]}
    assert none.structured_content == {"responses": []}


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("failing", {"INPUT0": [1]}, "ValueError: no luck"),
        ("add_sub", {"INPUT0": [1, 2, 3, 4]}, "missing required input 'INPUT1'"),
        ("many", {}, "missing argument: COUNT"),
        ("add_sub", {"INPUT": [1]}, "unknown argument 'INPUT'; the tool has INPUT0, INPUT1"),
        (
            "add_sub",
            {"INPUT0": [1, 2]},
            "argument 'INPUT0' must have the shape [4] (-1 is any); an array has 2 elements",
        ),
        ("add_sub", {"INPUT0": 1}, "argument 'INPUT0' must be arrays nested 1 deep"),
        ("fake", {"text_input": 5}, "argument 'text_input' must have strings"),
        ("large", {"COUNT": 1}, "the outputs have more than 131072 bytes"),
    ],
)
def test_failed_calls_are_results_that_the_agent_reads(api, tool, arguments, message):
    _, (result,) = use(api, (tool, arguments))
    assert result.is_error
    assert message in result.content[0].text


def test_results_are_what_the_types_of_the_package_say(api):
    import mcp_types  # imported late: see `use`

    for method, kind, params in (
        ("initialize", mcp_types.InitializeResult, {"protocolVersion": "2025-06-18"}),
        ("tools/list", mcp_types.ListToolsResult, {}),
        ("tools/call", mcp_types.CallToolResult, {"name": "many", "arguments": {"COUNT": 1}}),
    ):
        got = post(api, rpc(method, **params)).json()
        assert (got["jsonrpc"], got["id"]) == ("2.0", 1)
        kind.model_validate(got["result"])
    assert post(api, rpc("ping")).json()["result"] == {}


@pytest.mark.parametrize(
    ("asked", "told"), [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")]
)
def test_the_revision_is_negotiated(api, asked, told):
    assert post(api, rpc("initialize", protocolVersion=asked)).json()["result"]["protocolVersion"] == told


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        ("{", 400, -32700),
        ([rpc("ping")], 400, -32600),
        ({"id": 1, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": {}, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, 400, -32602),
        (rpc("resources/list"), 200, -32601),
        (rpc("tools/call", name="none"), 200, -32602),
        (rpc("tools/call", name="many", arguments=[1]), 200, -32602),
    ],
)
def test_messages_that_are_wrong_get_errors_of_json_rpc(api, document, status, code):
    got = post(api, document)
    assert (got.status, got.json()["error"]["code"]) == (status, code)


def test_invalid_http_requests_are_rejected(api):
    assert post(api, {"jsonrpc": "2.0", "method": "notifications/initialized"}).status == 202
    assert post(api, {"jsonrpc": "2.0", "id": 1, "result": {}}).status == 202
    for method in ("GET", "DELETE"):
        assert api.request(method, "/mcp").status == 405
    assert post(api, rpc("ping"), Origin="https://evil.example").status == 403
    assert post(api, rpc("ping"), Origin="https://ok.example").status == 200
    large = post(api, rpc("tools/call", name="fake", arguments={"text_input": "x" * 200_000}))
    assert (large.status, large.json()["error"]["code"]) == (413, -32600)
    later = post(api, rpc("tools/list"), MCP_Protocol_Version="2026-07-28")
    assert (later.status, later.json()["error"]["code"]) == (400, -32022)
    assert "2025-11-25" in later.json()["error"]["data"]["supported"]


def test_keys_and_the_list_of_models_limit_tools():
    with served(many, mcp=True, mcp_models=("identity",), keys=(KEY,)) as api:
        assert post(api, rpc("ping")).status == 401
        authorized = {"Authorization": f"Bearer {KEY}"}
        listed = post(api, rpc("tools/list"), **authorized).json()["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["identity"]
        refused = post(api, rpc("tools/call", name="add_sub"), **authorized).json()
        assert refused["error"]["message"] == "unknown tool 'add_sub'; tools/list has all of them"
    with served(many) as api:
        assert post(api, rpc("ping")).status == 404


def test_a_client_that_disconnects_cancels_its_call(api):
    async def run() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        body = json.dumps(rpc("tools/call", name="held", arguments={"INPUT0": [1]})).encode()
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        await asyncio.to_thread(api.loop.until, lambda: api.engine.held)
        writer.close()
        await writer.wait_closed()
        await asyncio.to_thread(api.loop.until, lambda: not api.engine.held)

    asyncio.run(asyncio.wait_for(run(), 30))


_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_INT32 dims: [2, -1] }
output { name: "Y" data_type: TYPE_INT32 dims: [2, -1] }
parameters { key: "description" value { string_value: "Doubles a matrix of two rows." } }
"""
_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(each, "X").as_numpy() * 2)])
            for each in requests
        ]
"""


def test_a_model_of_a_repository_is_a_tool_of_a_server(tmp_path):
    version = tmp_path / "models" / "double" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    port = free_ports(1)[0]

    from mcp import Client  # imported late: see `use`

    async def run() -> Any:
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            (tool,) = (await client.list_tools()).tools
            return tool, await client.call_tool("double", {"X": [[1, 2, 3], [4, 5, 6]]})

    with ServerProcess(tmp_path / "models", f"--openai-port={port}", "--mcp", "--mcp-models=double", work=tmp_path):
        tool, result = asyncio.run(asyncio.wait_for(run(), 60))
    assert tool.description == "Doubles a matrix of two rows."
    rows = tool.input_schema["properties"]["X"]
    assert (rows["minItems"], rows["items"]["type"], "minItems" in rows["items"]) == (2, "array", False)
    assert tool.input_schema["required"] == ["X"]
    assert result.structured_content == {"Y": [[2, 4, 6], [8, 10, 12]]}
