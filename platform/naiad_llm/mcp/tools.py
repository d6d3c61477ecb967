"""Models as tools: their names, descriptions and schemas, and their calls."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from naiad.core.errors import InvalidRequestError, NaiadError
from naiad.engine.facade import EngineFacade
from naiad.protocol.inference import InferRequest, InferResponse
from naiad.protocol.metadata import ModelMetadata, TensorMetadata
from naiad.protocol.model_names import LATEST, model_key
from naiad_llm.mcp.tensors import item_shape, schema, to_tensor, to_value

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # names of tools that all clients accept
_DESCRIPTION = "description"  # parameter of a model's configuration with the description of its tool
MAX_OUTPUT = 128 << 10
"""Bytes of the tensors in a result: agents read it as text, and longer JSON would take long to make."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A model as a tool; *is_batched* if the first dimension of its tensors is the batch."""

    metadata: ModelMetadata
    is_batched: bool
    description: str

    def document(self) -> dict[str, Any]:
        inputs = self.metadata.inputs
        input_schema: dict[str, Any] = {
            "type": "object",
            "properties": {tensor.name: self._property(tensor) for tensor in inputs},
            "additionalProperties": False,
        }
        required = [tensor.name for tensor in inputs if tensor.required]
        if required:
            input_schema["required"] = required
        return {"name": self.metadata.name, "description": self.description, "inputSchema": input_schema}

    def _property(self, tensor: TensorMetadata) -> dict[str, Any]:
        shape = item_shape(tensor, is_batched=self.is_batched)
        return {**schema(tensor, shape), "description": f"{tensor.datatype} {list(shape)}"}

    def infer_request(self, arguments: Mapping[str, Any]) -> InferRequest:
        known = {tensor.name: tensor for tensor in self.metadata.inputs}
        for name in arguments:
            if name not in known:
                raise InvalidRequestError(f"unknown argument '{name}'; the tool has {', '.join(known)}")
        missing = [tensor.name for tensor in known.values() if tensor.required and arguments.get(tensor.name) is None]
        if missing:
            raise InvalidRequestError(f"missing argument: {', '.join(missing)}")
        tensors = [
            to_tensor(known[name], value, is_batched=self.is_batched)
            for name, value in arguments.items()
            if value is not None
        ]
        return InferRequest(self.metadata.name, LATEST, tensors)

    def encoded(self, response: InferResponse) -> bytes:
        """The outputs of a response as JSON: an object."""
        return orjson.dumps({output.name: to_value(output, is_batched=self.is_batched) for output in response.outputs})

    def result(self, responses: Sequence[bytes]) -> dict[str, Any]:
        """The result of a call from responses as `encoded` returned them: one object, or a list of several."""
        encoded = responses[0] if len(responses) == 1 else b'{"responses":[%b]}' % b",".join(responses)
        # As it is encoded: the structure must be JSON too, without infinite numbers.
        return {
            "content": [{"type": "text", "text": encoded.decode()}],
            "structuredContent": orjson.Fragment(encoded),
            "isError": False,
        }


def error_result(message: str) -> dict[str, Any]:
    """The result of a call that failed, which the agent reads and may correct."""
    text = message.encode("utf-8", "replace").decode()
    return {"content": [{"type": "text", "text": text}], "isError": True}


class ToolBox:
    """The tools of a server: its ready models whose inputs are described."""

    def __init__(self, engine: EngineFacade, names: Collection[str] = ()) -> None:
        self._engine = engine
        self._names = frozenset(names)

    def documents(self) -> list[dict[str, Any]]:
        entries = self._engine.ready_index()
        names = sorted({entry.name for entry in entries} | {model_key(one.namespace, one.name) for one in entries})
        found = (self.find(name) for name in names)
        return [tool.document() for tool in found if tool is not None]

    def find(self, name: str) -> Tool | None:
        if not _NAME.fullmatch(name) or (self._names and name not in self._names):
            return None
        try:
            metadata = self._engine.model_metadata(name)
            if not metadata.inputs or not self._engine.is_model_ready(name):
                return None
            config = self._engine.model_config(name)
        except NaiadError:
            return None  # unknown, ambiguous, or unloaded meanwhile
        return Tool(metadata, config.get("max_batch_size", 0) > 0, _description(metadata, config))


def _description(metadata: ModelMetadata, config: Mapping[str, Any]) -> str:
    parameter = config.get("parameters", {}).get(_DESCRIPTION, {})
    given = parameter.get("string_value", "") if isinstance(parameter, dict) else ""
    if given:
        return str(given)
    outputs = ", ".join(f"{tensor.name} ({tensor.datatype})" for tensor in metadata.outputs)
    return f"Runs the model {metadata.name} and returns {outputs or 'its outputs'}."
