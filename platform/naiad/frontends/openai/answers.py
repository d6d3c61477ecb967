"""Where a model's responses become one answer: as a whole, or in parts as they come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from naiad.frontends.http1.messages import INTERNAL_ERROR, Exchange, json_response
from naiad.frontends.http1.sse import EventWriter, SentCount, event
from naiad.frontends.openai import documents
from naiad.frontends.openai.documents import Choice, Documents, Usage
from naiad.frontends.openai.errors import SERVER_ERROR, ApiError, of
from naiad.frontends.openai.questions import Question
from naiad.frontends.openai.tensors import Piece, read_reply
from naiad.protocol.inference import InferResponse

logger = logging.getLogger("naiad.openai")

_OK = 200
_DONE = event(b"[DONE]")


class Answer:
    """The answer to one question; each of its prompts has a sink of its own.

    Subclasses say what becomes of the parts, of the end, and of an error.
    """

    def __init__(self, exchange: Exchange, question: Question, cancel: Callable[[int], None]) -> None:
        """Answer on *exchange*; *cancel* takes inferences back once one has failed."""
        self.exchange = exchange
        self.question = question
        self.documents = Documents(question)
        count = question.choices
        self.choices = [Choice(index) for index in range(count * len(question.prompts))]
        self.usages = [Usage() for _ in question.prompts]
        self.is_over = False
        self._cancel = cancel
        self._open = len(question.prompts)
        self._tickets: list[int] = []

    def submitted(self, ticket: int) -> None:
        """One of its inferences has this ticket."""
        self._tickets.append(ticket)
        if self.is_over:
            self._cancel(ticket)
        else:
            self.exchange.on_disconnect(ticket)

    def take(self, prompt: int, response: InferResponse | None, *, final: bool, taken: SentCount) -> None:
        """Take a response to one of the prompts."""
        if response is not None:
            events = b""
            with self._giving_up():
                if not self.is_over:
                    events = self._grow(prompt, response)
            if self.is_over:  # a model that goes on all the same is not to be held back for ever
                taken.add()
                return
            self.hand_over(events, taken)
        if final and not self.is_over:
            self._open -= 1
            if not self._open:
                self.is_over = True
                with self._giving_up():
                    self.finish()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            self._give_up(error)
        except Exception:
            logger.exception("cannot answer for model '%s'", self.question.model)
            self._give_up(ApiError(INTERNAL_ERROR, status=SERVER_ERROR))

    def refuse(self, error: ApiError) -> None:
        """An inference could not even begin."""
        if not self.is_over:
            self._give_up(error)

    def _grow(self, prompt: int, response: InferResponse) -> bytes:
        if response.error is not None:
            raise of(response.error, self.question.model)
        reply = read_reply(response)
        usage = self.usages[prompt]
        if reply.prompt_tokens is not None:
            usage.prompt = max(usage.prompt or 0, reply.prompt_tokens)  # 0 while it is not known
        if reply.tokens is not None:
            usage.completion = (usage.completion or 0) + reply.tokens
        first = prompt * self.question.choices
        if len(reply.pieces) > self.question.choices:
            raise ApiError(
                f"Expected to find {self.question.choices} string in the output, found {len(reply.pieces)} instead.",
                status=SERVER_ERROR,
            )
        return self.grow([(self.choices[first + piece.index], piece) for piece in reply.pieces])

    def _give_up(self, error: ApiError) -> None:
        self.is_over = True
        for ticket in self._tickets:
            self._cancel(ticket)
        self.fail(error)

    def usage(self) -> Usage:
        """Tokens of all prompts together."""
        whole = Usage()
        for usage in self.usages:
            whole.add(usage)
        return whole

    def echoed(self, choice: Choice) -> str:
        """What is repeated before a choice's text."""
        return self.question.prompts[choice.index // self.question.choices] if self.question.echo else ""

    def grow(self, parts: Sequence[tuple[Choice, Piece]]) -> bytes:
        """Take what is new in some choices; return what of it is to be sent at once."""
        raise NotImplementedError

    def hand_over(self, events: bytes, taken: SentCount) -> None:
        """Send what `grow` returned for one response, and count it once that has left."""
        raise NotImplementedError

    def finish(self) -> None:
        """All is there."""
        raise NotImplementedError

    def fail(self, error: ApiError) -> None:
        """There will be no more."""
        raise NotImplementedError


class WholeAnswer(Answer):
    """Waits for all, then answers."""

    def grow(self, parts: Sequence[tuple[Choice, Piece]]) -> bytes:
        """Keep what is new."""
        for choice, piece in parts:
            choice.text += piece.text
            choice.logprobs += piece.logprobs
            choice.finish_reason = piece.finish_reason or choice.finish_reason
            if piece.message:
                documents.merge(choice.message, piece.message)
        return b""

    def hand_over(self, events: bytes, taken: SentCount) -> None:  # noqa: ARG002 - there are none
        """Count it: nothing of it waits for the client."""
        taken.add()

    def finish(self) -> None:
        """Answer."""
        for choice in self.choices:
            echoed = self.echoed(choice)
            choice.text, choice.length = echoed + choice.text, len(echoed)
        self.exchange.respond(json_response(self.documents.whole(self.choices, self.usage())))

    def fail(self, error: ApiError) -> None:
        """Answer with the error."""
        self.exchange.respond(error.response())


class StreamedAnswer(Answer):
    """Answers as the model gets on with it."""

    def __init__(self, exchange: Exchange, question: Question, cancel: Callable[[int], None]) -> None:
        super().__init__(exchange, question, cancel)
        self._writer = EventWriter(exchange)
        self._nobodys = SentCount(lambda _ticket, _count: None)  # of events that no response brought

    def grow(self, parts: Sequence[tuple[Choice, Piece]]) -> bytes:
        """Events of what is new."""
        return b"".join(_event(chunk) for choice, piece in parts for chunk in self._chunks(choice, piece))

    def hand_over(self, events: bytes, taken: SentCount) -> None:
        """Send them as fast as the client reads."""
        if not self._writer.has_begun:
            self._writer.begin(_OK)
        self._writer.add(events, taken)
        self._writer.write()

    def _chunks(self, choice: Choice, piece: Piece) -> list[dict[str, Any]]:
        if choice.finish_reason is not None:
            return []  # it has ended, another of its prompt goes on
        chunks = self._beginning(choice)
        choice.finish_reason = piece.finish_reason
        is_new = piece.text or piece.logprobs or piece.message
        if piece.finish_reason is not None and is_new and self.question.is_chat:
            chunks.append(self.documents.part(choice, piece, None))
            chunks.append(self.documents.part(choice, Piece(piece.index, ""), piece.finish_reason))
        elif is_new or piece.finish_reason is not None:
            chunks.append(self.documents.part(choice, piece, piece.finish_reason))
        return chunks

    def _beginning(self, choice: Choice) -> list[dict[str, Any]]:
        if choice.has_begun:
            return []
        choice.has_begun = True
        if self.question.is_chat:
            return [self.documents.first(choice)]
        echoed = self.echoed(choice)
        return [self.documents.echo(choice, echoed)] if echoed else []

    def finish(self) -> None:
        """Send what every stream ends with."""
        chunks = []
        for choice in self.choices:
            if choice.finish_reason is None:  # the model does not say
                chunks += self._beginning(choice)
                chunks.append(self.documents.part(choice, Piece(choice.index, ""), "stop"))
        if self.question.include_usage:
            chunks.append(self.documents.usage(self.usage()))
        self._end(b"".join(map(_event, chunks)))

    def fail(self, error: ApiError) -> None:
        """Answer with the error if nothing is out yet; else it is the last event."""
        if self._writer.has_begun:
            self._end(_event(error.document()))
        else:
            self.exchange.respond(error.response())

    def _end(self, events: bytes) -> None:
        self._writer.end()
        self.hand_over(events + _DONE, self._nobodys)


class PromptSink:
    """Where the responses to one of the prompts of an answer go."""

    __slots__ = ("_answer", "_number", "_taken")

    def __init__(self, answer: Answer, number: int, taken: SentCount) -> None:
        self._answer = answer
        self._number = number
        self._taken = taken

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - Sink
        """Take one response."""
        self._answer.take(self._number, response, final=final, taken=self._taken)


def _event(document: dict[str, Any]) -> bytes:
    return event(orjson.dumps(document))
