"""One response to a request for text, in the form of its protocol.

A request with several prompts is several inference requests, but one response. `TextResponse` collects the models'
responses to all prompts and has a `ResponseForm` write what is new: `completions` writes the choices of OpenAI's older
APIs, and `block_form` the blocks of newer ones. A failure of one prompt ends the response and cancels the other
prompts' requests.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from naiad.frontends.collected import CollectedBytes
from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange
from naiad.frontends.http1.server_sent_events import EventWriter, SentCount
from naiad.frontends.request_budget import RequestBudget
from naiad.protocol.inference import Buffer, InferResponse, SubmittedRequest
from naiad_llm.openai.errors import SERVER_ERROR, UNAVAILABLE, ApiError, ErrorResponse, to_api_error
from naiad_llm.openai.json_parts import GrownJson
from naiad_llm.openai.logprobs import SampledTokenFinder
from naiad_llm.openai.requests import TextRequest
from naiad_llm.openai.vllm_tensors import ChoiceDelta, read_output

logger = logging.getLogger("naiad.openai")

_OK = 200
_JOINED = 1 << 16  # bytes of events below which they are joined


@dataclass(slots=True)
class Usage:
    """Token counts so far; None while no response has reported any."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None

    def add(self, other: Usage) -> None:
        self.prompt = _sum(self.prompt, other.prompt)
        self.completion = _sum(self.completion, other.completion)
        self.cached = _sum(self.cached, other.cached)

    def document(self) -> dict[str, Any] | None:
        """The member `usage` of a response; None if the model reports no counts."""
        if self.prompt is None and self.completion is None:
            return None
        prompt, completion = self.prompt or 0, self.completion or 0
        counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return counts if self.cached is None else {**counts, "prompt_tokens_details": {"cached_tokens": self.cached}}


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)


@dataclass(slots=True)
class Choice:
    """One generated text and its state."""

    index: int
    prompt: str = ""  # prompt to repeat before the text (`echo`); "" for none
    # Alternatives of each of its tokens, the first of which has none.
    prompt_logprobs: list[Any] = field(default_factory=list)
    text: GrownJson = field(default_factory=lambda: GrownJson(""))  # text so far; stays empty in a stream
    # Members of a chat's message besides its content, such as tool calls.
    message: dict[str, Any] = field(default_factory=dict)
    # Members of the log probabilities so far; stay empty in a stream.
    logprobs: defaultdict[str, GrownJson] = field(default_factory=lambda: defaultdict(lambda: GrownJson([])))
    # Places of the tokens in the text, for a completion; stay empty in a stream.
    offsets: list[int] = field(default_factory=list)
    finder: SampledTokenFinder = field(default_factory=SampledTokenFinder)
    finish_reason: str | None = None
    has_begun: bool = False
    length: int = 0  # characters of text before the next token, in a stream with the prompt
    # What another server needs to continue with the model's cache (`kv_transfer_params`).
    transfer: dict[str, Any] | None = None


class ResponseForm(Protocol):
    """Writes one response: as one document at the end, or as a stream of events if its request asks for one."""

    collected: int = 0  # bytes of output that are held until the end

    def add(self, deltas: Sequence[tuple[Choice, ChoiceDelta]], usage: Usage) -> list[Buffer]:
        """Apply new output to its choices; return the events of a stream for it, in parts."""

    def finish(self, choices: Sequence[Choice], usage: Usage) -> list[Buffer]:
        """The whole response, or the last events of a stream."""

    def failure(self, error: ApiError) -> list[Buffer]:  # noqa: ARG002 - for a form that never is a stream
        """The last events of a stream, for an error after the first event."""
        return []

    def drop(self) -> None:
        """Free what was collected: nobody reads it. `failure` may follow."""
        self.collected = 0


