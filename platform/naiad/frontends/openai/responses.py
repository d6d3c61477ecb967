"""Responses to requests for text: as one JSON document, or as a stream of events.

A request with several prompts is several inference requests, but one response. `TextResponse` collects the models'
responses to all prompts and passes what is new to a `ResponseWriter`. There are two: `DocumentWriter` writes one
document at the end, `EventStreamWriter` writes an event for each delta. A failure of one prompt ends the response
and cancels the other prompts' requests.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange, json_response
from naiad.frontends.http1.server_sent_events import EventWriter, SentCount, event
from naiad.frontends.openai import logprobs
from naiad.frontends.openai.errors import SERVER_ERROR, ApiError, to_api_error
from naiad.frontends.openai.logprobs import SampledTokenFinder
from naiad.frontends.openai.requests import TextRequest
from naiad.frontends.openai.vllm_tensors import ChoiceDelta, read_output
from naiad.protocol.inference import InferResponse

logger = logging.getLogger("naiad.openai")

_OK = 200
_DONE = event(b"[DONE]")


@dataclass(slots=True)
class Usage:
    """Token counts so far; None while no response has reported any."""

    prompt: int | None = None
    completion: int | None = None

    def add(self, other: Usage) -> None:
        """Add the counts of another prompt."""
        self.prompt = _sum(self.prompt, other.prompt)
        self.completion = _sum(self.completion, other.completion)

    def document(self) -> dict[str, int] | None:
        """The member `usage` of a response; None if the model reports no counts."""
        if self.prompt is None and self.completion is None:
            return None
        prompt, completion = self.prompt or 0, self.completion or 0
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)


@dataclass(slots=True)
class Choice:
    """One generated text and its state.

    Attributes:
        index: Number of the choice among those of all prompts.
        prompt: Prompt to repeat before the text (`echo`); "" for none.
        text: Text so far; stays empty in a stream.
        message: Members of a chat's message besides its content, such as tool calls.
        logprobs: Alternatives of each token so far; stays empty in a stream.
        finder: Finds the sampled tokens among the alternatives.
        finish_reason: Why the choice is finished; None while it is not.
        has_begun: Whether a chunk was sent.
        length: Characters of text before the next token, the prompt included.
    """

    index: int
    prompt: str = ""
    text: str = ""
    message: dict[str, Any] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)
    finder: SampledTokenFinder = field(default_factory=SampledTokenFinder)
    finish_reason: str | None = None
    has_begun: bool = False
    length: int = 0


class TextResponse:
    """The response to one request; `PromptSink` passes it the model's responses to each prompt.

    Attributes:
        request: The request.
        is_over: Whether the response is complete or has failed.
    """

    def __init__(self, exchange: HttpExchange, request: TextRequest, cancel: Callable[[int], None]) -> None:
        """Respond on *exchange*; *cancel* cancels an inference request by its ticket."""
        self.request = request
        self.is_over = False
        self._exchange = exchange
        count = request.choices
        self._choices = [
            Choice(index, request.prompts[index // count] if request.echo else "")
            for index in range(count * len(request.prompts))
        ]
        self._usages = [Usage() for _ in request.prompts]
        writer = EventStreamWriter if request.stream else DocumentWriter
        self._writer: ResponseWriter = writer(exchange, request)
        self._cancel = cancel
        self._pending_prompts = len(request.prompts)
        self._tickets: list[int] = []

    def on_submitted(self, ticket: int) -> None:
        """Register the ticket of one prompt's inference request, which may have been answered already."""
        self._tickets.append(ticket)
        if self.is_over:
            self._cancel(ticket)
        else:
            self._exchange.on_disconnect(ticket)

    def on_response(self, prompt: int, response: InferResponse | None, *, final: bool, sent: SentCount) -> None:
        """Add a response of the model.

        Args:
            prompt: Index of the prompt.
            response: The response; None if only the end is signalled.
            final: Whether it is the last one for this prompt.
            sent: Reports the response as sent, so that the engine lets the model send more.
        """
        if response is not None:
            events = b""
            with self._fail_on_error():
                if not self.is_over:
                    events = self._add(prompt, response)
            if self.is_over:
                # Discarded responses count too: otherwise a model that ignores its cancellation would block forever.
                sent.add()
                return
            self._writer.send(events, sent)
        if final and not self.is_over:
            self._pending_prompts -= 1
            if not self._pending_prompts:
                self.is_over = True
                with self._fail_on_error():
                    self._writer.finish(self._choices, self._total_usage())

    def fail(self, error: ApiError) -> None:
        """End the response with *error*, unless it is over."""
        if not self.is_over:
            self._fail(error)

    @contextmanager
    def _fail_on_error(self) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            self._fail(error)
        except Exception:
            logger.exception("cannot write the response of model '%s'", self.request.model)
            self._fail(ApiError(INTERNAL_ERROR, status=SERVER_ERROR))

    def _fail(self, error: ApiError) -> None:
        self.is_over = True
        for ticket in self._tickets:
            self._cancel(ticket)
        self._writer.fail(error)

    def _add(self, prompt: int, response: InferResponse) -> bytes:
        if response.error is not None:
            raise to_api_error(response.error, self.request.model)
        output = read_output(response)
        usage = self._usages[prompt]
        if output.prompt_tokens is not None:
            # Engines report 0 until they have read the prompt.
            usage.prompt = max(usage.prompt or 0, output.prompt_tokens)
        if output.tokens is not None:
            usage.completion = (usage.completion or 0) + output.tokens
        count = self.request.choices
        if len(output.deltas) > count:
            raise ApiError(
                f"Expected to find {count} string in the output, found {len(output.deltas)} instead.",
                status=SERVER_ERROR,
            )
        first = prompt * count
        return self._writer.add([(self._choices[first + delta.index], delta) for delta in output.deltas])

    def _total_usage(self) -> Usage:
        total = Usage()
        for usage in self._usages:
            total.add(usage)
        return total


