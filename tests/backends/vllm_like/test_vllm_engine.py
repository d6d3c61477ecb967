"""What concerns vLLM alone: adapters, its processes, its end. The engine is a stand-in with vLLM's interface."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import openai
import psutil
import pytest
from support.server import ServerProcess
from support.waiting import until

from .asking import Stream, ask, events, joined, refusal
from .conftest import add_model

MODELS = ("fake", "thoughtful", "llama")
Serve = Callable[..., ServerProcess]
UPSTREAM = """
max_batch_size: 0
model_transaction_policy { decoupled: True }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
"""The tensors that configurations for Triton's vLLM backend name: a prompt has to be there."""


def guest_pid(server: ServerProcess, model: str) -> int:
    return int(re.findall(rf"'{model}_0(?:_0)?' is ready: pid (\d+)", server.log)[-1])


def guest(server: ServerProcess, model: str) -> psutil.Process:
    return psutil.Process(guest_pid(server, model))


def core(server: ServerProcess, model: str) -> psutil.Process:
    """The process that does the work."""

    def found() -> list[psutil.Process]:  # it may not have begun its program yet
        return [child for child in guest(server, model).children() if "time.sleep" in " ".join(child.cmdline())]

    (process,) = until(found, "vLLM's process")
    return process


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_requests_name_an_adapter_of_multi_lora_json(server: ServerProcess):
    answer = ask(server, "fake", text_input="hello", lora_name="shouting", max_tokens=2, exclude_input_in_output=True)
    name, path = answer["text_output"].split()
    assert name == "shouting"
    assert Path(path).is_dir()  # relative to the version's directory


def test_adapters_that_are_not_there_are_refused(server: ServerProcess):
    assert refusal(server, "fake", text_input="hello", lora_name="other") == (
        "Error generating stream: LoRA other is not supported, we currently support ['shouting']"
    )
    assert refusal(server, "llama", text_input="hello", lora_name="other") == (
        "Error generating stream: LoRA feature is not enabled."
    )


def test_structure_is_passed_on(server: ServerProcess):
    wish = json.dumps({"structured_outputs": json.dumps({"choice": ["yes", "no"]}), "max_tokens": 1})
    answer = ask(server, "fake", text_input="hello", sampling_parameters=wish, exclude_input_in_output=True)
    assert "choice=['yes', 'no']" in answer["text_output"]


def test_refusals_of_vllm_keep_its_error_text(server: ServerProcess):
    assert refusal(server, "fake", text_input="hello", temperature=-1).startswith("Error generating stream: ")
    error = refusal(server, "fake", text_input="hello", repetition_penalty=2)
    assert "repetition_penalty" in error


def test_former_sampling_parameters_with_default_values_are_omitted(server: ServerProcess):
    says_nothing = {"use_beam_search": False, "early_stopping": False, "length_penalty": 1, "best_of": 1}
    answer = ask(server, "fake", text_input="hello", max_tokens=1, **says_nothing)
    assert answer["text_output"].startswith("hello")
    assert "use_beam_search" in refusal(server, "fake", text_input="hello", use_beam_search=True)


def test_errors_of_the_client_and_of_the_server_have_different_statuses(server: ServerProcess):
    """Recent releases have errors of their own for wrong requests, which are no ValueErrors, and wrap others in silence."""
    statuses = {}
    for prompt in ("word " * 5000, "BUSY", "FAIL"):
        given = json.dumps({"model": "fake", "prompt": prompt, "max_tokens": 2})
        connection = http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=30)  # type: ignore[attr-defined]
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", given)
            reply = connection.getresponse()
            statuses[reply.status] = json.load(reply)["error"]["message"].removeprefix("Error generating stream: ")
    assert statuses == {
        400: (
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens."
        ),
        503: "The engine is currently busy.",
        500: "out of blocks",
    }


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = '<call>{"name":"weather","arguments":{"city":"Bern"}}</call>'


def called(client, prompt, **options):
    """The answer of a model that repeats the prompt, up to END."""
    given = {"tools": TOOLS, "stop": ["END"], "max_tokens": 50, **options}
    return client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": f"{prompt} END"}], **given
    )


def test_tool_calls_are_extracted_by_the_parser_of_model_json(client):
    (choice,) = called(client, f"well {CALL} {CALL}").choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == " <user> well "
    assert [(call.id, call.function.name) for call in choice.message.tool_calls] == [
        ("call-0", "weather"),
        ("call-1", "weather"),
    ]
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Bern"}


