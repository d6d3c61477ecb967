"""What users of Triton's vLLM backend rely on, for each engine: tensors, streaming rules, texts of errors, cancelling."""

from __future__ import annotations

import json
import queue
import re
import time
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from support.server import ServerProcess
from support.waiting import until

from .asking import Background, Stream, ask, events, joined, metric, refusal

MODELS = ("llama", "fake")
PROMPT = "hello the other world"


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return request.param


def test_models_have_the_inputs_and_outputs_of_the_vllm_backend(server: ServerProcess, model: str):
    config = server.get(f"/v2/models/{model}/config").json()
    inputs = {tensor["name"]: (tensor["data_type"], tensor["dims"]) for tensor in config["input"]}
    outputs = {tensor["name"]: (tensor["data_type"], tensor["dims"]) for tensor in config["output"]}
    assert inputs["text_input"] == ("TYPE_STRING", [1])
    assert set(inputs) > {"image", "stream", "sampling_parameters", "exclude_input_in_output", "embedding_request"}
    assert {name: kind for name, (kind, _) in outputs.items()} == {
        "text_output": "TYPE_STRING",
        "finish_reason": "TYPE_STRING",
        "cumulative_logprob": "TYPE_FP32",
        "logprobs": "TYPE_STRING",
        "num_input_tokens": "TYPE_UINT32",
        "num_output_tokens": "TYPE_UINT32",
        "message": "TYPE_STRING",
        "num_cached_tokens": "TYPE_UINT32",
        "prompt_text": "TYPE_STRING",
        "prompt_logprobs": "TYPE_STRING",
        "stop_reason": "TYPE_STRING",
        "kv_transfer_params": "TYPE_STRING",
    }
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0


def test_whole_answers_begin_with_the_prompt(server: ServerProcess, model: str):
    answer = ask(server, model, text_input=PROMPT, max_tokens=5, temperature=0)
    assert answer["text_output"].startswith(PROMPT)
    assert set(answer) == {"model_name", "model_version", "text_output"}


def test_whole_answers_leave_the_prompt_out_if_told(server: ServerProcess, model: str):
    given = {"text_input": PROMPT, "max_tokens": 5, "temperature": 0}
    whole = ask(server, model, **given)["text_output"]
    alone = ask(server, model, **given, exclude_input_in_output=True)["text_output"]
    assert alone
    assert PROMPT + alone == whole


def test_streams_give_what_is_new_without_the_prompt(server: ServerProcess, model: str):
    given = {"text_input": PROMPT, "max_tokens": 12, "temperature": 0}
    whole = ask(server, model, **given, exclude_input_in_output=True)["text_output"]
    parts = events(server, model, **given)
    assert len(parts) > 4
    assert joined(parts) == whole


def test_streams_cannot_begin_with_the_prompt(server: ServerProcess, model: str):
    (error,) = events(server, model, text_input=PROMPT, exclude_input_in_output=False)
    assert error == {
        "error": "Error generating stream: When streaming, `exclude_input_in_output` = False is not allowed."
    }


def test_sampling_parameters_come_as_a_tensor_or_as_parameters_of_the_request(server: ServerProcess, model: str):
    as_parameters = ask(server, model, text_input=PROMPT, parameters={"max_tokens": 6, "temperature": 0, "seed": 3})
    tensor = json.dumps({"max_tokens": "6", "temperature": "0", "seed": 3})
    assert ask(server, model, text_input=PROMPT, sampling_parameters=tensor) == as_parameters


def test_finish_reason_is_none_until_the_last_response(server: ServerProcess, model: str):
    parts = events(server, model, text_input=PROMPT, max_tokens=6, temperature=0, return_finish_reason=True)
    assert [part["finish_reason"] for part in parts] == ["None"] * (len(parts) - 1) + ["length"]


def test_numbers_of_tokens_are_those_of_each_response(server: ServerProcess, model: str):
    counts = {"return_num_input_tokens": True, "return_num_output_tokens": True}
    given = {"text_input": PROMPT, "max_tokens": 9, "temperature": 0, "ignore_eos": True, **counts}
    whole = ask(server, model, **given)
    parts = events(server, model, **given)
    assert whole["num_output_tokens"] == 9
    assert sum(part["num_output_tokens"] for part in parts) == 9
    assert {part["num_input_tokens"] for part in parts} == {whole["num_input_tokens"]}
    assert whole["num_input_tokens"] >= len(PROMPT.split())


def test_logprobs_join_to_the_text_and_name_the_taken_token(server: ServerProcess, model: str):
    given = {"text_input": PROMPT, "max_tokens": 10, "temperature": 0, "logprobs": 2, "return_logprobs": True}
    parts = events(server, model, **given)
    entries = [entry for part in parts for entry in json.loads(part["logprobs"])]
    taken = [list(entry.values())[-1] for entry in entries]
    assert "".join(one["decoded_token"] for one in taken) == joined(parts)
    for entry in entries:
        assert 1 <= len(entry) <= 3
        assert sum(one["rank"] == 1 for one in entry.values()) == 1
        assert all(one["logprob"] <= 0 for one in entry.values())
    whole = ask(server, model, **given, return_cumulative_logprob=True, exclude_input_in_output=True)
    same = json.loads(whole["logprobs"])
    # llama.cpp's sums depend in their last digits on what is computed together: a prompt anew, or what is left of it.
    assert whole["cumulative_logprob"] == pytest.approx(sum(one["logprob"] for one in taken), rel=1e-4)
    assert numbers_of(same) == pytest.approx(numbers_of(entries), rel=1e-4)
    assert same == entries


