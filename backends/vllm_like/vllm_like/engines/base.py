"""The interface of an engine: requests, deltas and sinks. Engines know neither tensors nor the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Union


class CallerError(ValueError):
    """The request is invalid for this model; sent as INVALID_ARG."""


class BusyError(Exception):
    """The engine is overloaded, the same request may succeed later; sent as UNAVAILABLE."""


class EngineDeadError(Exception):
    """The engine has failed for good; the process must be restarted."""


@dataclass(frozen=True)
class Generation:
    """One request for text.

    Attributes:
        request_id: Unique among the running requests.
        prompt: The prompt; "" with `chat`.
        chat: A conversation instead of a prompt: `messages`, `tools` and other fields of OpenAI's API.
        sampling: The sampling parameters that the request sets, by vLLM's names.
        lora: Name of the adapter to use; "" for none.
        images: Encoded image files that belong to the prompt.
        wants_logprobs: Whether the log probability of each token is needed, also if only for the sum.
        wants_counts: Whether each delta needs its number of tokens; else the last one has the total.
    """

    request_id: str
    prompt: str
    chat: Optional[Dict[str, Any]]
    sampling: Dict[str, Any]
    lora: str = ""
    images: Sequence[bytes] = ()
    wants_logprobs: bool = False
    wants_counts: bool = False


@dataclass
class Delta:
    """New output of one choice.

    Attributes:
        index: Number of the choice; 0 unless the request has `n` above 1.
        text: New text.
        tokens: Number of new tokens.
        logprobs: For each new token `{token id: {"logprob", "rank", "decoded_token"}}`, the sampled token last.
        logprob: Sum of the log probabilities of the new tokens.
        finish_reason: Why the choice is finished; None while it is not.
        message: New members of the assistant's message, if it has more than `text`.
    """

    index: int
    text: str = ""
    tokens: int = 0
    logprobs: List[Dict[int, Dict[str, Any]]] = field(default_factory=list)
    logprob: float = 0.0
    finish_reason: Optional[str] = None
    message: Optional[Dict[str, Any]] = None


@dataclass(frozen=True)
class EmbeddingRequest:
    """One request for vectors: one vector for each input, which is a text or a list of token ids."""

    request_id: str
    inputs: Sequence[Union[str, List[int]]]
    dimensions: Optional[int] = None
    wants_counts: bool = False


class Sink:
    """Receives the output of a `Generation`. Engines call its methods from any thread, but one at a time."""

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or disconnected."""
        raise NotImplementedError

    def push(self, deltas: Sequence[Delta], prompt_tokens: int) -> bool:
        """Add deltas; return False if the request is cancelled. *prompt_tokens* is 0 while unknown."""
        raise NotImplementedError

    def end(self, error: Optional[BaseException] = None) -> None:
        """End the output, with *error* if it failed; called exactly once."""
        raise NotImplementedError


EmbeddingSink = Callable[[List[List[float]], int, Optional[BaseException]], None]
"""Receives the vectors, the number of input tokens, and the error if the request failed."""


class Engine:
    """Runs one model. `generate` and `embed` return at once: sinks are called from the engine's own threads.

    Attributes:
        max_model_len: Maximum number of tokens of prompt and output together; 0 if unknown.
        loras: Names of the adapters; None if adapters are not enabled.
    """

    max_model_len = 0
    loras: Optional[Sequence[str]] = None

    def generate(self, generation: Generation, sink: Sink) -> None:
        """Start to generate text."""
        raise NotImplementedError

    def embed(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Start to compute vectors."""
        raise NotImplementedError

    def check_health(self) -> None:
        """Raise an exception if the engine is unhealthy."""

    def shutdown(self) -> None:
        """Wait for running requests, then free all resources."""


def truncate_vectors(vectors: List[List[float]], dimensions: Optional[int]) -> List[List[float]]:
    """The first *dimensions* elements of each vector, normalized again; all of them for None.

    Raises:
        CallerError: If the vectors have fewer elements.
    """
    if dimensions is None:
        return vectors
    if dimensions > len(vectors[0]):
        raise CallerError(f"'dimensions' is {dimensions}, but the model's vectors have {len(vectors[0])}")
    cut = [vector[:dimensions] for vector in vectors]
    lengths = [math.sqrt(sum(number * number for number in vector)) or 1.0 for vector in cut]
    return [[number / length for number in vector] for vector, length in zip(cut, lengths)]
