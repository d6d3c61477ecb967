"""An answer as OpenAI's Responses API writes it: a document with items, or events with numbers in sequence."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from naiad_llm.openai.answer_blocks import Answer, Block, BlockEvent, BlockKind, Step
from naiad_llm.openai.block_form import Events
from naiad_llm.openai.custom_tools import CustomInput, custom_input
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.responses.tools import CallForm
from naiad_llm.openai.text_response import Usage

_PREFIXES = {BlockKind.TEXT: "msg", BlockKind.REASONING: "rs", BlockKind.CALL: "fc"}
_CUSTOM_PREFIX = "ctc"
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of an answer that is not complete, in this API's words."""

OnAnswer = Callable[[str, Mapping[str, Any], Answer], None]


class ResponsesForm:
    """Writes one answer."""

    def __init__(self, fields: Mapping[str, Any], forms: Mapping[str, CallForm], on_answer: OnAnswer) -> None:
        self.response_id = f"resp_{uuid.uuid4().hex}"
        self._fields = fields
        self._forms = forms
        self._on_answer = on_answer
        self._created = int(time.time())
        self._item_ids: list[str] = []
        self._inputs: dict[int, CustomInput] = {}  # of calls of custom tools, by their index in the answer
        self._events = 0

    def begin(self, usage: Usage) -> Events:  # noqa: ARG002 - reported at the end
        response = self._response("in_progress", [])
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def change(self, event: BlockEvent) -> Events:
        block = event.block
        place = {"item_id": self._item_id(block), "output_index": block.index}
        if event.step is Step.GROW:
            if not self._is_custom(block):
                return [self._grow(event, place)]
            return self._grow_custom(place, self._inputs.setdefault(block.index, CustomInput()).add(event.text))
        if event.step is Step.BEGIN:
            return self._begin_item(block, place)
        return self._end_item(block, place)

    def finish(self, answer: Answer) -> Events:
        status = _status(answer)
        return [self._event(f"response.{status}", response=self.document(answer))]

    def document(self, answer: Answer) -> dict[str, Any]:
        status = _status(answer)
        response = self._response(status, self._output(answer, status))
        reason = _INCOMPLETE.get(answer.finish_reason)
        response["incomplete_details"] = {"reason": reason} if reason else None
        response["completed_at"] = int(time.time()) if status == "completed" else None
        response["usage"] = _usage(answer.usage)
        self._on_answer(self.response_id, response, answer)
        return response

    def failure(self, error: ApiError, answer: Answer) -> Events:
        response = self._response("failed", self._output(answer, "incomplete"))
        known = error.document()["error"]
        response["error"] = {"code": known["code"] or "server_error", "message": known["message"]}
        return [self._event("response.failed", response=response)]

    def _event(self, kind: str, **members: object) -> dict[str, Any]:
        document = {"type": kind, "sequence_number": self._events, **members}
        self._events += 1
        return document

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": output,
            "usage": None,
            **self._fields,
        }

    def _output(self, answer: Answer, status: str) -> list[dict[str, Any]]:
        """The items of the answer; only the last one can be incomplete."""
        last = len(answer.blocks) - 1
        return [
            self._item(block, "completed" if index < last or status == "completed" else "incomplete")
            for index, block in enumerate(answer.blocks)
        ]

    def _item_id(self, block: Block) -> str:
        while len(self._item_ids) <= block.index:
            prefix = _CUSTOM_PREFIX if self._is_custom(block) else _PREFIXES[block.kind]
            self._item_ids.append(f"{prefix}_{uuid.uuid4().hex}")
        return self._item_ids[block.index]

    def _is_custom(self, block: Block) -> bool:
        return block.kind is BlockKind.CALL and block.name in self._forms and self._forms[block.name].is_custom

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id(block), "status": status}
        content = [] if status == "in_progress" else [_part(block)]
        if block.kind is BlockKind.TEXT:
            return {**item, "type": "message", "role": "assistant", "content": content}
        if block.kind is BlockKind.REASONING:
            return {**item, "type": "reasoning", "summary": [], "content": content}
        form = self._forms.get(block.name, CallForm(block.name))
        item.update(call_id=block.call_id, name=form.name)
        if form.namespace:
            item["namespace"] = form.namespace
        text = "" if status == "in_progress" else block.arguments
        if form.is_custom:
            return {**item, "type": "custom_tool_call", "input": custom_input(text) if text else ""}
        return {**item, "type": "function_call", "arguments": text}

    def _begin_item(self, block: Block, place: Mapping[str, Any]) -> Events:
        added = self._event(
            "response.output_item.added", output_index=block.index, item=self._item(block, "in_progress")
        )
        if block.kind is BlockKind.CALL:
            return [added]
        empty = Block(block.index, block.kind)  # the block may have text already, but deltas carry all of it
        return [added, self._event("response.content_part.added", **place, content_index=0, part=_part(empty))]

    def _grow(self, event: BlockEvent, place: Mapping[str, Any]) -> dict[str, Any]:
        kind = event.block.kind
        if kind is BlockKind.CALL:
            return self._event("response.function_call_arguments.delta", **place, delta=event.text)
        if kind is BlockKind.REASONING:
            return self._event("response.reasoning_text.delta", **place, content_index=0, delta=event.text)
        logprobs = list(event.logprobs)
        return self._event("response.output_text.delta", **place, content_index=0, delta=event.text, logprobs=logprobs)

    def _grow_custom(self, place: Mapping[str, Any], text: str) -> list[dict[str, Any]]:
        return [self._event("response.custom_tool_call_input.delta", **place, delta=text)] if text else []

    def _end_item(self, block: Block, place: Mapping[str, Any]) -> Events:
        # The item of a stream is complete here even if the limit of tokens ended it: that is known at the end only, and
        # the response of the last event has it.
        done: dict[str, Any] = {"output_index": block.index, "item": self._item(block, "completed")}
        if self._is_custom(block):
            rest = self._inputs.setdefault(block.index, CustomInput()).end()
            events = self._grow_custom(place, rest)
            events.append(self._event("response.custom_tool_call_input.done", **place, input=done["item"]["input"]))
        elif block.kind is BlockKind.CALL:
            name = done["item"]["name"]
            events = [
                self._event("response.function_call_arguments.done", **place, name=name, arguments=block.arguments)
            ]
        else:
            text = {**place, "content_index": 0, "text": block.content}
            is_text = block.kind is BlockKind.TEXT
            events = [
                self._event("response.output_text.done", **text, logprobs=block.logprobs)
                if is_text
                else self._event("response.reasoning_text.done", **text),
                self._event("response.content_part.done", **place, content_index=0, part=_part(block)),
            ]
        return [*events, self._event("response.output_item.done", **done)]


def _status(answer: Answer) -> str:
    return "incomplete" if answer.finish_reason in _INCOMPLETE else "completed"


def _part(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.REASONING:
        return {"type": "reasoning_text", "text": block.content}
    return {"type": "output_text", "text": block.content, "annotations": [], "logprobs": block.logprobs}


def _usage(usage: Usage) -> dict[str, Any] | None:
    if usage.document() is None:
        return None
    given, generated = usage.prompt or 0, usage.completion or 0
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + generated,
    }