def numbers_of(entries: list[dict[str, Any]]) -> list[float]:
    """The logarithms in *entries*, which are taken out of them."""
    return [one.pop("logprob") for entry in entries for one in entry.values()]


def test_cumulative_logprob_increases_over_a_stream(server: ServerProcess, model: str):
    parts = events(server, model, text_input=PROMPT, max_tokens=5, temperature=0, return_cumulative_logprob=True)
    sums = [part["cumulative_logprob"] for part in parts]
    assert sums == sorted(sums, reverse=True)
    assert sums[-1] < 0


def test_stop_ends_the_text_before_the_word(server: ServerProcess, model: str):
    given = {
        "text_input": PROMPT,
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
        "exclude_input_in_output": True,
    }
    text = ask(server, model, **given)["text_output"]
    stop = re.findall(r"\w+" if model == "fake" else r"[!-~]{2}", text)[2]
    answer = ask(server, model, **given, stop=stop, return_finish_reason=True)
    assert answer["finish_reason"] == "stop"
    assert stop not in answer["text_output"]
    assert text.startswith(answer["text_output"])


def test_several_choices_are_elements_of_the_outputs(server: ServerProcess, model: str):
    # Several of what is not left to chance is refused by vLLM.
    given = {"text_input": PROMPT, "n": 3, "max_tokens": 5, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    given["return_finish_reason"] = True
    whole = ask(server, model, **given, exclude_input_in_output=True)
    assert len(whole["text_output"]) == 3
    assert whole["finish_reason"] == ["length"] * 3
    parts = events(server, model, **given)
    for choice in range(3):
        assert "".join(part["text_output"][choice] for part in parts) == whole["text_output"][choice]
    assert parts[-1]["finish_reason"] == ["length"] * 3
    assert "None" in parts[0]["finish_reason"]


def test_cancelled_requests_are_ended_and_their_tokens_counted(server: ServerProcess, model: str):
    # On a busy machine the engine may reach the end before it hears that the client has left: such a turn shows nothing.
    for _ in range(10):
        before = metric(server, "vllm:generation_tokens_total", model)
        with Stream(server, model, text_input=PROMPT, max_tokens=1500, temperature=0, ignore_eos=True) as stream:
            next(iter(stream))
        # One that goes on would take all of 1,500 tokens.
        ask(server, model, text_input=PROMPT, max_tokens=50, temperature=0, ignore_eos=True)

        def count(before: float = before) -> float:
            return metric(server, "vllm:generation_tokens_total", model) - before

        until(lambda: count() > 50, "the tokens of both to be counted")
        if count() != 1550:
            break
    assert 50 < count() < 1550


def test_unknown_sampling_parameters_are_named_with_the_nearest(server: ServerProcess, model: str):
    assert refusal(server, model, text_input=PROMPT, max_token=3) == (
        "Error generating stream: unknown sampling parameter in the request's parameters: 'max_token' "
        "(did you mean 'max_tokens'?)"
    )


def test_wrong_values_of_sampling_parameters_are_named(server: ServerProcess, model: str):
    assert refusal(server, model, text_input=PROMPT, top_p=7) == (
        "Error generating stream: sampling parameter 'top_p' must be between 0 and 1, got 7.0"
    )
    assert refusal(server, model, text_input=PROMPT, sampling_parameters='{"n": "many"}') == (
        "Error generating stream: sampling parameter 'n' must be an integer, not \"many\""
    )
    assert "is not valid JSON" in refusal(server, model, text_input=PROMPT, sampling_parameters="{")


def test_requests_without_a_prompt_are_refused(server: ServerProcess, model: str):
    assert "'text_input' must hold a prompt" in refusal(server, model, text_input="")


def test_prompts_longer_than_the_context_are_refused(server: ServerProcess, model: str):
    error = refusal(server, model, text_input="word " * 5000, max_tokens=1)
    assert error.startswith("Error generating stream: ")
    assert "5000" in error or "tokens" in error


def test_conversations_are_put_into_the_models_own_form(server: ServerProcess, model: str):
    messages = json.dumps([{"role": "user", "content": "hello the world"}])
    given = {"max_tokens": 6, "temperature": 0, "return_num_input_tokens": True}
    answer = ask(server, model, messages=messages, **given)
    form = "<user> hello the world <assistant>" if model == "fake" else "<|user|>hello the world<|end|><|assistant|>"
    same = ask(server, model, text_input=form, exclude_input_in_output=True, **given)
    assert answer["text_output"] == same["text_output"]
    parts = events(server, model, messages=messages, return_message=True, **given)
    assert joined(parts) == answer["text_output"]
    assert "".join(json.loads(part["message"]).get("content", "") for part in parts) == answer["text_output"]


def test_whole_messages_have_a_role(server: ServerProcess, model: str):
    answer = ask(
        server,
        model,
        messages='[{"role": "user", "content": "hi"}]',
        max_tokens=4,
        temperature=0.0,
        return_message=True,
    )
    assert json.loads(answer["message"]) == {"role": "assistant", "content": answer["text_output"]}


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ("{", "'messages' is not valid JSON"),
        ("3", "'messages' must be a list of messages, or an object with the key 'messages'"),
        ('{"messages": []}', "'messages' must hold at least one message"),
        ('[{"content": "hi"}]', "message 0 must be an object with a 'role'"),
        ('{"messages": [{"role": "user"}], "tool": []}', "unknown key in 'messages': 'tool' (did you mean 'tools'?)"),
        (
            json.dumps(
                {
                    "messages": [{"role": "user", "content": "x"}],
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                    "tool_choice": {"type": "function", "function": {"name": "g"}},
                }
            ),
            "Tool 'g' has not been passed in `tools`.",
        ),
    ],
)
def test_wrong_conversations_are_refused(server: ServerProcess, model: str, messages: str, told: str):
    assert told in refusal(server, model, messages=messages)