class TextResponse:
    """The response to one request; `PromptSink` passes it the model's responses to each prompt."""

    def __init__(
        self,
        exchange: HttpExchange,
        request: TextRequest,
        form: ResponseForm,
        budget: RequestBudget,
        error_response: ErrorResponse,
    ) -> None:
        self.request = request
        self.is_over = False
        self._exchange = exchange
        self._choices = _new_choices(request)
        self._usages = [Usage() for _ in request.prompts]
        self._form = form
        self._error_response = error_response
        self._events: EventWriter | None = None  # of a stream that has begun
        self._is_dropped = False
        self._pending_prompts = len(request.prompts)
        self._submitted: list[SubmittedRequest] = []
        self._collected = CollectedBytes(budget, self._on_refused, self._confirm_held)
        self._held: list[SentCount] = []  # of responses that count as sent when there is room for the next
        if not request.stream:  # a stream's `EventWriter` waits for its client in this way
            exchange.on_resume(self._on_resume)

    def on_submitted(self, submitted: SubmittedRequest) -> None:
        """Register one prompt's inference request, which may have been answered already."""
        self._submitted.append(submitted)
        if self.is_over:
            submitted.cancel()
        else:
            self._exchange.on_disconnect(submitted)

    def on_response(self, prompt: int, response: InferResponse | None, *, final: bool, sent: SentCount) -> None:
        if response is not None:
            events: list[Buffer] = []
            is_read = self._exchange.is_connected
            if not is_read:
                self._drop()
            with self._fail_on_error():
                if is_read and not self.is_over:
                    events = self._add(prompt, response)
                    self._collected.count(self._form.collected)
            if not is_read or self.is_over:
                # Discarded responses count too: otherwise a model that ignores its cancellation would block forever.
                sent.add()
            elif self.request.stream:
                self._send(events, sent)
            elif self._collected.is_stopped:
                self._held.append(sent)
            else:
                sent.add()  # the client's reading speed does not matter before the end
        if final and not self.is_over:
            self._pending_prompts -= 1
            if not self._pending_prompts:
                self.is_over = True
                self._release()  # it counts as unread from now on, if the client does not read it
                with self._fail_on_error():
                    last = [] if self._is_dropped else self._form.finish(self._choices, self._total_usage())
                    self._end(last, is_stream=self.request.stream)

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
        for submitted in self._submitted:
            submitted.cancel()
        has_begun = self._events is not None
        self._end((self._form.failure if has_begun else self._error_response)(error), is_stream=has_begun)
        self._drop()

    def _send(self, parts: list[Buffer], sent: SentCount, *, is_last: bool = False) -> None:
        """Queue the events for one response of the model, which counts as sent once they are written."""
        events = self._events
        if events is None:
            events = self._events = EventWriter(self._exchange)
            events.begin(_OK)
        if is_last:
            events.end()
        if sum(map(len, parts)) < _JOINED:
            events.add(b"".join(parts), sent)
        else:
            events.add_long(parts, sent)
        events.write()

    def _end(self, parts: list[Buffer], *, is_stream: bool) -> None:
        if is_stream:
            self._send(parts, SentCount(), is_last=True)  # of events that belong to no response of the model
        else:
            self._exchange.respond(parts)

    def _on_refused(self, reason: str) -> None:
        self.fail(ApiError(reason, status=UNAVAILABLE))

    def _on_resume(self) -> None:
        if not self._exchange.is_connected:
            self._drop()

    def _drop(self) -> None:
        """Free what was collected: nobody reads it."""
        self._is_dropped = True
        self._choices = _new_choices(self.request)
        self._form.drop()
        self._release()

    def _release(self) -> None:
        self._collected.release()
        self._confirm_held()

    def _confirm_held(self) -> None:
        held, self._held = self._held, []
        for sent in held:
            sent.add()

    def _add(self, prompt: int, response: InferResponse) -> list[Buffer]:
        if response.error is not None:
            raise to_api_error(response.error, self.request.model)
        output = read_output(response)
        usage = self._usages[prompt]
        if output.prompt_tokens is not None:
            # Engines report 0 until they have read the prompt.
            usage.prompt = max(usage.prompt or 0, output.prompt_tokens)
        if output.tokens is not None:
            usage.completion = 0 if self.request.is_empty else (usage.completion or 0) + output.tokens
        if output.cached_tokens is not None:
            usage.cached = max(usage.cached or 0, output.cached_tokens)
        count = self.request.choices
        if len(output.deltas) > count:
            raise ApiError(
                f"Expected to find {count} string in the output, found {len(output.deltas)} instead.",
                status=SERVER_ERROR,
            )
        first = prompt * count
        if self.request.echo:
            for choice in self._choices[first : first + count]:
                choice.prompt = output.prompt_text or choice.prompt
                choice.prompt_logprobs = output.prompt_logprobs or choice.prompt_logprobs
        if output.transfer is not None:
            self._choices[first].transfer = output.transfer
        if self.request.is_empty:
            for delta in output.deltas:
                delta.text, delta.logprobs = "", []
        return self._form.add([(self._choices[first + delta.index], delta) for delta in output.deltas], usage)

    def _total_usage(self) -> Usage:
        total = Usage()
        for usage in self._usages:
            total.add(usage)
        return total


def _new_choices(request: TextRequest) -> list[Choice]:
    # The model returns the text of a prompt of token ids.
    echoed = [prompt if request.echo and isinstance(prompt, str) else "" for prompt in request.prompts]
    return [Choice(index, echoed[index // request.choices]) for index in range(request.choices * len(echoed))]


@dataclass(slots=True, eq=False)
class PromptSink:
    """Receives the model's responses to one prompt."""

    _response: TextResponse
    _prompt: int
    _sent: SentCount

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - signature of Sink
        self._response.on_response(self._prompt, response, final=final, sent=self._sent)
