"""Writes an answer of blocks in the form of a protocol: as one document, or as a stream of named events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from naiad.frontends.http1.messages import HttpExchange, response
from naiad.frontends.http1.server_sent_events import EventWriter, named_event
from naiad.protocol.inference import Buffer
from naiad_llm.openai.answer_blocks import Answer, BlockAssembler, BlockEvent
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.json_parts import dump_parts
from naiad_llm.openai.requests import TextRequest
from naiad_llm.openai.text_response import Choice, ResponseWriter, StreamWriter, Usage
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

    def error_response(self, error: ApiError) -> list[Buffer]:
        """The response for an error before the first event."""


class BlockDocumentWriter(ResponseWriter):
    """Collects the answer and writes one document."""

    def __init__(self, exchange: HttpExchange, request: TextRequest, form: AnswerForm) -> None:
        self._exchange = exchange
        self._form = form
        self._blocks = BlockAssembler(request.top_logprobs)

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]], usage: Usage) -> list[Buffer]:  # noqa: ARG002 - counted at the end
        for _, delta in deltas:
            self._blocks.add(delta)
        self.collected = self._blocks.size
        return []

    def finish(self, choices: Sequence[Choice], usage: Usage) -> None:  # noqa: ARG002 - the blocks have all of it
        if not self._exchange.is_connected:
            self._exchange.respond([])  # the client has left: this ends the exchange
            return
        self._blocks.end()
        self._blocks.answer.usage = usage
        self._exchange.respond(response(_OK, dump_parts(self._form.document(self._blocks.answer))))

    def fail(self, error: ApiError) -> None:
        self._exchange.respond(self._form.error_response(error))

    def abandon(self) -> None:
        super().abandon()
        self._blocks = BlockAssembler()


class BlockStreamWriter(StreamWriter):
    """Writes each change of the answer as events. It also collects the answer: the last events repeat it."""

    def __init__(self, exchange: HttpExchange, request: TextRequest, form: AnswerForm) -> None:
        self._exchange = exchange
        self._form = form
        self._blocks = BlockAssembler(request.top_logprobs)
        self._events = EventWriter(exchange)
        self._has_begun = False
        self._is_abandoned = False

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]], usage: Usage) -> list[Buffer]:
        events = self._begin(usage)
        for _, delta in deltas:
            events += self._changes(self._blocks.add(delta))
        self.collected = self._blocks.size
        return events

    def finish(self, choices: Sequence[Choice], usage: Usage) -> None:  # noqa: ARG002 - the blocks have all of it
        if self._is_abandoned:
            self._end([])
            return
        self._blocks.answer.usage = usage
        events = self._begin(usage) + self._changes(self._blocks.end())
        self._end(events + _encoded(self._form.finish(self._blocks.answer)))

    def fail(self, error: ApiError) -> None:
        if self._events.has_begun:
            self._end(_encoded(self._form.failure(error, self._blocks.answer)))
        else:
            self._exchange.respond(self._form.error_response(error))

    def abandon(self) -> None:
        super().abandon()
        self._is_abandoned = True
        self._blocks = BlockAssembler()

    def _begin(self, usage: Usage) -> list[Buffer]:
        if self._has_begun:
            return []
        self._has_begun = True
        return _encoded(self._form.begin(usage))

    def _changes(self, events: Sequence[BlockEvent]) -> list[Buffer]:
        return [part for event in events for part in _encoded(self._form.change(event))]


def block_writer(exchange: HttpExchange, request: TextRequest, form: AnswerForm) -> ResponseWriter:
    """The writer of the response to *request* in *form*."""
    return (BlockStreamWriter if request.stream else BlockDocumentWriter)(exchange, request, form)


def _encoded(events: Events) -> list[Buffer]:
    return [part for document in events for part in named_event(document["type"].encode(), dump_parts(document))]
