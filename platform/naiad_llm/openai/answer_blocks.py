"""The answer of a model as blocks: text, reasoning and tool calls, in the order in which they were generated.

OpenAI's Responses and Anthropic's Messages both write an answer in this way. A model sends deltas, as for chats;
`BlockAssembler` turns them into the begin, the growth and the end of blocks.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from naiad_llm.openai.errors import SERVER_ERROR, ApiError
from naiad_llm.openai.json_parts import GrownJson
from naiad_llm.openai.logprobs import SampledTokenFinder, for_chat
from naiad_llm.openai.text_response import Usage
from naiad_llm.openai.vllm_tensors import ChoiceDelta

_BLOCK_BYTES = 1024  # what a block takes besides its text
REASONING_NAMES = ("reasoning_content", "reasoning")
"""Members of a message with the model's reasoning: that of vLLM until 0.11 and of llama.cpp, and vLLM's newer one."""


class BlockKind(Enum):
    """What a block contains."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class Step(Enum):
    """What happens to a block."""

    BEGIN = "begin"
    GROW = "grow"
    END = "end"


@dataclass(slots=True)
class Block:
    """A part of an answer."""

    index: int
    kind: BlockKind
    call_id: str = ""  # identifies a tool call, so that its result can refer to it; "" for other kinds
    name: str = ""
    content: GrownJson = field(default_factory=lambda: GrownJson(""))
    # Of each token of a text, in the form of chats; empty if they were not requested.
    logprobs: GrownJson = field(default_factory=lambda: GrownJson([]))
    _parts: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def append(self, text: str) -> int:
        """Add new text, or arguments of a call; return how many bytes more are held."""
        if self.kind is BlockKind.CALL:
            self._parts.append(text)
            return sys.getsizeof(text)
        before = self.content.size
        self.content.add(text)
        return self.content.size - before


class BlockEvent(NamedTuple):
    """A change of an answer."""

    step: Step
    block: Block
    text: str = ""
    logprobs: Sequence[dict[str, Any]] = ()


@dataclass(slots=True)
class Answer:
    """A model's answer; *finish_reason* is in the words of chats, *stop* "" unless a stop sequence has ended it."""

    blocks: list[Block] = field(default_factory=list)
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    stop: str = ""

    @property
    def size(self) -> int:
        return sum(block.content.size for block in self.blocks)

    def message(self) -> dict[str, Any]:
        """The answer as a message of a chat, to continue the conversation with; for `dump_parts`."""
        by_kind = {kind: [block for block in self.blocks if block.kind is kind] for kind in BlockKind}
        text = GrownJson("").joined(*(block.content for block in by_kind[BlockKind.TEXT]))
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if by_kind[BlockKind.REASONING]:
            thoughts = (block.content for block in by_kind[BlockKind.REASONING])
            message["reasoning_content"] = GrownJson("").joined(*thoughts)
        if by_kind[BlockKind.CALL]:
            message["content"] = text or None
            message["tool_calls"] = [
                {
                    "id": block.call_id,
                    "type": "function",
                    "function": {"name": block.name, "arguments": block.arguments},
                }
                for block in by_kind[BlockKind.CALL]
            ]
        return message


class BlockAssembler:
    """Assembles the deltas of one choice into the blocks of an answer."""

    def __init__(self, top_logprobs: int | None = None) -> None:
        """No blocks yet; *top_logprobs* is the number of likely tokens to report, None for no probabilities."""
        self.answer = Answer()
        self._top_logprobs = top_logprobs
        self._finder = SampledTokenFinder()
        self._open: Block | None = None
        self._calls: dict[int, Block] = {}  # by the number that the model gives them
        self.size = 0

    def add(self, delta: ChoiceDelta) -> list[BlockEvent]:
        message = delta.message or {}
        events: list[BlockEvent] = []
        reasoning = next((message[name] for name in REASONING_NAMES if isinstance(message.get(name), str)), "")
        if reasoning:
            self._grow(BlockKind.REASONING, reasoning, events)
        content = message.get("content")
        text = content if isinstance(content, str) else delta.text
        if text:
            self._grow(BlockKind.TEXT, text, events, self._logprobs(text, delta))
        for position, call in enumerate(message.get("tool_calls") or ()):
            self._add_call(position, call, events)
        self.answer.finish_reason = delta.finish_reason or self.answer.finish_reason
        self.answer.stop = delta.stop_reason or self.answer.stop
        return events

    def end(self) -> list[BlockEvent]:
        """End the last block; an answer without any gets an empty text."""
        events: list[BlockEvent] = []
        if not self.answer.blocks:
            self._begin(Block(0, BlockKind.TEXT), events)
        self._end_open(events)
        return events

    def _logprobs(self, text: str, delta: ChoiceDelta) -> list[dict[str, Any]]:
        if self._top_logprobs is None:
            return []
        self._finder.add_text(text)
        return for_chat(self._finder, delta.logprobs, self._top_logprobs)

    def _grow(
        self, kind: BlockKind, text: str, events: list[BlockEvent], logprobs: Sequence[dict[str, Any]] = ()
    ) -> None:
        block = self._open
        if block is None or block.kind is not kind:
            block = self._begin(Block(len(self.answer.blocks), kind), events)
        before = block.logprobs.size
        block.logprobs.add(logprobs)
        self.size += block.append(text) + block.logprobs.size - before
        events.append(BlockEvent(Step.GROW, block, text, logprobs))

    def _add_call(self, position: int, call: Mapping[str, Any], events: list[BlockEvent]) -> None:
        number = call.get("index")
        number = position if number is None else number
        function = call.get("function") or {}
        block = self._calls.get(number)
        if block is None:
            # OpenAI's own form of these ids; models of other servers may send none.
            call_id = call.get("id") or f"call_{uuid.uuid4().hex[:24]}"
            new = Block(len(self.answer.blocks), BlockKind.CALL, str(call_id), str(function.get("name") or ""))
            block = self._calls[number] = self._begin(new, events)
        elif block is not self._open:
            raise ApiError(
                f"The model continued its tool call {number} after it had begun another", status=SERVER_ERROR
            )
        arguments = function.get("arguments")
        if arguments:
            self.size += block.append(arguments)
            events.append(BlockEvent(Step.GROW, block, arguments))

    def _begin(self, block: Block, events: list[BlockEvent]) -> Block:
        self._end_open(events)
        self.answer.blocks.append(block)
        self.size += _BLOCK_BYTES
        self._open = block
        events.append(BlockEvent(Step.BEGIN, block))
        return block

    def _end_open(self, events: list[BlockEvent]) -> None:
        if self._open is not None:
            events.append(BlockEvent(Step.END, self._open))
            self._open = None
