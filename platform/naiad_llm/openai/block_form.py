"""Writes an answer of blocks in the form of a protocol: as one document, or as a stream of named events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from naiad.frontends.http1.messages import response
from naiad.frontends.http1.server_sent_events import named_event
from naiad.protocol.inference import Buffer
from naiad_llm.openai.answer_blocks import Answer, BlockAssembler, BlockEvent
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.json_parts import dump_parts
from naiad_llm.openai.requests import TextRequest
from naiad_llm.openai.text_response import Choice, ResponseForm, Usage
from naiad_llm.openai.vllm_tensors import ChoiceDelta

_OK = 200

Events = Sequence[dict[str, Any]]  # events of a stream; the member `type` of each is also its name


class AnswerForm(Protocol):
    """How a protocol writes an answer."""

    def begin(self, usage: Usage) -> Events:
        """The events before the first block. *usage* has the counts that are known by then."""

    def change(self, event: BlockEvent) -> Events:
        """The events for one change of a block."""

    def finish(self, answer: Answer) -> Events:
        """The events after the last block."""

    def document(self, answer: Answer) -> dict[str, Any]:
        """The whole answer, for `dump_parts`."""

    def failure(self, error: ApiError, answer: Answer) -> Events:
        """The events that end a stream with an error."""


class BlockForm(ResponseForm):
    """Writes one document, or each change of the answer as events; the last events of a stream repeat the answer."""

    def __init__(self, request: TextRequest, form: AnswerForm) -> None:
        self._is_stream = request.stream
        self._form = form
        self._blocks = BlockAssembler(request.top_logprobs)
        self._has_begun = False

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]], usage: Usage) -> list[Buffer]:
        changes = [event for _, delta in deltas for event in self._blocks.add(delta)]
        self.collected = self._blocks.size
        return self._events(usage, changes) if self._is_stream else []

    def finish(self, choices: Sequence[Choice], usage: Usage) -> list[Buffer]:  # noqa: ARG002 - the blocks have all of it
        answer = self._blocks.answer
        answer.usage = usage
        changes = self._blocks.end()
        if not self._is_stream:
            return response(_OK, dump_parts(self._form.document(answer)))
        return self._events(usage, changes) + _encoded(self._form.finish(answer))

    def failure(self, error: ApiError) -> list[Buffer]:
        return _encoded(self._form.failure(error, self._blocks.answer))

    def drop(self) -> None:
        super().drop()
        self._blocks = BlockAssembler()

    def _events(self, usage: Usage, changes: Sequence[BlockEvent]) -> list[Buffer]:
        events = [] if self._has_begun else _encoded(self._form.begin(usage))
        self._has_begun = True
        return events + [part for change in changes for part in _encoded(self._form.change(change))]


def _encoded(events: Events) -> list[Buffer]:
    return [part for document in events for part in named_event(document["type"].encode(), dump_parts(document))]
