"""Writes an answer of blocks in the form of a protocol: as one document, or as a stream of named events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from naiad.frontends.http1.messages import HttpExchange, response
from naiad.frontends.http1.server_sent_events import EventWriter, SentCount, named_event
from naiad.protocol.inference import Buffer
from naiad_llm.openai.answer_blocks import Answer, BlockAssembler, BlockEvent
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.json_parts import dump_parts
from naiad_llm.openai.requests import TextRequest
from naiad_llm.openai.text_response import Choice, Usage
from naiad_llm.openai.vllm_tensors import ChoiceDelta

_OK = 200
_JOINED = 1 << 16  # bytes of events below which they are joined

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


class BlockDocumentWriter:
    """Collects the answer and writes one document."""

    def __init__(self, exchange: HttpExchange, request: TextRequest, form: AnswerForm) -> None:
        self._exchange = exchange
        self._form = form
        self._blocks = BlockAssembler(request.top_logprobs)

    @property
    def collected(self) -> int:
        return self._blocks.size

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]], usage: Usage) -> list[Buffer]:  # noqa: ARG002 - counted at the end
        for _, delta in deltas:
            self._blocks.add(delta)
        return []

    def send(self, events: list[Buffer], sent: SentCount) -> None:  # noqa: ARG002 - no events before the end
        """Report the response as sent: the client's reading speed does not matter before the end."""
        sent.add()

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
        self._blocks = BlockAssembler()


class BlockStreamWriter:
    """Writes each change of the answer as events, as fast as the client reads."""

    def __init__(self, exchange: HttpExchange, request: TextRequest, form: AnswerForm) -> None:
        self._exchange = exchange
        self._form = form
        self._blocks = BlockAssembler(request.top_logprobs)
        self._events = EventWriter(exchange)
        self._has_begun = False
        self._is_abandoned = False
        self._uncounted = SentCount()  # of events that belong to no response of the model

    @property
    def collected(self) -> int:
        """Bytes of the answer so far: the last events repeat it."""
        return self._blocks.size

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]], usage: Usage) -> list[Buffer]:
        events = self._begin(usage)
        for _, delta in deltas:
            events += self._changes(self._blocks.add(delta))
        return events

    def send(self, events: list[Buffer], sent: SentCount) -> None:
        """Queue the events; the response counts as sent once they are written."""
        if not self._events.has_begun:
            self._events.begin(_OK)
        if sum(map(len, events)) < _JOINED:
            self._events.add(b"".join(events), sent)
        else:
            self._events.add_long(events, sent)
        self._events.write()

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
        self._is_abandoned = True
        self._blocks = BlockAssembler()

    def _begin(self, usage: Usage) -> list[Buffer]:
        if self._has_begun:
            return []
        self._has_begun = True
        return _encoded(self._form.begin(usage))

    def _changes(self, events: Sequence[BlockEvent]) -> list[Buffer]:
        return [part for event in events for part in _encoded(self._form.change(event))]

    def _end(self, events: list[Buffer]) -> None:
        self._events.end()
        self.send(events, self._uncounted)


def block_writer(
    exchange: HttpExchange, request: TextRequest, form: AnswerForm
) -> BlockDocumentWriter | BlockStreamWriter:
    """The writer of the response to *request* in *form*."""
    return (BlockStreamWriter if request.stream else BlockDocumentWriter)(exchange, request, form)


def _encoded(events: Events) -> list[Buffer]:
    return [part for document in events for part in named_event(document["type"].encode(), dump_parts(document))]
