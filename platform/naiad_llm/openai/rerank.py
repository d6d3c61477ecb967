"""`/v1/rerank`, in the form that Jina, Cohere and vLLM share, for models with an input `rerank_request`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from naiad.protocol.inference import OutputTensor
from naiad_llm.openai.errors import SERVER_ERROR, ApiError
from naiad_llm.openai.model_inputs import RANKING, ModelRequest
from naiad_llm.openai.requests import ARRAY, BOOLEAN, TEXT, FieldRule, to_json, validate_fields
from naiad_llm.openai.vllm_tensors import strings, sum_of

_MAX_DOCUMENTS = 10_000
_RULES: dict[str, FieldRule] = {
    "model": TEXT,
    "query": TEXT,
    "documents": ARRAY,
    "top_n": FieldRule("an integer", 0),
    "return_documents": BOOLEAN,
    "user": TEXT,
}
_UNSUPPORTED = {
    "max_tokens_per_doc": "send shorter documents",
    "max_chunks_per_doc": "send shorter documents",
    "truncate_prompt_tokens": "send shorter documents",
    "rank_fields": "send the text of each document",
}
_FIXED: Mapping[str, object] = {
    "priority": 0,
    **dict.fromkeys(("use_activation", "softmax", "activation", "instruction")),
}


@dataclass(frozen=True, slots=True)
class _Ranking:
    """What the response needs of the request: *texts* is None to return positions only, *top* 0 to return all."""

    model: str
    texts: tuple[str, ...] | None
    count: int
    top: int

    def body(self, outputs: Mapping[str, OutputTensor]) -> bytes:
        """The response for the scores that the model returned, the best first."""
        try:
            scores = [float(text) for text in strings(outputs.get("text_output"))]
        except ValueError as problem:
            raise ApiError(f"The model did not return scores: {problem}", status=SERVER_ERROR) from None
        if len(scores) != self.count:
            raise ApiError(f"The model returned {len(scores)} scores for {self.count} documents", status=SERVER_ERROR)
        order = sorted(range(self.count), key=lambda index: -scores[index])
        results = [
            {
                "index": index,
                "relevance_score": scores[index],
                **({} if self.texts is None else {"document": {"text": self.texts[index]}}),
            }
            for index in order[: self.top or self.count]
        ]
        tokens = sum_of(outputs.get("num_input_tokens")) or 0
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        head = {"id": f"rerank-{uuid.uuid4().hex}", "model": self.model}
        return orjson.dumps({**head, "usage": usage, "results": results})


def read_rerank(document: Mapping[str, Any]) -> ModelRequest:
    """The request in the body of `POST /v1/rerank`."""
    given = validate_fields(document, _RULES, ("model", "query", "documents"), _UNSUPPORTED, _FIXED)
    documents = given["documents"]
    if not 0 < len(documents) <= _MAX_DOCUMENTS:
        raise ApiError(
            f"`documents` must hold between 1 and {_MAX_DOCUMENTS} documents, got {len(documents)}", param="documents"
        )
    texts = tuple(_text(each, f"documents[{number}]") for number, each in enumerate(documents))
    shown = texts if given.get("return_documents", True) else None
    ranking = _Ranking(given["model"], shown, len(texts), given.get("top_n", 0))
    wanted = to_json({"query": given["query"], "documents": texts})
    return ModelRequest(RANKING, given["model"], wanted, ranking.body)


def _text(document: object, where: str) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise ApiError(f'`{where}` must be a string or {{"text": ...}}', param=where)
    return text
