"""Inputs of models for requests other than those for text: each request is one JSON object in an input of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qs

from naiad.protocol.inference import InferRequest
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.text_models import EMBEDDING_REQUEST, TEXT_OUTPUT, has_string
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.single_response import MakeBody
from naiad_llm.openai.vllm_tensors import build_infer_request


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The string input for requests of one kind."""

    name: str
    ability: str  # what the models that have it can do, for errors
    counts: bool = False  # whether the response needs the number of input tokens

    def is_in(self, metadata: ModelMetadata) -> bool:
        return has_string(metadata.inputs, self.name) and has_string(metadata.outputs, TEXT_OUTPUT)

    def infer_request(self, document: str, metadata: ModelMetadata) -> InferRequest:
        if not self.is_in(metadata):
            raise ApiError(
                f"The model `{metadata.name}` does not {self.ability}: it has no string input '{self.name}'",
                param="model",
            )
        counts = {"return_num_input_tokens": True} if self.counts else {}
        return build_infer_request(metadata, {self.name: document, "stream": False, **counts}, {})


EMBEDDING = ModelInput(EMBEDDING_REQUEST, "support embeddings", counts=True)
TOKENIZER = ModelInput("tokenizer_request", "tokenize")
ENGINE = ModelInput("engine_request", "sleep")
RANKING = ModelInput("rerank_request", "rank documents", counts=True)


class ModelRequest(NamedTuple):
    """A request to the input *to* of a model, whose name is "" for the only one that has it."""

    to: ModelInput
    model: str
    document: str
    make_body: MakeBody


def named_model(query: bytes) -> str:
    """The model that a query names, for clients that cannot name one in the body; "" for none."""
    return parse_qs(query.decode("latin-1")).get("model", [""])[-1]