class PromptSink:
    """Receives the model's responses to one prompt."""

    __slots__ = ("_prompt", "_response", "_sent")

    def __init__(self, response: TextResponse, prompt: int, sent: SentCount) -> None:
        self._response = response
        self._prompt = prompt
        self._sent = sent

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - signature of Sink
        """Add a response of the model."""
        self._response.on_response(self._prompt, response, final=final, sent=self._sent)


# -- writers ----------------------------------------------------------------------------------------------------


class ResponseWriter(Protocol):
    """Writes one response to the client."""

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]]) -> bytes:
        """Apply new output to its choices; return the events to send for it."""

    def send(self, events: bytes, sent: SentCount) -> None:
        """Send what `add` returned for one response of the model, and report that response as sent."""

    def finish(self, choices: Sequence[Choice], usage: Usage) -> None:
        """Complete the response."""

    def fail(self, error: ApiError) -> None:
        """End the response with an error."""


class DocumentWriter:
    """Collects all output and writes one JSON document."""

    def __init__(self, exchange: HttpExchange, request: TextRequest) -> None:
        self._exchange = exchange
        self._documents = DocumentBuilder(request)

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]]) -> bytes:
        """Append the deltas to their choices; return no events."""
        for choice, delta in deltas:
            choice.text += delta.text
            choice.logprobs += delta.logprobs
            choice.finish_reason = delta.finish_reason or choice.finish_reason
            if delta.message:
                merge_message(choice.message, delta.message)
        return b""

    def send(self, events: bytes, sent: SentCount) -> None:  # noqa: ARG002 - no events before the end
        """Report the response as sent: the client's reading speed does not matter before the end."""
        sent.add()

    def finish(self, choices: Sequence[Choice], usage: Usage) -> None:
        """Write the document."""
        for choice in choices:
            choice.text, choice.length = choice.prompt + choice.text, len(choice.prompt)
        self._exchange.respond(json_response(self._documents.document(choices, usage)))

    def fail(self, error: ApiError) -> None:
        """Write the error."""
        self._exchange.respond(error.response())


class EventStreamWriter:
    """Writes each delta as an event, as fast as the client reads."""

    def __init__(self, exchange: HttpExchange, request: TextRequest) -> None:
        self._exchange = exchange
        self._request = request
        self._documents = DocumentBuilder(request)
        self._events = EventWriter(exchange)
        self._uncounted = SentCount(lambda _ticket, _count: None)  # of events that belong to no response of the model

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]]) -> bytes:
        """The events of the deltas."""
        return b"".join(_event(chunk) for choice, delta in deltas for chunk in self._chunks(choice, delta))

    def send(self, events: bytes, sent: SentCount) -> None:
        """Queue the events; the response counts as sent once they are written."""
        if not self._events.has_begun:
            self._events.begin(_OK)
        self._events.add(events, sent)
        self._events.write()

    def finish(self, choices: Sequence[Choice], usage: Usage) -> None:
        """Send the missing finish reasons, the usage if requested, and `[DONE]`."""
        chunks = []
        for choice in choices:
            if choice.finish_reason is None:  # the model has no output `finish_reason`
                chunks += self._first_chunks(choice)
                chunks.append(self._documents.delta_chunk(choice, ChoiceDelta(choice.index, ""), "stop"))
        if self._request.include_usage:
            chunks.append(self._documents.usage_chunk(usage))
        self._end(b"".join(map(_event, chunks)))

    def fail(self, error: ApiError) -> None:
        """Write the error: with its HTTP status if the stream has not begun, else as the last event."""
        if self._events.has_begun:
            self._end(_event(error.document()))
        else:
            self._exchange.respond(error.response())

    def _chunks(self, choice: Choice, delta: ChoiceDelta) -> list[dict[str, Any]]:
        if choice.finish_reason is not None:
            return []  # this choice is finished; the response has new output for another one of the prompt
        chunks = self._first_chunks(choice)
        choice.finish_reason = delta.finish_reason
        is_new = delta.text or delta.logprobs or delta.message
        if delta.finish_reason is not None and is_new and self._request.is_chat:
            # OpenAI sends a chat's finish reason in a separate chunk, with an empty delta.
            chunks.append(self._documents.delta_chunk(choice, delta, None))
            chunks.append(self._documents.delta_chunk(choice, ChoiceDelta(delta.index, ""), delta.finish_reason))
        elif is_new or delta.finish_reason is not None:
            chunks.append(self._documents.delta_chunk(choice, delta, delta.finish_reason))
        return chunks

    def _first_chunks(self, choice: Choice) -> list[dict[str, Any]]:
        if choice.has_begun:
            return []
        choice.has_begun = True
        if self._request.is_chat:
            return [self._documents.role_chunk(choice)]
        return [self._documents.echo_chunk(choice)] if choice.prompt else []

    def _end(self, events: bytes) -> None:
        self._events.end()
        self.send(events + _DONE, self._uncounted)


