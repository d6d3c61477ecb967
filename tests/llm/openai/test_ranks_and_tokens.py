"""`/v1/rerank`, `/tokenize`, `/detokenize` and `/tokenizer_info`, the counts that are made of them, and `/sleep`."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

from .fake_models import given, said, served


def answer(_, request, sink):
    """Scores are the lengths of the documents; tokens are the letters of a prompt."""
    names = {tensor.name for tensor in request.inputs}
    if "rerank_request" in names:
        asked = json.loads(given(request, "rerank_request"))
        if asked["query"] == "wrong":
            sink.send(said("1.0"), True)
            return
        scores = [json.dumps(float(len(document))) for document in asked["documents"]]
        sink.send(said(*scores), True)
        return
    if "engine_request" in names:
        sink.send(said(json.dumps({"is_sleeping": True})), True)
        return
    asked = json.loads(given(request, "tokenizer_request"))
    if "info" in asked:
        document = {"tokenizer_class": "Letters", "eos_token": "."}
    elif "tokens" in asked:
        document = {"prompt": bytes(asked["tokens"]).decode()}
    else:
        text = asked["prompt"] if "prompt" in asked else "".join(one["content"] for one in asked["chat"]["messages"])
        document = {"count": len(text), "max_model_len": 99}
        if asked.get("return_tokens", True):
            document.update(
                tokens=list(text.encode()), token_strs=list(text) if asked.get("return_token_strs") else None
            )
    sink.send(said(json.dumps(document)), True)


@pytest.fixture(scope="module")
def api():
    with served(answer, more=["tokenizer_request", "engine_request"], max_json=1 << 20) as each:
        yield each


def post(api, path, **document):
    got = api.request("POST", path, json.dumps({"model": "fake", **document}))
    return got.status, got.json()


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_documents_are_ordered_by_their_scores(api, path):
    status, got = post(api, path, query="q", documents=["bb", {"text": "dddd"}, "ccc"], top_n=2)
    assert (status, got["model"]) == (200, "fake")
    assert got["id"].startswith("rerank-")
    assert got["results"] == [
        {"index": 1, "relevance_score": 4.0, "document": {"text": "dddd"}},
        {"index": 2, "relevance_score": 3.0, "document": {"text": "ccc"}},
    ]
    _, got = post(api, path, query="q", documents=["bb", "ccc"], return_documents=False)
    assert got["results"] == [{"index": 1, "relevance_score": 3.0}, {"index": 0, "relevance_score": 2.0}]


@pytest.mark.parametrize(
    ("document", "message", "param"),
    [
        ({"documents": ["a"]}, "you must provide a `query` parameter", "query"),
        ({"query": "q", "documents": []}, "`documents` must hold between 1 and 10000 documents, got 0", "documents"),
        ({"query": "q", "documents": ["a", 5]}, '`documents[1]` must be a string or {"text": ...}', "documents[1]"),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "`top_n` must be at least 0, got -1", "top_n"),
        ({"query": "q", "documents": ["a"], "rank_fields": ["x"]}, "`rank_fields` is not supported: send the text of each document", "rank_fields"),
    ],
)  # fmt: skip
def test_invalid_rankings_are_rejected(api, document, message, param):
    status, got = post(api, "/v1/rerank", **document)
    assert (status, got["error"]["message"], got["error"]["param"]) == (400, message, param)


def test_scores_that_do_not_fit_are_the_models_error(api):
    status, got = post(api, "/v1/rerank", query="wrong", documents=["a", "b"])
    assert (status, got["error"]["message"]) == (500, "The model returned 1 scores for 2 documents")


def test_prompts_and_conversations_are_tokenized_and_back(api):
    assert post(api, "/tokenize", prompt="ab") == (
        200,
        {"count": 2, "max_model_len": 99, "tokens": [97, 98], "token_strs": None},
    )
    chat = {"messages": [{"role": "user", "content": "ab"}], "return_token_strs": True, "add_generation_prompt": False}
    assert post(api, "/tokenize", **chat)[1]["token_strs"] == ["a", "b"]
    asked = json.loads(given(api.engine.requests[-1], "tokenizer_request"))
    assert asked["chat"] == {"messages": [{"role": "user", "content": "ab"}], "add_generation_prompt": False}
    assert post(api, "/detokenize", tokens=[97, 98]) == (200, {"prompt": "ab"})
    assert post(api, "/detokenize", tokens=[]) == (200, {"prompt": ""})


def test_long_prompts_are_tokenized_too(api):
    text = "word " * 60_000
    status, got = post(api, "/tokenize", prompt=text)
    assert (status, got["count"]) == (200, len(text))
    status, got = post(api, "/detokenize", tokens=got["tokens"][:90_000])
    assert (status, len(got["prompt"])) == (200, 90_000)


@pytest.mark.parametrize(
    ("path", "document", "message"),
    [
        ("/tokenize", {}, "you must provide either a `prompt` or `messages`"),
        ("/tokenize", {"prompt": "a", "messages": []}, "you must provide either a `prompt` or `messages`"),
        ("/tokenize", {"prompt": 5}, "`prompt` must be a string, not an integer"),
        ("/detokenize", {"tokens": ["a"]}, "`tokens` must be an array of token ids"),
        ("/detokenize", {"tokens": [-1]}, "`tokens` must be an array of token ids"),
        ("/detokenize", {}, "you must provide a `tokens` parameter"),
    ],
)
def test_invalid_requests_for_tokens_are_rejected(api, path, document, message):
    status, got = post(api, path, **document)
    assert (status, got["error"]["message"]) == (400, message)


def test_models_that_cannot_rank_or_tokenize_are_named(api):
    with served(answer) as other:
        status, got = post(other, "/tokenize", prompt="a")
        assert (status, got["error"]["message"]) == (
            400,
            "The model `fake` does not tokenize: it has no string input 'tokenizer_request'",
        )
    status, got = post(api, "/v1/rerank", model="identity", query="q", documents=["a"])
    assert "does not rank documents: it has no string input 'rerank_request'" in got["error"]["message"]
    status, got = post(api, "/tokenize", model="none", prompt="a")
    assert (status, got["error"]["code"]) == (404, "model_not_found")


def test_keys_guard_these_paths_too():
    with served(answer, keys=("k",)) as api:
        for path in ("/tokenize", "/detokenize", "/rerank", "/v1/rerank"):
            assert api.request("POST", path, "{}").status == 401


def test_anthropics_counts_are_the_tokenizers(api):
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{api.port}", api_key="any", max_retries=0) as client:
        count = client.messages.count_tokens(model="fake", system="abc", messages=[{"role": "user", "content": "de"}])
        assert count.input_tokens == 5
    asked = json.loads(given(api.engine.requests[-1], "tokenizer_request"))
    assert asked["return_tokens"] is False


def test_the_input_of_a_response_is_counted(api):
    base = f"http://127.0.0.1:{api.port}/v1"
    with openai.OpenAI(base_url=base, api_key="any", max_retries=0, timeout=20) as client:
        count = client.responses.input_tokens.count(model="fake", instructions="abc", input="de")
        assert (count.object, count.input_tokens) == ("response.input_tokens", 5)
        with pytest.raises(openai.BadRequestError, match="`input` must hold at least one item"):
            client.responses.input_tokens.count(model="fake", input=[])
    asked = json.loads(given(api.engine.requests[-1], "tokenizer_request"))
    assert asked["return_tokens"] is False


def test_the_only_tokenizer_needs_no_name(api):
    got = api.request("POST", "/tokenize", json.dumps({"prompt": "ab"})).json()
    assert got["tokens"] == [97, 98]
    assert api.request("POST", "/detokenize", json.dumps({"tokens": [97]})).json() == {"prompt": "a"}
    with served(answer) as other:
        got = other.request("POST", "/tokenize", json.dumps({"prompt": "ab"}))
        assert (got.status, got.json()["error"]["message"]) == (
            400,
            "you must provide a `model` parameter: no model here can tokenize",
        )


@pytest.mark.parametrize("path", ["/tokenizer_info", "/tokenizer_info?model=fake"])
def test_what_a_tokenizer_is_like_is_told(api, path):
    got = api.request("GET", path)
    assert (got.status, got.json()) == (200, {"tokenizer_class": "Letters", "eos_token": "."})
    assert api.request("POST", path, "{}").status == 405


@pytest.mark.parametrize(
    ("method", "path", "asked"),
    [
        ("POST", "/sleep", {"sleep": {"level": 1, "mode": "abort"}}),
        ("POST", "/sleep?level=2&mode=wait&model=fake", {"sleep": {"level": 2, "mode": "wait"}}),
        ("POST", "/wake_up", {"wake_up": {"tags": None}}),
        ("POST", "/wake_up?tags=weights&tags=kv_cache", {"wake_up": {"tags": ["weights", "kv_cache"]}}),
        ("GET", "/is_sleeping", {"is_sleeping": True}),
    ],
)
def test_engines_are_told_to_sleep_and_to_wake_up(api, method, path, asked):
    got = api.request(method, path)
    assert got.status == 200
    assert json.loads(given(api.engine.requests[-1], "engine_request")) == asked
    assert got.body == (b"" if method == "POST" else b'{"is_sleeping": true}')


def test_invalid_requests_to_engines_are_rejected(api):
    for query, message in (
        ("level=3", "`level` must be one of 1, 2, not '3'"),
        ("mode=now", "`mode` must be one of abort, wait, keep, not 'now'"),
    ):
        got = api.request("POST", f"/sleep?{query}")
        assert (got.status, got.json()["error"]["message"]) == (400, message)
    with served(answer) as other:
        got = other.request("POST", "/sleep?model=fake")
        assert got.json()["error"]["message"] == (
            "The model `fake` does not sleep: it has no string input 'engine_request'"
        )
