"""The interface of an engine: requests, deltas and sinks. Engines know neither tensors nor the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

CANCEL_POLL_SECONDS = 0.05  # how often an engine looks whether a running request is cancelled
_NO_TOKENIZER = "the engine of this model does not tokenize"
_NO_SLEEP = (
    "this model cannot sleep, which needs the engine vllm and 'enable_sleep_mode' in its model.json; unload it to free "
    "its memory"
)


class CallerError(ValueError):
    """The request is invalid for this model; sent as INVALID_ARG."""


class NotFoundError(CallerError):
    """The model has not what the request names; sent as NOT_FOUND."""


class BusyError(Exception):
    """The engine is overloaded, the same request may succeed later; sent as UNAVAILABLE."""


class EngineDeadError(Exception):
    """The engine has failed for good; the process must be restarted."""


@dataclass(frozen=True)
class Generation:
    """One request for text."""

    request_id: str  # unique among the running requests
    prompt: Union[str, List[int]]  # text or token ids; "" with `chat`
    # A conversation instead of a prompt: `messages`, `tools` and other fields of OpenAI's API.
    chat: Optional[Dict[str, Any]]
    sampling: Dict[str, Any]  # the sampling parameters that the request sets, by vLLM's names
    lora: str = ""  # name of the adapter to use; "" for none
    images: Sequence[bytes] = ()  # encoded image files that belong to the prompt
    wants_logprobs: bool = False  # whether the log probability of each token is needed, also if only for the sum
    wants_counts: bool = False  # whether each delta needs its number of tokens; else the last one has the total
    is_stream: bool = False  # whether each delta is sent to the client at once
    wants_prompt: bool = False  # whether the text of the prompt is needed
    wants_stop: bool = False  # whether the client is told which of the texts in `stop` has ended a choice
    constraint: Optional[Any] = None  # what the answer of a chat must be (`constraints.Constraint`); None for anything
    has_images: bool = False  # whether the conversation has images


TokenLogprobs = Dict[int, Dict[str, Any]]
"""`{token id: {"logprob", "rank", "decoded_token"}}` in place of one token, which is the last one."""


@dataclass
class Delta:
    """New output of one choice."""

    index: int  # of the choice; 0 unless the request has `n` above 1
    text: str = ""
    tokens: int = 0
    logprobs: List[TokenLogprobs] = field(default_factory=list)  # of each new token
    logprob: float = 0.0  # sum of the log probabilities of the new tokens
    finish_reason: Optional[str] = None  # why the choice is finished; None while it is not
    # The text in `stop` that has ended the choice, where the engine tells it; None without one.
    stop_reason: Optional[str] = None
    message: Optional[Dict[str, Any]] = None  # new members of the assistant's message, if it has more than `text`


@dataclass(frozen=True)
class EmbeddingRequest:
    """One request for vectors: one vector for each input, which is a text or a list of token ids."""

    request_id: str
    inputs: Sequence[Union[str, List[int]]]
    dimensions: Optional[int] = None
    wants_counts: bool = False


@dataclass(frozen=True)
class RankRequest:
    """One request for scores: how well each of the documents answers the query."""

    request_id: str
    query: str
    documents: Sequence[str]
    wants_counts: bool = False


@dataclass(frozen=True)
class PathRequest:
    """One request to a path of the engine's own server."""

    path: str
    content_type: str
    body: bytes
    document: Mapping[str, Any]  # the JSON object in the body; empty for a form


class OutputSink:
    """Receives the output of a request. Engines call its methods from any thread, but one at a time."""

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or disconnected."""
        raise NotImplementedError

    def end(self, error: Optional[BaseException] = None) -> None:
        """End the output, with *error* if it failed; called exactly once."""
        raise NotImplementedError


class PathSink(OutputSink):
    """Receives the response to a `PathRequest`."""

    def push(self, status: int, content_type: str, body: bytes) -> None:
        """Add an event of a stream, or the whole of another response."""
        raise NotImplementedError


class Sink(OutputSink):
    """Receives the output of a `Generation`."""

    def on_start(self, at: float = 0.0) -> None:
        """Note that the engine computes the request since *at* (`time.monotonic`), by default now.

        Engines that do not know it need not call it: the first `push` does.
        """

    def on_cached_tokens(self, count: int) -> None:
        """Note how many tokens of the prompt were in a cache. Engines that do not know it need not call it."""

    def on_prompt(self, text: str, logprobs: Optional[Sequence[TokenLogprobs]]) -> None:
        """Note the text of the prompt, and the log probabilities of its tokens, which are None where nobody asked."""

    def on_progress(self, processed_tokens: int) -> None:
        """Note how many tokens of the prompt were read so far, for a request that is cancelled meanwhile."""

    def on_transfer(self, parameters: Mapping[str, Any]) -> None:
        """Note what another server needs to continue with this request's cache (`kv_transfer_params` of vLLM)."""

    def push(self, deltas: Sequence[Delta], prompt_tokens: int) -> bool:
        """Add deltas; return False if the request is cancelled. *prompt_tokens* is 0 while unknown."""
        raise NotImplementedError


@dataclass(frozen=True)
class EngineMetric:
    """A metric that an engine measures itself, as it is now."""

    name: str
    description: str
    kind: str  # `counter`, `gauge` or `histogram`
    labels: Mapping[str, str]
    value: float  # of a histogram, the sum of its values
    buckets: Tuple[float, ...] = ()  # a histogram's upper bounds
    counts: Tuple[int, ...] = ()  # how many values are in each of its buckets, and in a last one above all bounds


