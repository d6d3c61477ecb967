"""What an engine is asked, what it answers, and where the answer goes; no engine knows tensors or the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Union


class CallerError(ValueError):
    """The request asks for what there is not; another request may do."""


class BusyError(Exception):
    """The engine has too much to do; the same request may do later."""


class EngineDeadError(Exception):
    """The engine will never answer again."""


@dataclass(frozen=True)
class Generation:
    """One request for text.

    Attributes:
        request_id: Unique among those under way.
        prompt: The text to go on from; "" with `chat`.
        chat: A conversation instead: `messages`, and perhaps `tools` and the like, as of OpenAI.
        sampling: Parameters by vLLM's names, only those that were given.
        lora: The adapter to use, "" for none.
        images: Encoded pictures that belong to the prompt.
        wants_logprobs: Whether `logprobs` of each token are needed, be it for their sum.
        wants_counts: Whether every part of the answer needs its number of tokens, not just the last.
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
    """What one choice has grown by.

    Attributes:
        index: Of the choice; 0 unless several were asked for.
        text: New text.
        tokens: Number of new tokens.
        logprobs: For each new token `{token id: {"logprob", "rank", "decoded_token"}}`, the one taken last.
        logprob: Sum over the new tokens that were taken.
        finish_reason: Why the choice ended, None while it goes on.
        message: What the conversation's answer has grown by, if that is more than `text`.
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
    """One request for vectors: for each input, text or tokens, one."""

    request_id: str
    inputs: Sequence[Union[str, List[int]]]
    dimensions: Optional[int] = None
    wants_counts: bool = False


class Sink:
    """Where the answer to a Generation goes. Methods may be called from any thread, one at a time."""

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        raise NotImplementedError

    def push(self, deltas: Sequence[Delta], prompt_tokens: int) -> bool:
        """Take what is new; False if nobody waits for more. *prompt_tokens* is 0 while it is not known."""
        raise NotImplementedError

    def end(self, error: Optional[BaseException] = None) -> None:
        """There is no more: called exactly once."""
        raise NotImplementedError


EmbeddingSink = Callable[[List[List[float]], int, Optional[BaseException]], None]
"""Takes vectors, the number of tokens they were made of, and the error if there is one."""


class Engine:
    """Runs one model. Neither `generate` nor `embed` waits: sinks are called from the engine's own threads.

    Attributes:
        max_model_len: Tokens that prompt and answer may have together, 0 if unknown.
        loras: Names of adapters that requests may ask for; None where the model has none.
    """

    max_model_len = 0
    loras: Optional[Sequence[str]] = None

    def generate(self, generation: Generation, sink: Sink) -> None:
        """Answer a request for text."""
        raise NotImplementedError

    def embed(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Answer a request for vectors."""
        raise NotImplementedError

    def check_health(self) -> None:
        """Raise if the engine cannot work any more."""

    def shutdown(self) -> None:
        """Wait for requests under way and free everything."""
