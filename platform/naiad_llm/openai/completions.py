"""Responses of chats and completions: as one JSON document at the end, or as a stream with an event for each delta."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import orjson

from naiad.frontends.http1.messages import response
from naiad.frontends.http1.server_sent_events import event
from naiad.protocol.inference import Buffer
from naiad_llm.openai import logprobs
from naiad_llm.openai.answer_blocks import REASONING_NAMES
from naiad_llm.openai.custom_tools import CustomCalls
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.json_parts import GrownJson, dump_parts
from naiad_llm.openai.requests import TextRequest
from naiad_llm.openai.text_response import Choice, ResponseForm, Usage
from naiad_llm.openai.vllm_tensors import ChoiceDelta

_OK = 200
_CHAT_LOGPROBS = "content"
_COMPLETION_LOGPROBS = ("tokens", "token_logprobs", "top_logprobs")
_OFFSET_BYTES = 40  # what an offset takes as a number in a list
_DONE = event(b"[DONE]")


class CompletionForm(ResponseForm):
    """Writes the response to a chat or a completion."""

    def __init__(self, request: TextRequest) -> None:
        self._request = request
        self._is_chat = request.is_chat
        self._custom = CustomCalls(request.custom_tools)
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        kind = "chat.completion" if self._is_chat else "text_completion"
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}
        self._kind = kind
        self._chunk_kind = f"{kind}.chunk" if self._is_chat else kind

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]], usage: Usage) -> list[Buffer]:  # noqa: ARG002 - counted at the end
        if self._request.stream:
            return [_event(chunk) for choice, delta in deltas for chunk in self._chunks(choice, delta)]
        for choice, delta in deltas:
            self.collected += self._collect(choice, delta)
        return []

    def finish(self, choices: Sequence[Choice], usage: Usage) -> list[Buffer]:
        """The document, or the missing finish reasons, the usage if requested, and `[DONE]`."""
        if not self._request.stream:
            return response(_OK, dump_parts(self._document(choices, usage)))
        chunks = []
        for choice in choices:
            if choice.finish_reason is None:  # the model has no output `finish_reason`
                chunks += self._chunks(choice, ChoiceDelta(choice.index, "", "stop"))
        if self._request.include_usage:
            # The last chunk has the token counts, and no choices.
            chunks.append({**self._chunk(), "usage": usage.document()})
        return [*map(_event, chunks), _DONE]

    def failure(self, error: ApiError) -> list[Buffer]:
        return [_event(error.document()), _DONE]

    def _chunks(self, choice: Choice, delta: ChoiceDelta) -> list[dict[str, Any]]:
        if choice.finish_reason is not None:
            return []  # this choice is finished; the response has new output for another one of the prompt
        chunks = self._first_chunks(choice)
        choice.finish_reason = delta.finish_reason
        if self._request.custom_tools:
            is_last = delta.finish_reason is not None
            delta.message = self._custom.streamed(choice.index, delta.message, is_last=is_last)
        is_new = delta.text or delta.logprobs or delta.message
        if delta.finish_reason is not None and is_new and self._request.is_chat:
            # OpenAI sends a chat's finish reason in a separate chunk, with an empty delta.
            chunks.append(self.delta_chunk(choice, delta, None))
            chunks.append(self.delta_chunk(choice, ChoiceDelta(delta.index, ""), delta.finish_reason))
        elif is_new or delta.finish_reason is not None:
            chunks.append(self.delta_chunk(choice, delta, delta.finish_reason))
        return chunks

    def _first_chunks(self, choice: Choice) -> list[dict[str, Any]]:
        if choice.has_begun:
            return []
        choice.has_begun = True
        if self._request.is_chat:
            return [self._role_chunk(choice)]
        return [self._echo_chunk(choice)] if choice.prompt else []

    # -- documents ----------------------------------------------------------------------------------------------

    def _collect(self, choice: Choice, delta: ChoiceDelta) -> int:
        """Append a delta to its choice, for `_document`; return how many bytes more the choice holds."""
        before = _size(choice)
        choice.text.add(delta.text)
        choice.finish_reason = delta.finish_reason or choice.finish_reason
        added = 0
        if delta.message:
            merge_message(choice.message, delta.message)
            added = len(orjson.dumps(delta.message))
        count = self._request.top_logprobs
        if count is not None:
            choice.finder.add_text(delta.text)
            if self._is_chat:
                choice.logprobs[_CHAT_LOGPROBS].add(logprobs.for_chat(choice.finder, delta.logprobs, count))
            else:
                found = logprobs.for_completion(choice.finder, delta.logprobs, count, choice.length)
                for name in _COMPLETION_LOGPROBS:
                    choice.logprobs[name].add(found[name])
                choice.offsets += found["text_offset"]
                if found["tokens"]:
                    choice.length = choice.offsets[-1] + len(found["tokens"][-1])
        return _size(choice) - before + added

    def _document(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        document = {**self._head, "object": self._kind, "system_fingerprint": None}
        document["choices"] = [self._choice(choice) for choice in choices]
        counts = usage.document()
        if counts is not None:
            document["usage"] = counts
        transfer = next((choice.transfer for choice in choices if choice.transfer is not None), None)
        return document if transfer is None else {**document, "kv_transfer_params": transfer}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        document: dict[str, Any] = {"index": choice.index, "logprobs": None}
        document["finish_reason"] = choice.finish_reason or "stop"
        count = self._request.top_logprobs
        if self._is_chat:
            # OpenAI: `content` is null, not empty, where the message is a tool call.
            content = choice.text if choice.text or "tool_calls" not in choice.message else None
            message = _with_reasoning_names(choice.message)
            document["message"] = {"role": "assistant", "content": content, "refusal": None, **message}
            for call in document["message"].get("tool_calls", []):
                call.pop("index", None)  # a member of streamed calls only
            if "tool_calls" in message:
                document["message"]["tool_calls"] = [self._custom.whole(call) for call in message["tool_calls"]]
            if count is not None:
                document["logprobs"] = {"content": choice.logprobs[_CHAT_LOGPROBS], "refusal": None}
        else:
            document["text"] = GrownJson(choice.prompt).joined(choice.text)
            if count is not None:
                found = logprobs.for_prompt(choice.prompt_logprobs, count)
                offset = len(choice.prompt)
                offsets = [*found["text_offset"], *(offset + place for place in choice.offsets)]
                lists = {name: GrownJson(found[name]).joined(choice.logprobs[name]) for name in _COMPLETION_LOGPROBS}
                document["logprobs"] = {**lists, "text_offset": offsets}
        return document

    def _role_chunk(self, choice: Choice) -> dict[str, Any]:
        """The first chunk of a chat's choice, which has the role and no text."""
        return self._chunk({"index": choice.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
                            "finish_reason": None})  # fmt: skip

    def _echo_chunk(self, choice: Choice) -> dict[str, Any]:
        """The first chunk of a completion's choice with `echo`, which has the prompt."""
        choice.length += len(choice.prompt)
        count = self._request.top_logprobs
        found = None if count is None else logprobs.for_prompt(choice.prompt_logprobs, count)
        return self._chunk({"index": choice.index, "text": choice.prompt, "logprobs": found, "finish_reason": None})

    def delta_chunk(self, choice: Choice, delta: ChoiceDelta, finish_reason: str | None) -> dict[str, Any]:
        document: dict[str, Any] = {"index": choice.index, "logprobs": None, "finish_reason": finish_reason}
        count = self._request.top_logprobs
        if count is not None:
            choice.finder.add_text(delta.text)
        if self._is_chat:
            document["delta"] = _delta(delta)
            if count is not None and delta.logprobs:
                content_logprobs = logprobs.for_chat(choice.finder, delta.logprobs, count)
                document["logprobs"] = {"content": content_logprobs, "refusal": None}
        else:
            document["text"] = delta.text
            if count is not None and delta.logprobs:
                document["logprobs"] = logprobs.for_completion(choice.finder, delta.logprobs, count, choice.length)
        choice.length += len(delta.text)
        return self._chunk(document)

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        document = {**self._head, "object": self._chunk_kind, "system_fingerprint": None, "choices": list(choices)}
        if self._request.include_usage:
            # OpenAI: "All other chunks will also include a usage field, but with a null value".
            document["usage"] = None
        return document


