"""An answer as Anthropic's Messages API writes it: a message of content blocks, or its events."""

from __future__ import annotations

import uuid
from typing import Any

import orjson

from naiad_llm.anthropic.errors import error_document
from naiad_llm.openai.answer_blocks import Answer, Block, BlockEvent, BlockKind, Step
from naiad_llm.openai.block_form import Events
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.text_response import Usage

_CALLED = "tool_use"
_STOP_REASONS = {"length": "max_tokens", "tool_calls": _CALLED, "content_filter": "refusal"}


class MessagesForm:
    """Writes one answer."""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model}

    def begin(self, usage: Usage) -> Events:
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }
        return [{"type": "message_start", "message": message}]

    def change(self, event: BlockEvent) -> Events:
        block = event.block
        if event.step is Step.BEGIN:
            return [{"type": "content_block_start", "index": block.index, "content_block": _empty(block)}]
        if event.step is Step.GROW:
            return [{"type": "content_block_delta", "index": block.index, "delta": _delta(block.kind, event.text)}]
        return [{"type": "content_block_stop", "index": block.index}]

    def finish(self, answer: Answer) -> Events:
        delta = {"stop_reason": _stop_reason(answer), "stop_sequence": answer.stop or None}
        return [
            {"type": "message_delta", "delta": delta, "usage": _usage(answer.usage)},
            {"type": "message_stop"},
        ]

    def document(self, answer: Answer) -> dict[str, Any]:
        """The whole message, for `dump_parts`.

        A tool call whose arguments are not a JSON object, which clients cannot read, is text.
        """
        content = [_content(block, is_cut=answer.finish_reason == "length") for block in answer.blocks]
        stop_reason = _stop_reason(answer)
        if stop_reason == _CALLED and not any(block["type"] == _CALLED for block in content):
            stop_reason = "end_turn"
        return {
            **self._head,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": answer.stop or None,
            "usage": _usage(answer.usage),
        }

    def failure(self, error: ApiError, answer: Answer) -> Events:  # noqa: ARG002 - what was generated is sent already
        return [error_document(error)]


def _stop_reason(answer: Answer) -> str:
    return _STOP_REASONS.get(answer.finish_reason, "stop_sequence" if answer.stop else "end_turn")


def _usage(usage: Usage) -> dict[str, int]:
    cached = usage.cached or 0
    return {
        "input_tokens": (usage.prompt or 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion or 0,
    }


def _empty(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.CALL:
        return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _delta(kind: BlockKind, text: str) -> dict[str, str]:
    if kind is BlockKind.CALL:
        return {"type": "input_json_delta", "partial_json": text}
    if kind is BlockKind.REASONING:
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}


def _content(block: Block, *, is_cut: bool) -> dict[str, Any]:
    """A whole block; *is_cut* if the limit of tokens may have ended it."""
    begun = _empty(block)
    if block.kind is BlockKind.CALL:
        arguments = _arguments(block)
        if arguments is None and not is_cut:
            return {"type": "text", "text": f"{block.name}({block.arguments})"}
        # `stop_reason` is max_tokens for a call that is cut, so clients know that it is not complete.
        return {**begun, "input": arguments or {}}
    return {**begun, begun["type"]: block.content}


def _arguments(block: Block) -> dict[str, Any] | None:
    """The arguments of a call; None if they are not a JSON object."""
    try:
        arguments = orjson.loads(block.arguments or "{}")
    except orjson.JSONDecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None
