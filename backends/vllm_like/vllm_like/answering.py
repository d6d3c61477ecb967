"""The answer to one request for text: what the engine writes becomes responses, in parts or as a whole."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Sequence

import triton_python_backend_utils as pb_utils

from vllm_like import chat, tensors
from vllm_like.engines.base import BusyError, CallerError, Delta, EmbeddingSink, Sink
from vllm_like.metrics import Metrics
from vllm_like.wishes import Wishes

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CANCELLED_TEXT = "Request was cancelled"
_CODES = {CallerError: pb_utils.TritonError.INVALID_ARG, BusyError: pb_utils.TritonError.UNAVAILABLE}
UNFINISHED = "None"
"""The finish reason of a choice that goes on, as text."""


def refuse(sender: Any, error: BaseException) -> None:
    """Answer with *error* and nothing else."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), pb_utils.TritonError.INTERNAL)
    sender.send(tensors.error(f"Error generating stream: {error}", code), flags=FINAL)


class _Choice:
    """One of the texts asked for, as far as it has come."""

    __slots__ = ("finish_reason", "logprob", "logprobs", "message", "text", "tokens", "total", "writer")

    def __init__(self, wishes: Wishes) -> None:
        self.text = wishes.echo
        self.tokens = 0
        self.total = 0
        self.logprobs: List[Any] = []
        self.logprob = 0.0
        # Parts of a message do not repeat who speaks.
        self.message: Dict[str, Any] = {} if wishes.stream else {"role": "assistant", "content": None}
        self.finish_reason: Optional[str] = None
        self.writer = wishes.tools.writer() if wishes.tools is not None else None

    def grow(self, delta: Delta, *, keeps_message: bool) -> None:
        """Take what is new."""
        if self.writer is not None:
            self.writer.turn(delta)
        self.text += delta.text
        self.tokens += delta.tokens
        self.total += delta.tokens
        self.logprobs += delta.logprobs
        self.logprob += delta.logprob
        self.finish_reason = delta.finish_reason or self.finish_reason
        if keeps_message:
            if delta.message is not None:
                chat.merge(self.message, delta.message)
            if delta.text and (delta.message is None or "content" not in delta.message):
                chat.merge(self.message, {"content": delta.text})

    def forget(self) -> None:
        """What was sent is not sent again; the sum of logarithms goes on, as does the reason to end."""
        self.text = ""
        self.tokens = 0
        self.logprobs = []
        self.message = {}


class Answer(Sink):
    """Sends what a caller wished for through the request's response sender."""

    def __init__(self, sender: Any, wishes: Wishes, metrics: Metrics) -> None:
        self._sender = sender
        self._wishes = wishes
        self._metrics = metrics
        self._choices = [_Choice(wishes) for _ in range(wishes.choices)]
        self._prompt_tokens = 0
        self._arrived = time.monotonic()
        self._first = 0.0
        self._is_over = False

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return bool(self._sender.is_cancelled())

    def push(self, deltas: Sequence[Delta], prompt_tokens: int) -> bool:
        """Send what is new, or keep it for the end."""
        if self._sender.is_cancelled():
            return False
        self._prompt_tokens = prompt_tokens or self._prompt_tokens
        if not deltas:
            return True
        if not self._first:
            self._first = time.monotonic()
        keeps = self._wishes.message
        for delta in deltas:
            self._choices[delta.index].grow(delta, keeps_message=keeps)
        if not self._wishes.stream:
            return True
        is_last = all(choice.finish_reason is not None for choice in self._choices)
        self._send(is_last=is_last)
        return True

    def end(self, error: Optional[BaseException] = None) -> None:
        """Say that this was all, with the reason if it was not to be."""
        if self._is_over:
            return
        if self._sender.is_cancelled():
            self._is_over = True
            self._sender.send(tensors.error(CANCELLED_TEXT, pb_utils.TritonError.CANCELLED), flags=FINAL)
        elif error is not None:
            self._is_over = True
            refuse(self._sender, error)
        else:
            self._send(is_last=True)

    def _send(self, *, is_last: bool) -> None:
        response = tensors.response(self._outputs())
        if is_last:
            self._is_over = True
            self._count()
        self._sender.send(response, flags=FINAL if is_last else 0)
        for choice in self._choices:
            choice.forget()

    def _outputs(self) -> Dict[str, Sequence[Any]]:
        wishes, choices = self._wishes, self._choices
        # Text of generated tokens may hold lone surrogates, which cannot be sent.
        outputs: Dict[str, Sequence[Any]] = {"text_output": [c.text.encode("utf-8", "replace") for c in choices]}
        if wishes.finish_reason:
            outputs["finish_reason"] = [(c.finish_reason or UNFINISHED).encode() for c in choices]
        if wishes.cumulative_logprob:
            outputs["cumulative_logprob"] = [c.logprob for c in choices]
        if wishes.logprobs:
            outputs["logprobs"] = [tensors.compact(c.logprobs) for c in choices]
        if wishes.num_input_tokens:
            outputs["num_input_tokens"] = [self._prompt_tokens]
        if wishes.num_output_tokens:
            outputs["num_output_tokens"] = [c.tokens for c in choices]
        if wishes.message:
            # Parts are told apart by the numbers of their calls; a whole message has them in order.
            messages = [c.message if wishes.stream else chat.finished(c.message) for c in choices]
            outputs["message"] = [tensors.compact(message) for message in messages]
        return outputs

    def _count(self) -> None:
        if not self._metrics.is_on:
            return
        now = time.monotonic()
        self._metrics.finished(
            prompt_tokens=self._prompt_tokens,
            tokens=[choice.total for choice in self._choices],
            first_seconds=(self._first or now) - self._arrived,
            seconds=now - self._arrived,
        )


def embedding_answer(sender: Any, *, counts: bool) -> EmbeddingSink:
    """A sink for vectors that sends them as JSON, one for each element of `text_output`."""

    def send(vectors: List[List[float]], tokens: int, error: Optional[BaseException]) -> None:
        if sender.is_cancelled():
            sender.send(tensors.error(CANCELLED_TEXT, pb_utils.TritonError.CANCELLED), flags=FINAL)
        elif error is not None:
            refuse(sender, error)
        else:
            outputs: Dict[str, Sequence[Any]] = {"text_output": [tensors.compact(vector) for vector in vectors]}
            if counts:
                outputs["num_input_tokens"] = [tokens]
            sender.send(tensors.response(outputs), flags=FINAL)

    return send