ResultSink = Callable[[List[Any], int, Optional[BaseException]], None]
"""Receives the vectors, or a score for each document; the number of input tokens, and the error if there is one."""


class Engine:
    """Runs one model. `generate` and `embed` return at once: sinks are called from the engine's own threads."""

    max_model_len = 0  # maximum number of tokens of prompt and output together; 0 if unknown
    loras: Optional[Sequence[str]] = None  # names of the adapters; None if adapters are not enabled
    chat_adds_special = False  # whether the tokenizer adds special tokens to a rendered chat
    takes_grammars = False  # whether it enforces the constraint of a `Generation`

    def kv_cache_usage(self, tokens: int) -> float:  # noqa: ARG002 - engines use it that cannot tell otherwise
        """The part of the key-value cache in use, 0 to 1, while the running requests have *tokens*; 0 if unknown."""
        return 0.0

    def generate(self, generation: Generation, sink: Sink) -> None:
        """Start to generate text."""
        raise NotImplementedError

    def embed(self, request: EmbeddingRequest, sink: ResultSink) -> None:
        """Start to compute vectors."""
        raise NotImplementedError

    def rank(self, request: RankRequest, sink: ResultSink) -> None:
        """Start to compute scores: by default the cosine of the vectors of query and document, as vLLM does."""

        def on_vectors(vectors: List[List[float]], tokens: int, error: Optional[BaseException]) -> None:
            sink([] if error is not None else _cosines(vectors), tokens, error)

        inputs = [request.query, *request.documents]
        self.embed(EmbeddingRequest(request.request_id, inputs, None, request.wants_counts), on_vectors)

    def forward(self, request: PathRequest, sink: PathSink) -> None:
        """Start to pass a request on to the engine's own server."""
        raise NotImplementedError

    def encode(self, text: str, *, adds_special: bool) -> Tuple[List[int], List[str]]:  # noqa: ARG002 - signature of engines that can
        """The tokens of a text, and the text of each; blocks. With *adds_special*, the model's own tokens too."""
        raise CallerError(_NO_TOKENIZER)

    def decode(self, tokens: Sequence[int]) -> str:  # noqa: ARG002 - signature of engines that can
        """The text of tokens; blocks."""
        raise CallerError(_NO_TOKENIZER)

    def render(self, conversation: Dict[str, Any]) -> str:  # noqa: ARG002 - signature of engines that can
        """A conversation as the prompt that the chat template makes of it; blocks."""
        raise CallerError(_NO_TOKENIZER)

    def is_plain_text(self, text: str) -> bool:  # noqa: ARG002 - signature of engines that take grammars
        """Whether the tokens of a text are text, none of which the engine leaves out of its output; blocks."""
        return False

    def tokenizer_info(self) -> Dict[str, Any]:
        """What clients must know of the tokenizer to use it: its special tokens and the chat template; blocks."""
        raise CallerError(_NO_TOKENIZER)

    def metrics(self) -> List[EngineMetric]:
        """The metrics that the engine measures itself, in place of those that the backend measures."""
        return []

    def sleep(self, level: int, mode: str) -> None:  # noqa: ARG002 - signature of engines that can
        """Free the memory of the GPU; blocks. Level 1 keeps the weights in the machine's memory, 2 discards them.

        The mode `abort` ends the running requests, `wait` waits for them, `keep` freezes them.
        """
        raise CallerError(_NO_SLEEP)

    def wake_up(self, tags: Optional[List[str]]) -> None:  # noqa: ARG002 - signature of engines that can
        """Undo `sleep`, for the parts that *tags* name or for all; blocks."""
        raise CallerError(_NO_SLEEP)

    def is_sleeping(self) -> bool:
        """Whether the engine sleeps; blocks."""
        return False

    def check_health(self) -> None:
        """Raise an exception if the engine is unhealthy."""

    def shutdown(self) -> None:
        """Wait for running requests, then free all resources."""


def send_results(sink: ResultSink, compute: Callable[[], Tuple[List[Any], int]]) -> None:
    """Give *sink* the results and the number of input tokens that *compute* returns, or the error that it raises."""
    try:
        results, tokens = compute()
    except Exception as error:  # noqa: BLE001 - sent to the client
        sink([], 0, error.with_traceback(None))  # which refers to this frame, and so to the error
    else:
        sink(results, tokens, None)


def _cosines(vectors: List[List[float]]) -> List[float]:
    """The cosine between the first vector and each of the others."""
    lengths = [math.sqrt(sum(number * number for number in vector)) or 1.0 for vector in vectors]
    query = vectors[0]
    return [
        sum(one * other for one, other in zip(query, vector)) / (lengths[0] * length)
        for vector, length in zip(vectors[1:], lengths[1:])
    ]


def check_tokens(tokens: Iterable[int], vocabulary: int, where: str) -> None:
    """`CallerError` unless a model with *vocabulary* tokens has these; *where* is the name of their field."""
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise CallerError(f"'{where}' has {wrong}; the model's vocabulary has the token ids 0 to {vocabulary - 1}")


def truncate_vectors(vectors: List[List[float]], dimensions: Optional[int]) -> List[List[float]]:
    """The first *dimensions* elements of each vector, normalized again; all of them for None."""
    if dimensions is None:
        return vectors
    if dimensions > len(vectors[0]):
        raise CallerError(f"'dimensions' is {dimensions}, but the model's vectors have {len(vectors[0])}")
    cut = [vector[:dimensions] for vector in vectors]
    lengths = [math.sqrt(sum(number * number for number in vector)) or 1.0 for vector in cut]
    return [[number / length for number in vector] for vector, length in zip(cut, lengths)]