def test_tool_calls_of_a_stream_come_in_parts_with_what_the_parser_held_back(client):
    chunks = [chunk.choices[0] for chunk in called(client, f"well {CALL}", stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == " <user> well "
    parts = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [part.function.name for part in parts if part.function.name] == ["weather"]
    assert "".join(part.function.arguments or "" for part in parts) == '{"city": "Bern"}'
    assert chunks[-1].finish_reason == "tool_calls"


def test_text_without_a_call_or_without_tools_stays_text(client):
    for options in ({}, {"stream": True}):
        answer = called(client, "no call", **options)
        choices = [chunk.choices[0] for chunk in answer] if options else answer.choices
        texts = [(one.delta if options else one.message).content or "" for one in choices]
        assert "".join(texts) == " <user> no call"
        assert choices[-1].finish_reason == "stop"
    for unwanted in ({"tools": []}, {"tool_choice": "none"}):
        (choice,) = called(client, CALL, **unwanted).choices
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        assert choice.message.content == f" <user> {CALL}"


def test_tools_without_a_name_are_an_error_of_the_client(server: ServerProcess):
    conversation = json.dumps({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]})
    assert refusal(server, "fake", messages=conversation) == (
        "Error generating stream: 'tools' must be a list of objects with a 'function', which has a 'name'"
    )


def test_a_conversation_that_a_template_refuses_is_an_error_of_the_client(server: ServerProcess):
    messages = json.dumps([{"role": "assistant", "content": "hi"}])
    assert refusal(server, "fake", messages=messages) == (
        "Error generating stream: the chat template rejected the conversation: Conversation roles must alternate"
    )


def test_invalid_images_are_refused(server: ServerProcess):
    assert "element 0 of input 'image' is not valid base64" in refusal(server, "fake", text_input="hello", image="?")


def test_vectors_are_those_of_encode(server: ServerProcess):
    wish = json.dumps({"input": "one two three", "pooling_params": {"dimensions": 4}})
    answer = ask(server, "fake", embedding_request=wish)
    assert json.loads(answer["text_output"]) == [3, 4, 5, 6]


def test_keys_of_other_releases_are_told_once(server: ServerProcess):
    told = [line for line in server.log.splitlines() if "the engine vllm ignores these keys" in line]
    assert len(told) == 1
    assert "disable_log_requests" in told[0]
    assert "gpu_memory_utilization" not in told[0]


def test_repositories_for_the_vllm_backend_are_served_as_they_are(serve: Serve, client: openai.OpenAI):
    server = serve("upstream", {"model": "some/model"}, UPSTREAM, backend="vllm")
    answer = ask(server, "upstream", text_input="hello", stream=False, max_tokens=1)
    assert answer["text_output"] == "hello hello"
    talk = client.chat.completions.create(
        model="upstream", messages=[{"role": "user", "content": "hello"}], max_tokens=1
    )
    assert talk.choices[0].message.content
    assert client.embeddings.create(model="upstream", input="one two").data[0].embedding


def segments(process: psutil.Process) -> set[Path]:
    """Shared memory of `multiprocessing` that a process has mapped."""
    return {Path(each.path) for each in process.memory_maps() if each.path.startswith("/dev/shm/psm_")}  # type: ignore[attr-defined] # fmt: skip


def test_a_killed_server_leaves_no_process_and_shared_memory_that_the_next_one_removes(tmp_path: Path, engines: Path):
    """The guest's whole tree is killed, with Python's resource tracker, which would remove it otherwise."""
    add_model(tmp_path / "models", engines, "fake", {"model": "some/parallel-model"})
    killed = ServerProcess(tmp_path / "models", work=tmp_path)
    killed.start()
    try:
        killed.wait_health("ready")
        first = guest(killed, "fake")
        (left,) = segments(first)
        for process in [*first.children(recursive=True), first]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        until(lambda: guest_pid(killed, "fake") != first.pid, "another guest to start")
        assert not left.exists()
        second, its_core = guest(killed, "fake"), core(killed, "fake")
        (left,) = segments(second)
        os.kill(killed.pid, signal.SIGKILL)
        until(lambda: is_gone(second) and is_gone(its_core), "its guest and vLLM's process to end with the server")
    finally:
        killed.kill()
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        assert not left.exists()
        (own,) = segments(guest(server, "fake"))
    assert not own.exists()


def test_a_dead_engine_ends_its_guest_with_the_reason_and_is_started_again(serve: Serve):
    server = serve("dying", {"model": "some/model"})
    first = guest(server, "dying").pid
    with Stream(server, "dying", text_input="hello", max_tokens=100000) as other:
        reader = iter(other)
        next(reader)
        error = refusal(server, "dying", text_input="CRASH", max_tokens=5)
        assert error.startswith("Error generating stream: EngineCore encountered an issue")
        *_, last = reader
    assert "exited with status 70" in last["error"]
    assert "the engine is dead: EngineCore encountered an issue" in last["error"]
    assert joined(events(server, "dying", text_input="hello", max_tokens=2)) == " hello hello"
    assert guest(server, "dying").pid != first


def test_a_model_whose_engine_is_not_healthy_is_not_ready(serve: Serve):
    server = serve("ill", {"model": "some/model"})
    assert server.get("/v2/models/ill/ready").status == 200
    core(server, "ill").kill()
    server.wait_for(lambda: server.get("/v2/models/ill/ready").status == 400, "the model to be not ready")
    server.wait_log("the engine of model 'ill' is unhealthy")


CHECK = 'parameters { key: "ENABLE_VLLM_HEALTH_CHECK" value { string_value: "true" } }'


def test_health_checks_unload_a_model_with_a_dead_engine_where_models_may_be_unloaded(serve: Serve):
    server = serve("checked", {"model": "some/model"}, CHECK)
    assert ask(server, "checked", text_input="hello", max_tokens=1)
    core(server, "checked").kill()
    server.wait_for(lambda: server.get("/v2/models/checked/ready").status == 400, "the model to be not ready")
    reply = server.post("/v2/models/checked/generate", {"text_input": "hello"})
    assert "Model is unavailable due to unhealthy vLLM engine" in reply.error
    server.wait_log("unloaded 'checked'")


def test_health_checks_restart_a_model_with_a_dead_engine_where_models_may_not_be_unloaded(
    tmp_path: Path, engines: Path
):
    add_model(tmp_path / "models", engines, "fake", {"model": "some/model"}, CHECK)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        core(server, "fake").kill()
        server.wait_for(lambda: server.get("/v2/models/fake/ready").status == 400, "the model to be not ready")
        reply = server.post("/v2/models/fake/generate", {"text_input": "hello"})
        assert "Model is unavailable due to unhealthy vLLM engine" in reply.error
        assert ask(server, "fake", text_input="hello", max_tokens=1)["text_output"] == "hello hello"


def thoughtful(client, words: str, **options):
    """The answer of a model that says these words after those of its template's prompt."""
    count = len(f"<user> {words}".split())
    message = {"role": "user", "content": words}
    return client.chat.completions.create(model="thoughtful", messages=[message], max_tokens=count, **options)


def test_a_reasoning_parser_of_vllm_divides_reasoning_from_the_answer(client):
    message = thoughtful(client, "let me see ENOUGH it is four").choices[0].message
    assert message.reasoning_content == message.reasoning == " <user> let me see "
    assert message.content == " it is four"
    parts = [part.choices[0].delta for part in thoughtful(client, "let me see ENOUGH it is four", stream=True)]
    assert "".join(getattr(part, "reasoning_content", None) or "" for part in parts) == " <user> let me see"
    assert "".join(getattr(part, "reasoning", None) or "" for part in parts) == " <user> let me see"
    assert "".join(part.content or "" for part in parts) == " it is four"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_behind_reasoning_are_called(client, stream):
    call = '<call>{"name":"f","arguments":{"a":1}}</call>'
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    got = thoughtful(client, f"let me see {call} ENOUGH {call}", tools=tools, stream=stream)
    if stream:
        deltas = [part.choices[0].delta for part in got]
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        reasoning = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    else:
        calls, reasoning = got.choices[0].message.tool_calls, got.choices[0].message.reasoning
    assert calls[0].function.name == "f"
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == {"a": 1}
    assert "<call>" in reasoning  # a call that the model has only thought of


def test_responses_and_messages_have_the_reasoning_of_vllm_too(server, client):
    response = client.responses.create(model="thoughtful", input="let me see ENOUGH yes", max_output_tokens=6)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    body = {"model": "thoughtful", "max_tokens": 6, "messages": [{"role": "user", "content": "let me see ENOUGH yes"}]}
    connection = http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/messages", json.dumps(body))
        blocks = json.loads(connection.getresponse().read())["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]


def test_an_unknown_reasoning_parser_is_an_error_that_names_the_known_ones(explicit_server, engines):
    repository = explicit_server.work / "models"
    add_model(repository, engines, "wrong", {"model": "some/model", "reasoning_parser": "thought"})
    try:
        reply = explicit_server.post("/v2/repository/models/wrong/load")
    finally:
        shutil.rmtree(repository / "wrong")
    assert "'reasoning_parser' in model.json is 'thought'; this release of vLLM has thoughts" in reply.error


def test_echo_with_logprobs_has_those_of_the_prompt(client):
    answer = client.completions.create(model="fake", prompt="one two three", max_tokens=2, echo=True, logprobs=1)
    (choice,) = answer.choices
    found = choice.logprobs
    assert choice.text == "one two three one two"
    assert found.token_logprobs[:3] == [None, -0.25, -0.5]
    assert len(found.tokens) == len(found.text_offset) == len(found.top_logprobs) == 5
    only = client.completions.create(model="fake", prompt="one two three", max_tokens=0, echo=True, logprobs=1)
    assert only.choices[0].text == "one two three"
    assert only.choices[0].logprobs.token_logprobs == [None, -0.25, -0.5]
    assert (only.usage.prompt_tokens, only.usage.completion_tokens) == (3, 0)


def test_a_prompt_of_token_ids_is_echoed_as_text(client, server):
    known = client.completions.create(model="fake", prompt="these are words", max_tokens=1, echo=True, logprobs=0)
    assert known.choices[0].logprobs.tokens[0] == "these"
    tokens = json.loads(_posted(server, "/tokenize", {"model": "fake", "prompt": "these are words"}))["tokens"]
    answer = client.completions.create(model="fake", prompt=tokens, max_tokens=0, echo=True)
    assert answer.choices[0].text == "these are words"
    streamed = client.completions.create(model="fake", prompt=tokens, max_tokens=1, echo=True, stream=True)
    assert "".join(part.choices[0].text for part in streamed) == "these are words these"


def _posted(server: ServerProcess, path: str, body: object) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body))
        return connection.getresponse().read()


