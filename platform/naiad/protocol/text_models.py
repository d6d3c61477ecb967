"""Models of language, by their tensors: the convention of Triton's vLLM backend.

The page and the commands need these to show the purpose of a model; `naiad_llm` has the rest of the convention.
"""

from __future__ import annotations

from naiad.protocol.metadata import ModelMetadata, TensorMetadata

TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
EMBEDDING_REQUEST = "embedding_request"


def can_generate_text(metadata: ModelMetadata) -> bool:
    """Whether a model has the string tensors `text_input` and `text_output`."""
    return has_string(metadata.inputs, TEXT_INPUT) and has_string(metadata.outputs, TEXT_OUTPUT)


def can_embed(metadata: ModelMetadata) -> bool:
    """Whether a model has the string tensors `embedding_request` and `text_output`."""
    return has_string(metadata.inputs, EMBEDDING_REQUEST) and has_string(metadata.outputs, TEXT_OUTPUT)


def has_string(tensors: tuple[TensorMetadata, ...], name: str) -> bool:
    """Whether *tensors* have a string tensor of that name."""
    return any(tensor.name == name and tensor.datatype == "BYTES" for tensor in tensors)