def test_parallel_requests_get_their_own_answers(server: ServerProcess, model: str):
    prompts = [f"{PROMPT} {number}" for number in range(8)]
    given = {"max_tokens": 30, "temperature": 0, "exclude_input_in_output": True}
    alone = [ask(server, model, text_input=prompt, **given)["text_output"] for prompt in prompts]
    asked = [Background(events, server, model, text_input=prompt, max_tokens=30, temperature=0) for prompt in prompts]
    streams = [one.result() for one in asked]
    assert [len(joined(parts)) > 0 for parts in streams] == [True] * 8
    if model == "fake":  # llama.cpp's sums depend on what is computed together, and so does a close choice
        assert [joined(parts) for parts in streams] == alone


def settled_metric(server: ServerProcess, name: str, model: str) -> float:
    """The value of a metric once it has what earlier requests changed: vLLM's own metrics are read each second."""
    value, since = metric(server, name, model), time.monotonic()

    def is_settled() -> bool:
        nonlocal value, since
        now = metric(server, name, model)
        if now != value:
            value, since = now, time.monotonic()
        return time.monotonic() - since > 2

    until(is_settled, "the requests of other tests to be counted")
    return value


def test_metrics_have_vllms_names_and_count_tokens(server: ServerProcess, model: str):
    tokens = settled_metric(server, "vllm:generation_tokens_total", model)
    requests = metric(server, "vllm:e2e_request_latency_seconds_count", model)
    latencies = metric(server, "vllm:time_per_output_token_seconds_count", model)
    answer = ask(
        server, model, text_input=PROMPT, max_tokens=7, temperature=0, ignore_eos=True, return_num_input_tokens=True
    )
    until(lambda: metric(server, "vllm:generation_tokens_total", model) == tokens + 7, "its tokens to be counted")
    assert metric(server, "vllm:e2e_request_latency_seconds_count", model) == requests + 1
    assert metric(server, "vllm:time_per_output_token_seconds_count", model) == latencies + 6  # all but the first
    assert metric(server, "vllm:prompt_tokens_total", model) >= answer["num_input_tokens"]
    for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "request_params_n"):
        assert metric(server, f"vllm:{name}_count", model) > 0


def test_healthy_models_are_ready(server: ServerProcess, model: str):
    assert server.get(f"/v2/models/{model}/ready").status == 200


def test_streams_over_grpc_are_the_same(server: ServerProcess, model: str):
    given = {"text_input": PROMPT, "max_tokens": 8, "temperature": 0}
    whole = ask(server, model, **given, exclude_input_in_output=True)["text_output"]
    assert "".join(over_grpc(server, model, PROMPT, {"max_tokens": 8, "temperature": 0})) == whole


def over_grpc(server: ServerProcess, model: str, prompt: str, parameters: dict[str, float]) -> list[str]:
    """The parts of a stream, as `tritonclient` gets them."""
    inputs = []
    for name, kind, value in (
        ("text_input", "BYTES", prompt.encode()),
        ("stream", "BOOL", True),
        ("sampling_parameters", "BYTES", json.dumps(parameters).encode()),
    ):
        tensor = grpcclient.InferInput(name, [1], kind)
        tensor.set_data_from_numpy(np.array([value], bool if kind == "BOOL" else np.object_))
        inputs.append(tensor)
    answers: queue.Queue = queue.Queue()
    parts = []
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(model, inputs)
        while True:
            result, error = answers.get(timeout=30)
            assert error is None, error
            parts += [part.decode("utf-8", "replace") for part in result.as_numpy("text_output").tolist()]
            if result.get_response().parameters["triton_final_response"].bool_param:
                return parts
