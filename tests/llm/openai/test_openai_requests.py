"""What a model is asked for, and how parts of calls are numbered: without a server."""

from __future__ import annotations

import dataclasses

import pytest

from naiad.frontends.kserve_http.json_tensors import pack_strings
from naiad.protocol.metadata import ModelMetadata, TensorMetadata
from naiad_llm.openai.completions import CompletionForm
from naiad_llm.openai.embeddings import read_embedding
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.logprobs import SampledTokenFinder, for_completion
from naiad_llm.openai.model_inputs import EMBEDDING
from naiad_llm.openai.requests import read_chat, read_completion
from naiad_llm.openai.text_response import Choice
from naiad_llm.openai.vllm_tensors import ChoiceDelta, infer_requests

FLAGS = ("stream", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
MODEL = ModelMetadata(
    name="m",
    versions=("1",),
    platform="python",
    inputs=(
        TensorMetadata(name="text_input", datatype="BYTES", shape=(1,)),
        *(TensorMetadata(name=name, datatype="BOOL", shape=(1,)) for name in FLAGS),
    ),
    outputs=(TensorMetadata(name="text_output", datatype="BYTES", shape=(-1,)),),
)


@pytest.mark.parametrize(
    ("field", "wrong", "neutral"),
    [
        ("truncate_prompt_tokens", 5, None),
        ("truncate_prompt_tokens", -1, None),
        ("add_special_tokens", False, True),
        ("normalize", True, None),
        ("normalize", False, None),
        ("embed_dtype", "float16", "float32"),
        ("endianness", "big", "native"),
        ("pooling_params", {"dimensions": 2}, None),
        ("input_type", "query", None),
        ("late_chunking", True, False),
    ],
)
def test_a_field_that_changes_a_vector_is_rejected_unless_it_changes_nothing(field, wrong, neutral):
    given = {"model": "m", "input": "a"}
    with pytest.raises(ApiError, match=f"`{field}` is not supported") as caught:
        read_embedding({**given, field: wrong})
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, field, "unsupported_parameter")
    assert read_embedding({**given, field: neutral}).document == '{"input":"a"}'


@pytest.mark.parametrize("kind", ["input_text", "output_text", "input_image"])
def test_a_part_in_the_form_of_responses_is_rejected_with_that_of_chats(kind):
    messages = [{"role": "user", "content": [{"type": kind, "text": "a"}]}]
    with pytest.raises(
        ApiError, match=rf"a part of type {kind} has the form of /v1/responses; in a chat it is \{{\"type\""
    ):
        read_chat({"model": "m", "messages": messages}, None)


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({}, True),
        ({"stream": True}, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
    ],
)
def test_tokens_are_counted_where_the_answer_says_how_many(given, counts):
    (request,) = infer_requests(read_completion({"model": "m", "prompt": "a", **given}, None), MODEL)
    flags = {tensor.name: bytes(tensor.data) == b"\x01" for tensor in request.inputs if tensor.name in FLAGS}
    assert flags == {
        "stream": "stream" in given,
        "return_finish_reason": True,
        "return_num_input_tokens": counts,
        "return_num_output_tokens": counts,
    }


def test_a_required_prompt_is_empty_if_the_request_has_a_conversation_or_an_embedding():
    """As configurations for Triton's vLLM backend do: `text_input` and `stream` are there, and not optional."""
    asked = ("text_input", "stream", "messages", "embedding_request")
    kinds = dict.fromkeys(asked, "BYTES") | {"stream": "BOOL"}
    chat = read_chat({"model": "m", "messages": [{"role": "user", "content": "a"}]}, None)
    for required in (True, False):
        model = dataclasses.replace(
            MODEL,
            inputs=tuple(
                TensorMetadata(name=name, datatype=kinds[name], shape=(1,), required=required and name in asked[:2])
                for name in asked
            ),
        )
        (talk,) = infer_requests(chat, model)
        vectors = EMBEDDING.infer_request(read_embedding({"model": "m", "input": "a"}).document, model)
        for request, prompt in ((talk, "messages"), (vectors, "embedding_request")):
            given = {tensor.name: bytes(tensor.data) for tensor in request.inputs}
            assert set(given) == {prompt, "stream"} | ({"text_input"} if required else set())
            assert given["stream"] == b"\0"
            assert given.get("text_input", pack_strings([""])) == pack_strings([""])


def test_parts_of_calls_that_a_model_did_not_number_are_numbered_by_their_order():
    request = read_chat({"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True}, None)
    delta = ChoiceDelta(0, "", message={"tool_calls": [{"id": "a"}, {"index": 4, "id": "b"}]})
    chunk = CompletionForm(request).delta_chunk(Choice(0), delta, None)
    assert chunk["choices"][0]["delta"]["tool_calls"] == [{"index": 0, "id": "a"}, {"index": 4, "id": "b"}]


def test_of_alternatives_that_look_alike_the_likeliest_is_shown():
    alternatives = {
        "1": {"logprob": -0.5, "decoded_token": "\ufffd"},
        "2": {"logprob": -3.0, "decoded_token": "\ufffd"},
        "3": {"logprob": -1.0, "decoded_token": "b"},
    }
    assert for_completion(SampledTokenFinder(), [alternatives], 3, 0)["top_logprobs"] == [{"\ufffd": -0.5, "b": -1.0}]
