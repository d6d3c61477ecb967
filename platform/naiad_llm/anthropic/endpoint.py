"""`/v1/messages`: connects its requests and the form of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from naiad.frontends.http1.messages import HttpExchange, json_response
from naiad.protocol.inference import Buffer
from naiad_llm.anthropic.errors import error_response
from naiad_llm.anthropic.form import MessagesForm
from naiad_llm.anthropic.request import read_message_request
from naiad_llm.openai.block_form import BlockForm
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.requests import TextRequest
from naiad_llm.openai.submission import TextProtocol
from naiad_llm.openai.text_response import Choice, ResponseForm, Usage
from naiad_llm.openai.vllm_tensors import ChoiceDelta

MESSAGES_PATH = "/v1/messages"
COUNT_PATH = f"{MESSAGES_PATH}/count_tokens"
VERSION_HEADER = b"anthropic-version"  # sent by all clients of this API, also to the list of models


class CountForm(ResponseForm):
    """Responds with the number of tokens of the prompt."""

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]], usage: Usage) -> list[Buffer]:  # noqa: ARG002 - counted at the end
        return []

    def finish(self, choices: Sequence[Choice], usage: Usage) -> list[Buffer]:  # noqa: ARG002 - the text does not matter
        if usage.prompt is None:
            raise ApiError("The model does not count tokens: it has no output 'num_input_tokens'", param="model")
        return json_response({"input_tokens": usage.prompt})


def _begin(_exchange: HttpExchange, request: TextRequest) -> tuple[TextRequest, ResponseForm]:
    return request, BlockForm(request, MessagesForm(request.model))


MESSAGES = TextProtocol(read=read_message_request, begin=_begin, error_response=error_response)


def model_document(name: str, created: int) -> dict[str, Any]:
    """A model in Anthropic's form; *created* in seconds since 1970."""
    time = datetime.fromtimestamp(created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": time, "lifecycle": "active"}


def models_document(names: Sequence[str], created: int) -> dict[str, Any]:
    """The list of models in Anthropic's form, on one page."""
    return {
        "data": [model_document(name, created) for name in names],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }
