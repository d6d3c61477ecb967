"""Inputs of models for requests other than those for text: each request is one JSON object in an input of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from naiad.protocol.inference import InferRequest
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.text_models import has_string
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.vllm_tensors import build_infer_request


class ModelRequest(NamedTuple):
    """A request of one kind; the model's name is "" for the only one that has the input."""

    model: str
    document: str


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The string input for requests of one kind."""

    name: str
    ability: str  # what the models that have it can do, for errors
    counts: bool = False  # whether the response needs the number of input tokens

    def is_in(self, metadata: ModelMetadata) -> bool:
        return has_string(metadata.inputs, self.name)

    def infer_request(self, document: str, metadata: ModelMetadata) -> InferRequest:
        if not self.is_in(metadata):
            raise ApiError(
                f"The model `{metadata.name}` does not {self.ability}: it has no string input '{self.name}'",
                param="model",
            )
        counts = {"return_num_input_tokens": True} if self.counts else {}
        return build_infer_request(metadata, {self.name: document, "stream": False, **counts}, {})


TOKENIZER = ModelInput("tokenizer_request", "tokenize")
ENGINE = ModelInput("engine_request", "sleep")
RANKING = ModelInput("rerank_request", "rank documents", counts=True)