def test_vllm_gets_the_priority_the_salt_and_the_transfer_of_a_request(client):
    extra = {"priority": -3, "cache_salt": "s", "kv_transfer_params": {"do_remote_decode": True}}
    answer = client.completions.create(model="fake", prompt="PASSED on", max_tokens=3, extra_body=extra)
    assert answer.choices[0].text == (" priority=-3 salt=s extra={'kv_transfer_params': {'do_remote_decode': True}}")
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    # What a router sends to the server that continues with the cache.
    assert answer.model_extra["kv_transfer_params"] == {"remote_engine_id": "e1", "asked": {"do_remote_decode": True}}


def test_the_header_of_routers_chooses_the_replica(client):
    given = {"model": "fake", "prompt": "PASSED on", "max_tokens": 4}
    for headers, rank in (({"X-data-parallel-rank": "2"}, 2), ({}, None)):
        assert client.completions.create(**given, extra_headers=headers).choices[0].text.endswith(f" rank={rank}")
    with pytest.raises(openai.BadRequestError, match="X-data-parallel-rank must be an integer of 0 or more, not 'two'"):
        client.completions.create(**given, extra_headers={"X-data-parallel-rank": "two"})
    with pytest.raises(openai.BadRequestError, match="does not support the sampling parameter 'data_parallel_rank'"):
        client.completions.create(model="llama", prompt="x", extra_headers={"X-data-parallel-rank": "1"})


