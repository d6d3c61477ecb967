"""The JSON of answers: whole ones, and the chunks of those that come in parts."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from naiad.frontends.openai import logprobs
from naiad.frontends.openai.logprobs import Taken
from naiad.frontends.openai.questions import Question
from naiad.frontends.openai.tensors import Piece


@dataclass(slots=True)
class Usage:
    """Tokens counted so far; None while no response has said any."""

    prompt: int | None = None
    completion: int | None = None

    def add(self, other: Usage) -> None:
        """Count those of another prompt as well."""
        self.prompt = _sum(self.prompt, other.prompt)
        self.completion = _sum(self.completion, other.completion)

    def document(self) -> dict[str, int] | None:
        """As OpenAI's `usage`; None if the model does not count."""
        if self.prompt is None and self.completion is None:
            return None
        prompt, completion = self.prompt or 0, self.completion or 0
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)


@dataclass(slots=True)
class Choice:
    """One answer, as far as it has come.

    Attributes:
        index: Its number in the answer as a whole.
        text: Its text; in a stream not kept.
        message: What a chat's message has besides, such as calls of tools.
        finish_reason: Why it ended; None while it goes on.
        has_begun: Whether anything of it was sent.
        length: Characters of text so far.
    """

    index: int
    text: str = ""
    message: dict[str, Any] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)
    taken: Taken = field(default_factory=Taken)
    finish_reason: str | None = None
    has_begun: bool = False
    length: int = 0


class Documents:
    """Writes the documents of one answer, of either kind."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._is_chat = question.is_chat
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        kind = "chat.completion" if self._is_chat else "text_completion"
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": question.model}
        self._kind = kind
        self._chunk_kind = f"{kind}.chunk" if self._is_chat else kind

    # -- whole answers ------------------------------------------------------------------------------------------

    def whole(self, choices: list[Choice], usage: Usage) -> dict[str, Any]:
        """The answer when all of it is there."""
        document = {**self._head, "object": self._kind, "system_fingerprint": None}
        document["choices"] = [self._whole_choice(choice) for choice in choices]
        counted = usage.document()
        if counted is not None:
            document["usage"] = counted
        return document

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        made: dict[str, Any] = {"index": choice.index, "logprobs": None}
        made["finish_reason"] = choice.finish_reason or "stop"
        count = self.question.alternatives
        if self._is_chat:
            content = choice.text if choice.text or "tool_calls" not in choice.message else None
            made["message"] = {"role": "assistant", "content": content, "refusal": None, **choice.message}
            for call in made["message"].get("tool_calls", []):
                call.pop("index", None)
            if count is not None:
                choice.taken.grow(choice.text)
                made["logprobs"] = {"content": logprobs.for_chat(choice.taken, choice.logprobs, count), "refusal": None}
        else:
            made["text"] = choice.text
            if count is not None:
                offset = choice.length
                choice.taken.grow(choice.text[offset:])
                made["logprobs"] = logprobs.for_completion(choice.taken, choice.logprobs, count, offset)
        return made

    # -- parts --------------------------------------------------------------------------------------------------

    def first(self, choice: Choice) -> dict[str, Any]:
        """The chunk that says who speaks."""
        return self._chunk({"index": choice.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
                            "finish_reason": None})  # fmt: skip

    def part(self, choice: Choice, piece: Piece, finish_reason: str | None) -> dict[str, Any]:
        """The chunk of what is new in a choice."""
        made: dict[str, Any] = {"index": choice.index, "logprobs": None, "finish_reason": finish_reason}
        count = self.question.alternatives
        if count is not None:
            choice.taken.grow(piece.text)
        if self._is_chat:
            made["delta"] = _delta(piece)
            if count is not None and piece.logprobs:
                made["logprobs"] = {"content": logprobs.for_chat(choice.taken, piece.logprobs, count), "refusal": None}
        else:
            made["text"] = piece.text
            if count is not None and piece.logprobs:
                made["logprobs"] = logprobs.for_completion(choice.taken, piece.logprobs, count, choice.length)
        choice.length += len(piece.text)
        return self._chunk(made)

    def echo(self, choice: Choice, prompt: str) -> dict[str, Any]:
        """The chunk that repeats the prompt."""
        choice.length += len(prompt)
        return self._chunk({"index": choice.index, "text": prompt, "logprobs": None, "finish_reason": None})

    def usage(self, usage: Usage) -> dict[str, Any]:
        """The chunk of tokens, which has no choices."""
        return {**self._chunk(), "usage": usage.document()}

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        made = {**self._head, "object": self._chunk_kind, "system_fingerprint": None, "choices": list(choices)}
        if self.question.include_usage:
            made["usage"] = None  # OpenAI's, in all chunks but the last
        return made


def _delta(piece: Piece) -> dict[str, Any]:
    if not piece.message:
        return {"content": piece.text} if piece.text else {}
    calls = piece.message.get("tool_calls")
    if not calls:
        return piece.message
    # Clients put calls together by their numbers, which a model may leave to the order.
    return {**piece.message, "tool_calls": [{"index": place, **call} for place, call in enumerate(calls)]}


def merge(whole: dict[str, Any], part: dict[str, Any]) -> None:
    """Let *whole*, a chat's message, grow by a part of it; its content is kept elsewhere."""
    for name, value in part.items():
        if name == "tool_calls":
            _merge_calls(whole.setdefault("tool_calls", []), value)
        elif name in {"content", "role"} or value is None:
            continue
        elif isinstance(value, str) and isinstance(whole.get(name), str):
            whole[name] += value
        else:
            whole[name] = value


def _merge_calls(calls: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    for place, part in enumerate(parts):
        index = part.get("index")
        index = place if index is None else index
        if index >= len(calls):
            calls.append({**part, "function": dict(part.get("function") or {})})
            continue
        function = part.get("function") or {}
        for name in ("name", "arguments"):
            if function.get(name):
                calls[index]["function"][name] = calls[index]["function"].get(name, "") + function[name]
