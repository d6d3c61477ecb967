"""Sends what an engine generates as responses: one for each delta of a stream, else one at the end."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import triton_python_backend_utils as pb_utils

from vllm_like import chat, tensors
from vllm_like.constraints import ConstrainedWriter
from vllm_like.engines.base import BusyError, CallerError, Delta, NotFoundError, PathSink, Sink, TokenLogprobs
from vllm_like.metrics import Metrics, RequestProgress
from vllm_like.requests import ResponseOptions

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CANCELLED_TEXT = "Request was cancelled"
_CODES = {
    NotFoundError: pb_utils.TritonError.NOT_FOUND,
    CallerError: pb_utils.TritonError.INVALID_ARG,
    BusyError: pb_utils.TritonError.UNAVAILABLE,
}
_Result = Union[List[float], float]  # a vector or a score
UNFINISHED = "None"  # the output `finish_reason` of a choice that is not finished: Triton's backend sends `str(None)`


def send_error(sender: Any, error: BaseException) -> None:
    """Send *error* as the only response."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), pb_utils.TritonError.INTERNAL)
    sender.send(tensors.error_response(f"Error generating stream: {error}", code), flags=FINAL)


class _Choice:
    """One generated text: what is not sent yet, and totals."""

    def __init__(self, options: ResponseOptions) -> None:
        self.text = options.echo
        self.tokens = 0
        self.total = 0
        self.logprobs: List[Any] = []
        self.logprob = 0.0
        # The role is part of a whole message only, as in OpenAI's API.
        self.message: Dict[str, Any] = {} if options.stream else {"role": "assistant", "content": None}
        self.finish_reason: Optional[str] = None
        self.stop_reason: Optional[str] = None
        self.single_call = options.single_call
        self.writer = ConstrainedWriter(options.constraint) if options.constraint is not None else None

    def add(self, delta: Delta, *, keeps_message: bool) -> None:
        if self.writer is not None:
            self.writer.convert(delta)
        if self.single_call and delta.message is not None and "tool_calls" in delta.message:
            delta.message = chat.with_first_call(delta.message)
        self.text += delta.text
        self.tokens += delta.tokens
        self.total += delta.tokens
        self.logprobs += delta.logprobs
        self.logprob += delta.logprob
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.stop_reason = delta.stop_reason or self.stop_reason
        if keeps_message:
            if delta.message is not None:
                chat.merge_message(self.message, delta.message)
            if delta.text and (delta.message is None or "content" not in delta.message):
                chat.merge_message(self.message, {"content": delta.text})

    def clear_sent(self) -> None:
        """Drop what was sent. The cumulative log probability and the finish reason are repeated in later responses."""
        self.text = ""
        self.tokens = 0
        self.logprobs = []
        self.message = {}