def test_what_vllm_measures_has_its_names_and_labels(server, client):
    """Dashboards and autoscalers for vLLM find every metric, also those that only its release knows."""
    client.completions.create(model="fake", prompt="one two three", max_tokens=2)
    own = 'engine="0",model="fake",model_name="fake"'

    def value(name: str, more: str = "") -> float:
        wanted = {*own.split(","), 'version="1"', *filter(None, [more])}
        found = [re.fullmatch(rf"{re.escape(name)}\{{(.*)\}} (.*)", line) for line in _page(server)]
        return next((float(one[2]) for one in found if one is not None and set(one[1].split(",")) == wanted), 0.0)

    until(lambda: value("vllm:request_success_total", 'finished_reason="length"') > 0, "the request to be counted")
    assert value("vllm:prefix_cache_queries_total") >= 3
    until(lambda: value("vllm:kv_cache_usage_perc") == 0, "the cache to be free")
    first = "vllm:time_to_first_token_seconds"
    assert value(f"{first}_bucket", 'le="0.01"') == 0
    # Each in a reading of its own, while requests of earlier tests may still be counted.
    until(lambda: value(f"{first}_bucket", 'le="0.1"') == value(f"{first}_count") > 0, "the first tokens")

    def tokens() -> float:
        return value("vllm:generation_tokens_total") + value("vllm:prompt_tokens_total")

    until(lambda: value("vllm:iteration_tokens_total_sum") == tokens() > 0, "the tokens of each step")
    page = _page(server)
    assert 'vllm:cache_config_info{block_size="16",engine="0",model="fake",version="1"} 1' in page
    assert not any(line.startswith("other_info") for line in page)
    # Each once: a sum over all of a name must not count requests twice.
    families = [line for line in page if line.startswith("# TYPE vllm:")]
    assert len(families) == len(set(families))
    assert sum(line.startswith("vllm:prompt_tokens_total") and 'model="fake"' in line for line in page) == 1


