"""What llama.cpp does beyond the rules that all engines keep: structure, tools, vectors, many requests at a time, its end."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.server import ServerProcess
from support.waiting import until

from .asking import Background, Stream, ask, events, joined, metric, refusal
from .conftest import add_model

MODELS = ("llama", "vectors", "adapted")
PROMPT = "hello the other world"
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["age", "ok"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop"}},
]


def structured(**structure: object) -> str:
    return json.dumps({"structured_outputs": structure, "max_tokens": 400, "temperature": 0.5, "seed": 1})


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
def test_answers_follow_a_json_schema(server: ServerProcess, schema: object):
    parts = events(server, "llama", text_input=PROMPT, sampling_parameters=structured(json=schema))
    made = json.loads(joined(parts))
    assert set(made) == {"age", "ok"}
    assert 0 <= made["age"] <= 99


def test_answers_are_one_of_the_choices(server: ServerProcess):
    answer = ask(
        server,
        "llama",
        text_input=PROMPT,
        exclude_input_in_output=True,
        sampling_parameters=structured(choice=["yes", "no"]),
    )
    assert answer["text_output"] in {"yes", "no"}


def test_answers_follow_a_grammar(server: ServerProcess):
    wish = structured(grammar='root ::= "<" [0-9] [0-9] ">"')
    answer = ask(server, "llama", text_input=PROMPT, exclude_input_in_output=True, sampling_parameters=wish)
    assert re.fullmatch(r"<\d\d>", answer["text_output"])


@pytest.mark.parametrize(
    ("structure", "told"),
    [
        ({"json": {"type": "text"}}, "cannot use the JSON schema: 'type' at # has the unknown type 'text'"),
        (
            {"json": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
            "'uniqueItems' at # is not supported by the engine xllamacpp",
        ),
        (
            {"json": {"properties": {"a": {"$ref": "#/$defs/b"}}}},
            "'$ref' at #/properties/a does not resolve: '#/$defs/b'",
        ),
        ({"json": "{"}, "the JSON schema is not valid JSON"),
        ({"regex": "a(?=b)"}, "the engine xllamacpp does not support the 'regex' \"a(?=b)\""),
        ({"regex": "(a|^b)"}, "an anchor that is not at its start or end"),
        ({"regex": "("}, "'regex' must be a regular expression, not \"(\""),
        ({"regex": "a", "json_object": True}, "it has 'regex', 'json_object'"),
        ({"grammar": "root: nonsense"}, "failed to parse grammar"),
    ],
)
def test_structure_that_would_not_be_followed_is_refused(server: ServerProcess, structure: dict, told: str):
    error = refusal(server, "llama", text_input=PROMPT, sampling_parameters=structured(**structure))
    assert error.startswith("Error generating stream: ")
    assert told in error


@pytest.mark.parametrize("pattern", ["[ab]{2}/[0-9]{3}", "^(one|two)$", "[$^]x", '"[a-c]+"', r"\d\.\$"])
def test_a_regular_expression_binds_prompts_and_conversations(server: ServerProcess, pattern: str):
    structure = structured(regex=pattern)
    text = ask(server, "llama", text_input=PROMPT, sampling_parameters=structure, exclude_input_in_output=True)
    assert re.fullmatch(pattern, text["text_output"]), text
    answer = ask(server, "llama", messages=conversation(tool_choice="none"), sampling_parameters=structure)
    assert re.fullmatch(pattern, answer["text_output"]), answer


def conversation(**options: object) -> str:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **options})


def test_a_named_tool_is_called(server: ServerProcess):
    choice = {"type": "function", "function": {"name": "weather"}}
    given = {"messages": conversation(tool_choice=choice), "max_tokens": 300, "temperature": 0.5, "seed": 1}
    parts = events(server, "llama", **given, return_message=True, return_finish_reason=True)
    assert parts[-1]["finish_reason"] == "tool_calls"
    assert joined(parts) == ""
    calls = [call for part in parts for call in json.loads(part["message"]).get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "weather"
    assert calls[0]["id"].startswith("call_")
    assert set(json.loads("".join(call["function"]["arguments"] for call in calls))) == {"age", "ok"}
    whole = json.loads(ask(server, "llama", **given, return_message=True)["message"])
    assert whole["tool_calls"][0]["function"]["name"] == "weather"
    assert whole["content"] is None


def test_some_tool_is_called_where_that_is_required(server: ServerProcess):
    given = {"messages": conversation(tool_choice="required"), "max_tokens": 400, "temperature": 0.5, "seed": 1}
    answer = ask(server, "llama", **given, return_message=True, return_finish_reason=True)
    (call,) = json.loads(answer["message"])["tool_calls"]
    assert call["function"]["name"] in {"weather", "stop"}
    json.loads(call["function"]["arguments"])
    assert answer["finish_reason"] == "tool_calls"


def test_eight_streams_run_at_the_same_time(server: ServerProcess):
    given = {"max_tokens": 200, "temperature": 0, "ignore_eos": True, "return_num_output_tokens": True}
    streams = [Stream(server, "llama", text_input=f"{PROMPT} {number}", **given) for number in range(8)]
    try:
        readers = [iter(stream) for stream in streams]
        firsts = [next(reader) for reader in readers]  # none of them has to end before another begins
        rests = [list(reader) for reader in readers]
    finally:
        for stream in streams:
            stream.leave()
    for first, rest in zip(firsts, rests, strict=True):
        assert first["num_output_tokens"] + sum(part["num_output_tokens"] for part in rest) == 200


def test_a_cancelled_stream_makes_room_for_a_waiting_request(server: ServerProcess):
    """`vectors` runs two requests at a time; a third one waits."""
    long = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
    streams = [Stream(server, "vectors", text_input=PROMPT, **long) for _ in range(2)]
    firsts = [next(iter(stream)) for stream in streams]
    assert all(firsts)
    waiting = Background(ask, server, "vectors", text_input=PROMPT, max_tokens=2)
    for stream in streams:
        stream.leave()
    assert waiting.result()["text_output"].startswith(PROMPT)


def test_a_request_that_is_cancelled_while_it_waits_is_ended_at_once(server: ServerProcess):
    """`llama` runs eight requests at a time; none of them has to end before the ninth is let go."""

    def ended() -> int:
        (model,) = server.get("/v2/models/llama/stats").json()["model_stats"]
        return int(model["inference_stats"]["success"]["count"])

    long = {"max_tokens": 1900, "temperature": 0, "ignore_eos": True}
    with contextlib.ExitStack() as stack:
        streams = [Stream(server, "llama", text_input=f"{PROMPT} {number}", **long) for number in range(8)]
        for stream in streams:
            stack.callback(stream.leave)
        assert all(next(iter(stream)) for stream in streams)
        host, port = server.http_url.split(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30)) as waiting:
            waiting.request("POST", "/v2/models/llama/generate_stream", json.dumps({"text_input": PROMPT, **long}))
            refusal(server, "llama", max_tokens=1)  # the model has taken the one before, too
            before = ended()
        until(lambda: ended() > before, "the waiting request to end")
        assert ended() == before + 1, "all of the eight still run"


def test_text_is_the_same_with_and_without_numbers_of_tokens(server: ServerProcess):
    """Chunks with nothing but text are read in a way of their own; this text has some that JSON escapes."""
    for given in ({"text_input": PROMPT}, {"messages": '[{"role": "user", "content": "hi"}]'}):
        wish = {**given, "max_tokens": 300, "temperature": 1.2, "seed": 5, "ignore_eos": True}
        plain = events(server, "llama", **wish)
        told = events(server, "llama", **wish, return_num_output_tokens=True)
        assert joined(plain) == joined(told)
        assert any(character < " " for character in joined(plain))
        assert len(plain) > 100


def test_answers_without_a_limit_end_with_the_context(server: ServerProcess):
    wish = json.dumps({"max_tokens": None, "temperature": 0, "ignore_eos": True})
    counts = {"return_num_input_tokens": True, "return_num_output_tokens": True, "return_finish_reason": True}
    answer = ask(server, "adapted", text_input=PROMPT, sampling_parameters=wish, **counts)
    assert answer["finish_reason"] == "length"
    assert answer["num_input_tokens"] + answer["num_output_tokens"] == pytest.approx(256, abs=2)


def vectors(server: ServerProcess, given: object, **pooling: object) -> list[list[float]]:
    wish = json.dumps({"input": given, "pooling_params": pooling})
    made = ask(server, "vectors", embedding_request=wish)["text_output"]
    return [json.loads(text) for text in ([made] if isinstance(made, str) else made)]


def test_vectors_are_returned_for_texts_and_for_tokens(server: ServerProcess):
    (one,) = vectors(server, "hello the world")
    assert len(one) == 64
    assert math.hypot(*one) == pytest.approx(1, abs=1e-3)
    several = vectors(server, ["hello the world", "other"])
    assert several[0] == pytest.approx(one, abs=1e-2)
    assert len(vectors(server, [1, 2, 3])) == 1
    (short,) = vectors(server, "hello the world", dimensions=8)
    assert len(short) == 8
    assert math.hypot(*short) == pytest.approx(1, abs=1e-3)


def test_vectors_say_how_many_tokens_they_took(server: ServerProcess):
    answer = ask(server, "vectors", embedding_request='{"input": "hello"}', return_num_input_tokens=True)
    assert answer["num_input_tokens"] > 1


@pytest.mark.parametrize(
    ("model", "wish", "told"),
    [
        ("vectors", "{", "'embedding_request' is not valid JSON"),
        ("vectors", '{"text": 1}', "'embedding_request' must be a JSON object with 'input'"),
        ("vectors", '{"input": [{}]}', "'input' must be a string, a list of strings, a list of token ids"),
        ("vectors", '{"input": "a", "pooling_params": {"dimensions": 99}}', "the model's vectors have 64"),
        ("llama", '{"input": "a"}', "this model does not support embeddings"),
    ],
)
def test_wrong_requests_for_vectors_are_refused(server: ServerProcess, model: str, wish: str, told: str):
    assert told in refusal(server, model, embedding_request=wish)


def test_requests_name_an_adapter_of_multi_lora_json(server: ServerProcess):
    given = {"text_input": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    plain = ask(server, "adapted", **given)["text_output"]
    adapted = ask(server, "adapted", **given, lora_name="other")["text_output"]
    assert adapted != plain
    assert ask(server, "adapted", **given)["text_output"] == plain  # not for requests that name none
    assert "we currently support ['other']" in refusal(server, "adapted", **given, lora_name="more")


def test_long_prompts_are_read_in_pieces_and_answered_once(server: ServerProcess):
    long = "hello the other world " * 60
    for given in ({"text_input": long * 2}, {"messages": json.dumps([{"role": "user", "content": long * 2}])}):
        parts = events(server, "llama", **given, max_tokens=3, temperature=0, return_num_input_tokens=True)
        assert 1 <= len(parts) <= 4
        assert all(part["num_input_tokens"] > 500 for part in parts)


def test_keys_unknown_to_the_engine_are_reported_once(server: ServerProcess):
    told = [line for line in server.log.splitlines() if "the engine xllamacpp ignores these keys" in line]
    assert len(told) == 1
    assert "dtype" in told[0]


def test_llama_cpps_own_http_port_rejects_requests(server: ServerProcess):
    """llama.cpp listens on a port of the loopback, whether one wants it or not; without the key it does nothing."""
    pid = guest(server, "llama")
    ports = [c.laddr.port for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    for port in ports:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/completion", '{"prompt": "hello", "n_predict": 1}')
        assert connection.getresponse().status == 401
        connection.close()


def guest(server: ServerProcess, model: str) -> int:
    return int(re.findall(rf"'{model}_0(?:_0)?' is ready: pid (\d+)", server.log)[-1])


def test_a_crashed_engine_is_told_with_its_reason_and_started_again(serve: Callable[..., ServerProcess]):
    server = serve("crashing", {"model": "tiny.gguf", "max_model_len": 2048})
    with Stream(server, "crashing", text_input=PROMPT, max_tokens=2000, temperature=0, ignore_eos=True) as stream:
        reader = iter(stream)
        next(reader)
        os.kill(guest(server, "crashing"), signal.SIGSEGV)
        *_, last = reader
    assert "was killed by SIGSEGV" in last["error"]
    assert ask(server, "crashing", text_input=PROMPT, max_tokens=2)["text_output"].startswith(PROMPT)


def test_metrics_count_what_runs_and_what_waits_for_a_place(server: ServerProcess):
    """The model `llama` runs eight requests at a time."""

    def counts() -> tuple[float, float]:
        return tuple(metric(server, f"vllm:num_requests_{state}", "llama") for state in ("running", "waiting"))  # type: ignore[return-value] # fmt: skip

    refusal(server, "llama", text_input=PROMPT, min_tokens=3)
    until(lambda: counts() == (0, 0), "no request to be counted")
    given = {"max_tokens": 1900, "temperature": 0, "ignore_eos": True}
    streams = [Stream(server, "llama", text_input=PROMPT, **given) for _ in range(8)]
    try:
        for stream in streams:
            next(iter(stream))
        waiting = Background(ask, server, "llama", text_input=PROMPT, max_tokens=2)
        until(lambda: counts() == (8, 1), "the ninth to wait")
        since = time.monotonic_ns()
        assert metric(server, "nv_inference_pending_request_count", "llama") == 1, "the server counts it as well"
        until(lambda: metric(server, "vllm:avg_generation_throughput_toks_per_s", "llama") > 0, "tokens to be counted")
        assert 0 < metric(server, "vllm:kv_cache_usage_perc", "llama") <= 1
        waited = time.monotonic_ns() - since
        queued = queue_ns(server)
    finally:
        for stream in streams:
            stream.leave()
    waiting.result()
    until(lambda: counts() == (0, 0), "all requests to end")
    assert metric(server, "nv_inference_pending_request_count", "llama") == 0
    until(lambda: metric(server, "vllm:kv_cache_usage_perc", "llama") == 0, "the cache to be free")
    assert metric(server, "vllm:avg_generation_throughput_toks_per_s", "llama") == 0
    assert queue_ns(server) - queued >= waited, "it waited in the queue of the engine"


def test_a_request_is_cancelled_while_its_prompt_is_read_and_counts_as_far_as_it_was(
    serve: Callable[..., ServerProcess],
):
    settings = {"model": "tiny.gguf", "max_model_len": 2048, "max_num_seqs": 1, "max_num_batched_tokens": 2}
    server = serve("reader", settings)
    prompt = "x " * 400
    length = json.loads(posted(server, "/tokenize", json.dumps({"model": "reader", "prompt": prompt})))["count"]

    def is_running() -> bool:
        return metric(server, "vllm:num_requests_running", "reader") == 1

    def counted() -> float:
        return metric(server, "vllm:prompt_tokens_total", "reader")

    # On a busy machine the model may have read all of it before it is seen to run, or before it hears that the client
    # has left: then once more.
    for _ in range(20):
        ask(server, "reader", text_input="another", max_tokens=1)  # the prompt is not in the cache then
        before = counted()
        connection = http.client.HTTPConnection(*server.http_url.split(":"), timeout=60)
        with contextlib.closing(connection):
            asked = json.dumps({"text_input": prompt, "max_tokens": 1})
            connection.request("POST", "/v2/models/reader/generate", asked)
            until(lambda before=before: is_running() or counted() > before, "the prompt to be read")
        until(lambda: not is_running(), "the request to end")
        if 0 < counted() - before < length:
            return
    pytest.fail("in 20 trials no request was cancelled while its prompt was read")


def posted(server: ServerProcess, path: str, body: str) -> bytes:
    """The response of OpenAI's port."""
    connection = http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=30)  # type: ignore[attr-defined]
    with contextlib.closing(connection):
        connection.request("POST", path, body)
        return connection.getresponse().read()


def queue_ns(server: ServerProcess) -> int:
    """How many nanoseconds the requests of the model that have succeeded were queued together."""
    return server.get("/v2/models/llama/stats").json()["model_stats"][0]["inference_stats"]["queue"]["ns"]  # type: ignore[no-any-return] # fmt: skip


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": "broken.gguf"}, "is damaged or incomplete: its GGUF header cannot be read"),
        ({"model": "tiny.gguf", "max_num_batched_tokens": 1}, "must be an integer of 2 or more, not 1"),
    ],
)
def test_a_model_that_llama_cpp_would_abort_for_is_refused_with_the_reason(
    explicit_server: ServerProcess, engines: Path, settings: dict, reason: str
):
    """What is wrong before llama.cpp is needed: `test_model_files.py`."""
    repository = explicit_server.work / "models"
    version = add_model(repository, engines, "wrong", settings)
    (version / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    try:
        reply = explicit_server.post("/v2/repository/models/wrong/load")
    finally:
        shutil.rmtree(repository / "wrong")
    assert reply.status == 400
    assert reason in reply.error