class ResponseSink(Sink):
    """Sends the requested outputs through the request's response sender."""

    def __init__(self, sender: Any, options: ResponseOptions, metrics: Metrics) -> None:
        self._sender = sender
        self._options = options
        self._metrics = metrics
        self._choices = [_Choice(options) for _ in range(options.choices)]
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._processed_tokens: Optional[int] = None  # of the prompt, while it is read
        self._prompt: Dict[str, Sequence[Any]] = {}  # outputs that only the next response has
        self._arrived = time.monotonic()
        self._first = 0.0
        self._is_over = self._has_started = False
        self._progress = RequestProgress(metrics, options.choices)
        _report(sender, "mark_queued")
        self._last_tokens: Dict[int, float] = {}  # when each choice got its last token
        self._token_seconds: List[float] = []

    def on_start(self, at: float = 0.0) -> None:
        if self._has_started:
            return
        self._has_started = True
        self._progress.start()
        _report(self._sender, "mark_started", int((at or time.monotonic()) * 1e9))

    def discard(self) -> None:
        """Count the request as ended; for one that its engine has rejected, which does not call `end`."""
        self._progress.end()

    def on_cached_tokens(self, count: int) -> None:
        self._cached_tokens = count

    def on_prompt(self, text: str, logprobs: Optional[Sequence[TokenLogprobs]]) -> None:
        """Send both with the next response. The engine knows whether the request has asked for them."""
        self._prompt["prompt_text"] = [text.encode("utf-8", "replace")]
        if logprobs is not None:
            self._prompt["prompt_logprobs"] = [tensors.to_json(logprobs)]

    def on_progress(self, processed_tokens: int) -> None:
        self._processed_tokens = processed_tokens

    def on_transfer(self, parameters: Mapping[str, Any]) -> None:
        self._prompt["kv_transfer_params"] = [tensors.to_json(dict(parameters))]

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())

    def push(self, deltas: Sequence[Delta], prompt_tokens: int) -> bool:
        if self._sender.is_cancelled():
            return False
        if prompt_tokens:
            self._prompt_tokens = self._progress.prompt_tokens = prompt_tokens
        if not deltas:
            return True
        if not self._first:
            self._first = time.monotonic()
            self.on_start()
        if self._metrics.is_on:
            self._progress.add_tokens(sum(delta.tokens for delta in deltas))
            self._measure(deltas)
        keeps_message = "message" in self._options.wanted
        for delta in deltas:
            self._choices[delta.index].add(delta, keeps_message=keeps_message)
        if not self._options.stream:
            return True
        is_last = all(choice.finish_reason is not None for choice in self._choices)
        self._send(is_last=is_last)
        return True

    def _measure(self, deltas: Sequence[Delta]) -> None:
        """Note the latency of each new token but a choice's first, whose latency is another metric."""
        now = time.monotonic()
        for delta in deltas:
            if not delta.tokens:
                continue
            before = self._last_tokens.get(delta.index)
            self._last_tokens[delta.index] = now
            if before is not None:  # an engine may push several tokens at once
                self._token_seconds += [(now - before) / delta.tokens] * delta.tokens

    def end(self, error: Optional[BaseException] = None) -> None:
        if self._is_over:
            return
        self._progress.end()
        if self._sender.is_cancelled():
            self._is_over = True
            tokens = sum(choice.total for choice in self._choices)
            # A prompt that was not read to its end counts as far as it was.
            was_read = bool(self._first) or self._processed_tokens is None
            self._metrics.count_tokens(self._prompt_tokens if was_read else self._processed_tokens or 0, tokens)
            self._sender.send(tensors.error_response(CANCELLED_TEXT, pb_utils.TritonError.CANCELLED), flags=FINAL)
        elif error is not None:
            self._is_over = True
            send_error(self._sender, error)
        else:
            self._send(is_last=True)

    def _send(self, *, is_last: bool) -> None:
        response = tensors.response(self._outputs())
        if is_last:
            self._is_over = True
            self._progress.end()
            self._record_metrics()
        self._sender.send(response, flags=FINAL if is_last else 0)
        for choice in self._choices:
            choice.clear_sent()

    def _outputs(self) -> Dict[str, Sequence[Any]]:
        wanted, choices = self._options.wanted, self._choices
        # A tokenizer that splits a character leaves lone surrogates in the text, which UTF-8 cannot encode.
        outputs: Dict[str, Sequence[Any]] = {"text_output": [c.text.encode("utf-8", "replace") for c in choices]}
        if "finish_reason" in wanted:
            outputs["finish_reason"] = [(c.finish_reason or UNFINISHED).encode() for c in choices]
        if "cumulative_logprob" in wanted:
            outputs["cumulative_logprob"] = [c.logprob for c in choices]
        if "logprobs" in wanted:
            outputs["logprobs"] = [tensors.to_json(c.logprobs) for c in choices]
        if "num_input_tokens" in wanted:
            outputs["num_input_tokens"] = [self._prompt_tokens]
        if "num_output_tokens" in wanted:
            outputs["num_output_tokens"] = [c.tokens for c in choices]
        if "stop_reason" in wanted:
            outputs["stop_reason"] = [(c.stop_reason or "").encode("utf-8", "replace") for c in choices]
        if "num_cached_tokens" in wanted:
            outputs["num_cached_tokens"] = [self._cached_tokens]
        outputs.update(self._prompt)
        self._prompt = {}
        if "message" in wanted:
            # Streamed tool calls have an `index` to assemble them by; a whole message has them in order instead.
            messages = [c.message if self._options.stream else chat.finish_message(c.message) for c in choices]
            outputs["message"] = [tensors.to_json(message) for message in messages]
        return outputs

    def _record_metrics(self) -> None:
        if not self._metrics.is_on:
            return
        now = time.monotonic()
        tokens, first = [choice.total for choice in self._choices], (self._first or now) - self._arrived
        self._metrics.record_request(self._prompt_tokens, tokens, first, self._token_seconds, now - self._arrived)


class PathResponse(PathSink):
    """Sends what the engine's own server responds: status, content type and a part of the body in `text_output`."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())

    def push(self, status: int, content_type: str, body: bytes) -> None:
        self._sender.send(tensors.response({"text_output": [str(status).encode(), content_type.encode(), body]}))

    def end(self, error: Optional[BaseException] = None) -> None:
        if self._sender.is_cancelled():
            self._sender.send(tensors.error_response(CANCELLED_TEXT, pb_utils.TritonError.CANCELLED), flags=FINAL)
        elif error is not None:
            send_error(self._sender, error)
        else:
            self._sender.send(flags=FINAL)


def _report(sender: Any, name: str, *arguments: int) -> None:
    """Tell the server how far a request is. Triton's response senders have no such methods."""
    method = getattr(sender, name, None)
    if method is not None:
        method(*arguments)


def json_sink(sender: Any, *, counts: bool) -> Callable[[Sequence[_Result], int, Optional[BaseException]], None]:
    """A sink that sends each vector or score as JSON in one element of `text_output`."""

    def send(results: Sequence[_Result], tokens: int, error: Optional[BaseException]) -> None:
        if sender.is_cancelled():
            sender.send(tensors.error_response(CANCELLED_TEXT, pb_utils.TritonError.CANCELLED), flags=FINAL)
        elif error is not None:
            send_error(sender, error)
        else:
            outputs: Dict[str, Sequence[Any]] = {"text_output": [tensors.to_json(result) for result in results]}
            if counts:
                outputs["num_input_tokens"] = [tokens]
            sender.send(tensors.response(outputs), flags=FINAL)

    return send