def test_what_a_tokenizer_is_like_is_told_without_paths(server):
    info = json.loads(_got(server, "/tokenizer_info?model=fake"))
    assert (info["tokenizer_class"], info["eos_token"], info["pad_token"]) == ("Tokenizer", "<unk>", None)
    assert info["chat_template"] == "the template of the tokenizer"
    assert (info["model_max_length"], "odd" in info) == (4096, True)
    assert "/a/path" not in json.dumps(info)


def test_a_model_sleeps_and_wakes_up(serve):
    serve("awake", {"model": "some/model"})
    server = serve("sleepy", {"model": "some/model", "enable_sleep_mode": "true"})
    body = {"model": "sleepy", "prompt": "one", "max_tokens": 1}
    with Stream(server, "sleepy", text_input="hello", max_tokens=100000) as running:
        reader = iter(running)
        next(reader)
        assert _posted(server, "/sleep?model=sleepy", {}) == b""
        *_, last = reader
        assert last.get("finish_reason", "abort") == "abort"
    assert json.loads(_got(server, "/is_sleeping?model=sleepy")) == {"is_sleeping": True}
    error = json.loads(_posted(server, "/v1/completions", body))["error"]
    assert error["message"].endswith("the model is asleep; wake it up by POST /wake_up")
    assert server.get("/v2/models/sleepy/ready").status == 200
    assert _posted(server, "/wake_up?model=sleepy&tags=weights&tags=kv_cache", {}) == b""
    assert json.loads(_got(server, "/is_sleeping?model=sleepy")) == {"is_sleeping": False}
    assert json.loads(_posted(server, "/v1/completions", body))["choices"][0]["text"] == " one"
    for path in ("/sleep?model=awake", "/wake_up?model=awake"):
        error = json.loads(_posted(server, path, {}))["error"]
        assert "needs the engine vllm and 'enable_sleep_mode' in its model.json" in error["message"]
    assert json.loads(_got(server, "/is_sleeping?model=awake")) == {"is_sleeping": False}
    error = json.loads(_posted(server, "/sleep", {}))["error"]
    assert re.fullmatch(
        r"you must provide a `model` parameter: \d+ models here sleep: .*\bawake\b.*\bsleepy\b.*", error["message"]
    )
    assert refusal(server, "sleepy", engine_request='{"sleep": {"level": 7}}').startswith(
        "Error generating stream: 'engine_request' must be one of"
    )


def _page(server: ServerProcess) -> list[str]:
    connection = http.client.HTTPConnection(*server.metrics_url.split(":"), timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode().splitlines()


def _got(server: ServerProcess, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=30)  # type: ignore[attr-defined]
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read()


def test_an_adapter_is_chosen_by_a_field_too(client):
    answer = client.completions.create(model="fake", prompt="x", max_tokens=1, extra_body={"lora_name": "shouting"})
    assert answer.choices[0].text == " shouting"


@pytest.mark.parametrize("stream", [False, True])
def test_messages_name_the_stop_sequence_that_has_ended_them(server, stream):
    body = {"model": "fake", "max_tokens": 50, "messages": [{"role": "user", "content": "one two"}], "stream": stream}
    for stops, reason, sequence in ((["two", "three"], "stop_sequence", "two"), (["three"], "max_tokens", None)):
        got = _posted(server, "/v1/messages", {**body, "stop_sequences": stops}).decode()
        document = json.loads(re.findall(r'"delta":(\{"stop_reason".*?\})', got)[0] if stream else got)
        assert (document["stop_reason"], document["stop_sequence"]) == (reason, sequence)