def _event(document: dict[str, Any]) -> bytes:
    return event(orjson.dumps(document))


def _size(choice: Choice) -> int:
    """The bytes that a choice holds, without those of `message`."""
    lists = sum(values.size for values in choice.logprobs.values())
    return choice.text.size + lists + _OFFSET_BYTES * len(choice.offsets)


def _delta(delta: ChoiceDelta) -> dict[str, Any]:
    if not delta.message:
        return {"content": delta.text} if delta.text else {}
    message = _with_reasoning_names(delta.message)
    calls = message.get("tool_calls")
    if not calls:
        return message
    # Clients assemble streamed calls by `index`. A model may omit it, then the position in the list is the index.
    return {**message, "tool_calls": [{"index": position, **call} for position, call in enumerate(calls)]}


def _with_reasoning_names(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the model's reasoning under both names that clients look for."""
    text = next((message[name] for name in REASONING_NAMES if message.get(name) is not None), None)
    return message if text is None else {**message, **dict.fromkeys(REASONING_NAMES, text)}


def merge_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta to a chat's message; the content is not merged, `Choice.text` has it."""
    for name, value in delta.items():
        if name == "tool_calls":
            _merge_calls(message.setdefault("tool_calls", []), value)
        elif name in {"content", "role"} or value is None:
            continue
        elif isinstance(value, str) and isinstance(message.get(name), str):
            message[name] += value
        else:
            message[name] = value


def _merge_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    for position, delta in enumerate(deltas):
        index = delta.get("index")
        index = position if index is None else index
        if index >= len(calls):
            calls.append({**delta, "function": dict(delta.get("function") or {})})
            continue
        function = delta.get("function") or {}
        for name in ("name", "arguments"):
            if function.get(name):
                calls[index]["function"][name] = calls[index]["function"].get(name, "") + function[name]
