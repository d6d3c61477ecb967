"""`/v1/responses` by OpenAI's own client: documents, events, tools, structures, and conversations that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from naiad_llm.openai.custom_tools import custom_input
from naiad_llm.openai.responses.store import ResponseStore, StoredResponse

from .fake_models import Api, given, said, served

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@contextmanager
def connected(api: Api, key: str = "any") -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{api.port}/v1", api_key=key, max_retries=0, timeout=20) as client:
        yield client


def conversation(request) -> dict[str, Any]:
    return json.loads(given(request, "messages"))


def answer(_, request, sink):
    """Answers by the last message: with its words one by one, with a call, with reasoning, or with an error."""
    messages = conversation(request)["messages"]
    last = messages[-1]["content"]
    if last == "repeat":
        sink.send(said(json.dumps(conversation(request))), True)
    elif last == "sampling":
        sink.send(said(given(request, "sampling_parameters")), True)
    elif last == "call":
        for number in (0, 1):
            function = {"name": "weather", "arguments": ""}
            begin = {"index": number, "id": f"call_{number}", "type": "function", "function": function}
            sink.send(said("", message=[json.dumps({"tool_calls": [begin]})]), False)
            for part in ('{"city": ', '"Oslo"}'):
                more = {"index": number, "function": {"arguments": part}}
                sink.send(said("", message=[json.dumps({"tool_calls": [more]})]), False)
        sink.send(said("", finish_reason=["tool_calls"]), True)
    elif last == "patch":
        function = {"name": conversation(request)["tools"][0]["function"]["name"], "arguments": ""}
        begin = {"index": 0, "id": "call_0", "type": "function", "function": function}
        sink.send(said("", message=[json.dumps({"tool_calls": [begin]})]), False)
        for part in ('{"inp', 'ut": "one\\n', 'two"}'):
            more = {"index": 0, "function": {"arguments": part}}
            sink.send(said("", message=[json.dumps({"tool_calls": [more]})]), False)
        sink.send(said("", finish_reason=["tool_calls"]), True)
    elif last == "think":
        sink.send(said("", message=[json.dumps({"reasoning_content": "Well, "})]), False)
        sink.send(said("", message=[json.dumps({"reasoning_content": "yes."})]), False)
        sink.send(said("Yes.", finish_reason=["stop"]), True)
    elif last == "long":
        sink.send(said("too long", finish_reason=["length"]), True)
    elif last == "fail later":
        sink.send(said("begun "), False)
        sink.send(said(error="no luck"), True)
    elif last == "fail":
        sink.send(said(error="no luck"), True)
    elif last == "nothing":
        sink.send(None, True)
    else:
        for word in str(last).split():
            sink.send(said(f"{word} "), False)
        sink.send(said("", finish_reason=["stop"]), True)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with served(answer) as each:
        yield each


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[openai.OpenAI]:
    with connected(api) as each:
        yield each


def repeated(response) -> dict[str, Any]:
    """The conversation that the model got, which it has repeated."""
    return json.loads(response.output_text)


def test_a_text_is_answered_with_one_message(client):
    response = client.responses.create(model="fake", input="one two", temperature=0.5, metadata={"a": "b"})
    assert response.output_text == "one two "
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert (response.temperature, response.metadata, response.tool_choice) == (0.5, {"a": "b"}, "auto")
    (item,) = response.output
    assert (item.type, item.role, item.status, item.content[0].type) == (
        "message",
        "assistant",
        "completed",
        "output_text",
    )
    assert response.id.startswith("resp_")
    assert item.id.startswith("msg_")


def test_items_become_messages_of_a_chat(client):
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How is "}, {"type": "input_text", "text": "it?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"role": "user", "content": "repeat"},
    ]  # fmt: skip
    told = repeated(
        client.responses.create(
            model="fake", input=items, instructions="In French.", tools=[TOOL], tool_choice={"type": "function", "name": "weather"},
            parallel_tool_calls=False, reasoning={"effort": "low"},
        )
    )  # fmt: skip
    call = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
    assert told["messages"] == [
        {"role": "system", "content": "In French."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is \nit?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [{"id": "c1", **call}, {"id": "c2", **call}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "sun"},
        {"role": "user", "content": "repeat"},
    ]  # fmt: skip
    function = {name: value for name, value in TOOL.items() if name != "type"}
    assert told["tools"] == [{"type": "function", "function": function}]
    assert told["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (told["parallel_tool_calls"], told["reasoning_effort"]) == (False, "low")


def test_events_of_a_text_are_in_the_official_order(client):
    events = list(client.responses.create(model="fake", input="one two", stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["one ", "two "]
    assert events[6].text == events[7].part.text == events[8].item.content[0].text == "one two "
    assert events[0].response.status == "in_progress"
    assert events[0].response.id == events[-1].response.id
    assert events[-1].response.output_text == "one two "
    ids = {event.item_id for event in events if hasattr(event, "item_id")}
    assert ids == {events[2].item.id} == {events[-1].response.output[0].id}


def test_the_clients_snapshot_of_a_text_has_each_piece_once(client):
    with client.responses.stream(model="fake", input="one two") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    assert snapshots == ["one ", "one two "]


@pytest.mark.parametrize("text", ["one two", "think"])
def test_a_part_is_added_empty_and_its_deltas_have_all_of_it(client, text):
    pieces: dict[str, str] = {}
    for event in client.responses.create(model="fake", input=text, stream=True):
        if event.type == "response.content_part.added":
            assert event.part.text == ""
            assert getattr(event.part, "logprobs", []) == []
            pieces[event.item_id] = ""
        elif event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
            pieces[event.item_id] += event.delta
        elif event.type == "response.content_part.done":
            assert pieces[event.item_id] == event.part.text != ""
    assert len(pieces) == (2 if text == "think" else 1)


def test_calls_are_streamed_one_after_the_other_and_assembled_by_the_client(client):
    with client.responses.stream(model="fake", input="call", tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    one = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert kinds == ["response.created", "response.in_progress", *one, *one, "response.completed"]
    assert [(item.type, item.name, item.call_id) for item in final.output] == [
        ("function_call", "weather", "call_0"),
        ("function_call", "weather", "call_1"),
    ]
    assert all(json.loads(item.arguments) == {"city": "Oslo"} for item in final.output)


PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Change files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
CLOSE: Any = {"type": "function", "name": "close", "parameters": {"type": "object", "properties": {}}}
AGENTS: Any = {"type": "namespace", "name": "agents", "description": "Agents", "tools": [CLOSE]}


def test_a_custom_tool_is_a_function_with_one_text(client):
    asked = repeated(client.responses.create(model="fake", input="repeat", tools=[]))
    assert "tools" not in asked
    (call,) = client.responses.create(model="fake", input="patch", tools=[PATCH]).output
    assert (call.type, call.name, call.call_id, call.input) == ("custom_tool_call", "apply_patch", "call_0", "one\ntwo")


def test_a_call_of_a_custom_tool_is_streamed_as_its_text(client):
    with client.responses.stream(model="fake", input="patch", tools=[PATCH]) as stream:
        events = list(stream)
    kinds = [event.type for event in events if "custom" in event.type or "function" in event.type]
    assert kinds == ["response.custom_tool_call_input.delta"] * 2 + ["response.custom_tool_call_input.done"]
    assert [event.delta for event in events if event.type.endswith("input.delta")] == ["one\n", "two"]
    (done,) = [event.item for event in events if event.type == "response.output_item.done"]
    assert (done.type, done.input) == ("custom_tool_call", "one\ntwo")


def test_models_get_tools_of_namespaces_and_custom_ones_as_functions_and_no_hosted_ones(api):
    hosted = [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}]
    got = api.ask("responses", input="repeat", tools=[AGENTS, *hosted, PATCH], truncation="auto")
    (item,) = got.json()["output"]
    functions = [tool["function"] for tool in json.loads(item["content"][0]["text"])["tools"]]
    assert [function["name"] for function in functions] == ["agents__close", "apply_patch"]
    assert functions[1]["parameters"]["required"] == ["input"]
    assert functions[1]["description"].endswith("must match this lark grammar:\nstart: /.+/")
    assert got.json()["tools"] == [AGENTS, *hosted, PATCH]


def test_a_call_of_a_tool_in_a_namespace_has_its_own_name_and_the_namespace(api):
    (call,) = api.ask("responses", input="patch", tools=[AGENTS]).json()["output"]
    assert (call["type"], call["name"], call["namespace"]) == ("function_call", "close", "agents")


def test_calls_of_all_tools_and_their_results_are_history(api):
    items = [
        {"type": "message", "role": "user", "content": "go"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": 'say "hi"'},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "done"},
        {"type": "function_call", "call_id": "b", "namespace": "agents", "name": "close", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "closed"},
        {"type": "message", "role": "user", "content": "repeat"},
    ]
    (item,) = api.ask("responses", input=items, tools=[]).json()["output"]
    messages = json.loads(item["content"][0]["text"])["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool", "user"]
    first, second = (messages[number]["tool_calls"][0]["function"] for number in (1, 3))
    assert (first["name"], json.loads(first["arguments"])) == ("apply_patch", {"input": 'say "hi"'})
    assert second["name"] == "agents__close"
    assert (messages[2]["content"], messages[4]["content"]) == ("done", "closed")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": "a\\nb', "a\nb"),
        ('{"input": "a\\', "a"),
        ('{"input": "a\\u00', "a"),
        ('{"inp', ""),
        ("", ""),
        ('{"other": 1}', '{"other": 1}'),
        ("[1]", "[1]"),
    ],
)
def test_the_text_of_a_custom_tool_is_found_in_arguments_that_may_be_cut_off(arguments, text):
    assert custom_input(arguments) == text


def test_a_call_and_its_result_continue_a_stored_response(client):
    first = client.responses.create(model="fake", input="call", tools=[TOOL])
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in first.output
    ]
    second = client.responses.create(
        model="fake", previous_response_id=first.id, input=[*results, {"role": "user", "content": "repeat"}]
    )
    user, assistant, *tools, last = repeated(second)["messages"]
    assert user == {"role": "user", "content": "call"}
    assert [call["id"] for call in assistant["tool_calls"]] == ["call_0", "call_1"]
    assert assistant["content"] is None
    assert [(tool["role"], tool["tool_call_id"]) for tool in tools] == [("tool", "call_0"), ("tool", "call_1")]
    assert last["content"] == "repeat"


def test_reasoning_is_an_item_of_its_own(client):
    response = client.responses.create(model="fake", input="think")
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "Well, yes."
    kinds = [event.type for event in client.responses.create(model="fake", input="think", stream=True)]
    assert kinds.count("response.reasoning_text.delta") == 2
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")


def test_a_conversation_is_continued_without_its_instructions(client):
    first = client.responses.create(model="fake", input="one two", instructions="first")
    second = client.responses.create(model="fake", input="three", previous_response_id=first.id, stream=True)
    second_id = next(event.response.id for event in second if event.type == "response.completed")
    third = client.responses.create(
        model="fake", input="repeat", previous_response_id=second_id, instructions="third", store=False
    )
    assert [message["content"] for message in repeated(third)["messages"]] == [
        "third",
        "one two",
        "one two ",
        "three",
        "three ",
        "repeat",
    ]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(third.id)


def test_stored_responses_are_retrieved_and_deleted(client):
    response = client.responses.create(model="fake", input="one")
    assert client.responses.retrieve(response.id) == response
    (item,) = client.responses.input_items.list(response.id).data
    assert item.content[0].text == "one"
    client.responses.delete(response.id)
    for use in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{response.id}' not found"):
            use(response.id)
    with pytest.raises(openai.BadRequestError, match=f"Previous response with id '{response.id}' not found") as caught:
        client.responses.create(model="fake", input="two", previous_response_id=response.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def referred(response: Any) -> list[Any]:
    return [{"type": "item_reference", "id": item.id} for item in response.output]


@pytest.mark.parametrize("asked", ["one two", "think", "call", "patch"])
def test_items_of_an_answer_are_taken_back_by_their_ids(client, asked):
    first = client.responses.create(model="fake", input=asked, tools=[PATCH] if asked == "patch" else [TOOL])
    calls = [item for item in first.output if item.type.endswith("_call")]
    results: Any = [{"type": f"{one.type}_output", "call_id": one.call_id, "output": "rain"} for one in calls]
    begin: Any = {"role": "user", "content": asked}
    end: Any = [*results, {"role": "user", "content": "repeat"}]
    whole = [item.to_dict() for item in first.output]
    told = [
        repeated(client.responses.create(model="fake", input=[begin, *said_before, *end]))["messages"]
        for said_before in (whole, referred(first))
    ]
    assert told[0] == told[1]
    assert len(told[1]) == 3 + len(results)


def test_references_are_resolved_in_streams_counts_and_later_answers(client):
    first = client.responses.create(model="fake", input="one two")
    given: Any = [*referred(first), {"role": "user", "content": "three"}]
    with client.responses.stream(model="fake", input=given) as stream:
        second = stream.get_final_response()
    items = client.responses.input_items.list(second.id, order="asc").data
    assert next(item.content[0].text for item in items if item.type == "message") == "one two "
    told = repeated(client.responses.create(model="fake", input="repeat", previous_response_id=second.id))
    assert [message["content"] for message in told["messages"]] == ["one two ", "three", "three ", "repeat"]


def test_items_of_an_input_are_taken_back_by_their_ids_too(client):
    first = client.responses.create(model="fake", input="one")
    (item,) = client.responses.input_items.list(first.id).data
    given: Any = [{"id": item.id}, {"role": "user", "content": "repeat"}]
    told = repeated(client.responses.create(model="fake", input=given))
    assert [message["content"] for message in told["messages"]] == ["one", "repeat"]


def test_a_reference_to_an_unknown_item_is_not_found(client):
    deleted = client.responses.create(model="fake", input="one")
    client.responses.delete(deleted.id)
    unstored = client.responses.create(model="fake", input="one", store=False)
    for item_id in ("msg_unknown", deleted.output[0].id, unstored.output[0].id):
        given: Any = [{"type": "item_reference", "id": item_id}]
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError, match=f"Item with id '{item_id}' not found") as caught:
                client.responses.create(model="fake", input=given, stream=stream)
            assert caught.value.param == "input"


def test_items_of_another_key_are_not_found():
    with served(answer, keys=("one", "two")) as api, connected(api, "one") as mine, connected(api, "two") as other:
        first = mine.responses.create(model="fake", input="one")
        assert mine.responses.create(model="fake", input=referred(first)).id
        with pytest.raises(openai.NotFoundError):
            other.responses.create(model="fake", input=referred(first))


def test_the_items_of_an_input_are_listed_in_pages(api, client):
    given: Any = [{"role": "user", "content": str(number)} for number in range(5)]
    response = client.responses.create(model="fake", input=given)
    for order, texts in (("asc", "01234"), ("desc", "43210")):
        listed = client.responses.input_items.list(response.id, order=order, limit=2)
        assert [item.content for item in listed] == list(texts)  # the client asks for all pages
        assert len(listed.data) == 2
    first = client.responses.input_items.list(response.id).data
    assert (len({item.id for item in first}), first[0].content) == (5, "4")
    for wrong in ("limit=0", "limit=x", "order=up", "after=msg_x"):
        assert api.request("GET", f"/v1/responses/{response.id}/input_items?{wrong}").status == 400
    assert api.request("GET", f"/v1/responses/{response.id}?stream=true").status == 400


def test_a_client_cannot_see_the_responses_of_another_key():
    with served(answer, keys=("one", "other")) as api, connected(api, "one") as one, connected(api, "other") as other:
        response = one.responses.create(model="fake", input="secret")
        for use in (other.responses.retrieve, other.responses.delete):
            with pytest.raises(openai.NotFoundError):
                use(response.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            other.responses.create(model="fake", input="repeat", previous_response_id=response.id)
        assert one.responses.retrieve(response.id).output_text == "secret "


def test_the_oldest_responses_are_dropped():
    with served(answer, stored_responses=2) as api, connected(api) as client:
        first, second, third = (client.responses.create(model="fake", input=str(number)) for number in range(3))
        with pytest.raises(openai.NotFoundError, match="dropped for newer ones"):
            client.responses.retrieve(first.id)
        assert client.responses.retrieve(second.id).id == second.id
        assert client.responses.retrieve(third.id).id == third.id


def stored(size: int, owner: bytes = b"") -> StoredResponse:
    empty = StoredResponse(owner=owner, document=b"", items="", messages=()).size
    return StoredResponse(owner=owner, document=b"x" * (size - empty), items="", messages=())


def test_the_store_keeps_its_bounds():
    store = ResponseStore(100, 10_000)
    for number in range(10):
        assert store.add(str(number), stored(4000))
        store.find("0", b"")
    assert (len(store), store.size) == (2, 8000)
    assert store.find("0", b"")  # it was used all the time
    assert not store.add("large", stored(10_001))
    assert not store.remove("0", b"another")
    assert store.remove("0", b"")
    assert (len(store), store.size) == (1, 4000)
    assert not ResponseStore(0, 10_000).add("any", stored(4000))


def test_structures_reach_the_model(client):
    class City(BaseModel):
        name: str

    schema: Any = {"type": "object", "properties": {"name": {"type": "string"}}}
    text: Any = {"format": {"type": "json_schema", "name": "city", "schema": schema}}
    told = client.responses.create(
        model="fake", input="sampling", text=text, max_output_tokens=7, extra_body={"top_k": 3}
    )
    assert json.loads(told.output_text) == {"max_tokens": 7, "top_k": 3, "structured_outputs": {"json": schema}}
    assert told.text.format.name == "city"
    parsed = client.responses.parse(model="fake", input='{"name":"Oslo"}', text_format=City)
    assert parsed.output_parsed == City(name="Oslo")


def test_an_answer_that_reached_its_limit_is_incomplete(client):
    response = client.responses.create(model="fake", input="long")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    last = list(client.responses.create(model="fake", input="long", stream=True))[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


def test_an_answer_without_output_is_an_empty_message(client):
    assert client.responses.create(model="fake", input="nothing").output_text == ""
    kinds = [event.type for event in client.responses.create(model="fake", input="nothing", stream=True)]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


def test_errors_before_and_within_a_stream_are_reported(client):
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="no luck"):
            client.responses.create(model="fake", input="fail", stream=stream)
    *_, last = client.responses.create(model="fake", input="fail later", stream=True)
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert (last.response.error.code, last.response.error.message) == ("server_error", "no luck")
    assert last.response.output[0].content[0].text == "begun "
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(last.response.id)


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"input": []}, "`input` must hold at least one item", "input"),
        ({"input": 5}, "`input` must be a string or an array of items", "input"),
        ({"input": [{"type": "item_reference"}]}, "`input\\[0\\].id` must be a string", "input[0].id"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "call_id` must be a string", "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "'input_file' that is not supported", "input[0].content"),
        ({"input": [{"content": "x"}]}, "`input\\[0\\].type` None is not supported", "input[0].type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "`tool_choice` requires the tool 'web_search', which only OpenAI's own service runs", "tool_choice"),
        ({"tools": ["web_search"]}, "`tools\\[0\\]` must be an object with a `type`", "tools[0]"),
        ({"tools": [{"type": "custom"}]}, "`tools\\[0\\].name` must be a string", "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "`tools\\[0\\].tools` must be an array", "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}]}, "`tools\\[0\\].tools\\[0\\].name` must be a string", "tools[0].tools[0].name"),
        ({"tool_choice": "always"}, "`tool_choice` must be", "tool_choice"),
        ({"background": True}, "`background` is not supported", "background"),
        ({"truncation": "always"}, "`truncation` must be disabled or auto", "truncation"),
        ({"conversation": "conv_1"}, "`conversation` is not supported: use `previous_response_id`", "conversation"),
        ({"text": {"format": {"type": "xml"}}}, "`text.format` must be", "text.format"),
        ({"top_logprobs": 3}, "`top_logprobs` can only be used with", "top_logprobs"),
        ({"temprature": 1}, "did you mean `temperature`", "temprature"),
    ],
)  # fmt: skip
def test_invalid_requests_are_rejected(client, fields, message, param):
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.responses.create(model="fake", input="x", extra_body=fields)
    assert caught.value.param == param


def test_unknown_methods_and_models_are_rejected(api, client):
    assert api.request("PUT", "/v1/responses/x").status == 405
    assert api.request("GET", "/v1/responses").status == 405
    with pytest.raises(openai.NotFoundError, match="The model `none` does not exist"):
        client.responses.create(model="none", input="x")


def test_a_long_input_is_read_beside_the_loop_and_continued(client):
    text = "word " * 60_000
    first = client.responses.create(
        model="fake", input=[{"role": "user", "content": text}, {"role": "user", "content": "x"}]
    )
    told = repeated(client.responses.create(model="fake", input="repeat", previous_response_id=first.id))
    assert told["messages"][0]["content"] == text


def test_log_probabilities_belong_to_the_text():
    def likely(_, request, sink):
        token = {"7": {"logprob": -0.5, "rank": 1, "decoded_token": "hi"}}
        sink.send(said("hi", logprobs=[json.dumps([token])]), True)

    with served(likely) as api, connected(api) as client:
        asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
        (token,) = client.responses.create(model="fake", input="x", **asked).output[0].content[0].logprobs
        assert (token.token, token.logprob, token.top_logprobs[0].token) == ("hi", -0.5, "hi")


def test_a_response_that_is_complete_cannot_be_cancelled(client):
    response = client.responses.create(model="fake", input="one")
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_unknown")