def _event(document: dict[str, Any]) -> bytes:
    return event(orjson.dumps(document))


# -- documents --------------------------------------------------------------------------------------------------


class DocumentBuilder:
    """Builds the JSON of one response: the whole document, or the chunks of a stream."""

    def __init__(self, request: TextRequest) -> None:
        self._request = request
        self._is_chat = request.is_chat
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        kind = "chat.completion" if self._is_chat else "text_completion"
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}
        self._kind = kind
        self._chunk_kind = f"{kind}.chunk" if self._is_chat else kind

    def document(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The whole response."""
        document = {**self._head, "object": self._kind, "system_fingerprint": None}
        document["choices"] = [self._choice(choice) for choice in choices]
        counts = usage.document()
        if counts is not None:
            document["usage"] = counts
        return document

    def _choice(self, choice: Choice) -> dict[str, Any]:
        document: dict[str, Any] = {"index": choice.index, "logprobs": None}
        document["finish_reason"] = choice.finish_reason or "stop"
        count = self._request.top_logprobs
        if self._is_chat:
            # OpenAI: `content` is null, not empty, where the message is a tool call.
            content = choice.text if choice.text or "tool_calls" not in choice.message else None
            document["message"] = {"role": "assistant", "content": content, "refusal": None, **choice.message}
            for call in document["message"].get("tool_calls", []):
                call.pop("index", None)  # a member of streamed calls only
            if count is not None:
                choice.finder.add_text(choice.text)
                content_logprobs = logprobs.for_chat(choice.finder, choice.logprobs, count)
                document["logprobs"] = {"content": content_logprobs, "refusal": None}
        else:
            document["text"] = choice.text
            if count is not None:
                offset = choice.length
                choice.finder.add_text(choice.text[offset:])
                document["logprobs"] = logprobs.for_completion(choice.finder, choice.logprobs, count, offset)
        return document

    def role_chunk(self, choice: Choice) -> dict[str, Any]:
        """The first chunk of a chat's choice, which has the role and no text."""
        return self._chunk({"index": choice.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
                            "finish_reason": None})  # fmt: skip

    def echo_chunk(self, choice: Choice) -> dict[str, Any]:
        """The first chunk of a completion's choice with `echo`, which has the prompt."""
        choice.length += len(choice.prompt)
        return self._chunk({"index": choice.index, "text": choice.prompt, "logprobs": None, "finish_reason": None})

    def delta_chunk(self, choice: Choice, delta: ChoiceDelta, finish_reason: str | None) -> dict[str, Any]:
        """The chunk of one delta."""
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

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The last chunk of a stream with `include_usage`: the token counts, and no choices."""
        return {**self._chunk(), "usage": usage.document()}

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        document = {**self._head, "object": self._chunk_kind, "system_fingerprint": None, "choices": list(choices)}
        if self._request.include_usage:
            document["usage"] = (
                None  # OpenAI: "All other chunks will also include a usage field, but with a null value"
            )
        return document


def _delta(delta: ChoiceDelta) -> dict[str, Any]:
    if not delta.message:
        return {"content": delta.text} if delta.text else {}
    calls = delta.message.get("tool_calls")
    if not calls:
        return delta.message
    # Clients assemble streamed calls by `index`. A model may omit it, then the position in the list is the index.
    return {**delta.message, "tool_calls": [{"index": position, **call} for position, call in enumerate(calls)]}


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
