"""What llama.cpp answers: chunks of its stream, turned into what each choice has grown by."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Callable, Dict, List, Optional

from vllm_like.engines.base import CallerError, Delta, Generation, Sink

_SERVER_ERROR = 500
_TOO_LONG = "is too large to process"
"""What it says of texts for embeddings that no batch has room for, as if that were its own fault."""
_TEXT = re.compile(
    r'\{"choices":\[\{"text":"(?P<text>[^"\\]+)","index":(?P<index>\d+),"logprobs":null,"finish_reason":null\}\],'
)
_CONTENT = re.compile(
    r'\{"choices":\[\{"finish_reason":null,"index":(?P<index>\d+),"delta":\{"content":"(?P<text>[^"\\]+)"\}\}\],'
)
"""How a chunk begins that brings nothing but text, as nearly all do: reading it as JSON takes five times as long."""


def error_of(answer: Any) -> Optional[Exception]:
    """The error that an answer is, None if it is none."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if error is None:
        return None
    text = str(error.get("message", error))
    is_callers = error.get("code", _SERVER_ERROR) < _SERVER_ERROR or _TOO_LONG in text
    return CallerError(text) if is_callers else RuntimeError(text)


def shortened(vectors: List[List[float]], dimensions: Optional[int]) -> List[List[float]]:
    """The first numbers of each vector, of length 1 again.

    Raises:
        CallerError: If they do not have so many.
    """
    if dimensions is None:
        return vectors
    if dimensions > len(vectors[0]):
        raise CallerError(f"'dimensions' is {dimensions}, but the model's vectors have {len(vectors[0])}")
    cut = [vector[:dimensions] for vector in vectors]
    lengths = [math.sqrt(sum(number * number for number in vector)) or 1.0 for vector in cut]
    return [[number / length for number in vector] for vector, length in zip(cut, lengths)]


class Reader:
    """Takes the chunks of one request.

    Attributes:
        error: What was wrong, None while nothing was.
    """

    def __init__(self, generation: Generation, sink: Sink, look: Callable[[], None]) -> None:
        """Read what is written for *generation*; *look* is called with each chunk."""
        self.error: Optional[Exception] = None
        self._sink = sink
        self._look = look
        self._is_chat = generation.chat is not None
        self._wanted = generation.sampling.get("logprobs") or 0
        self._counted: Dict[int, int] = {}
        self._has_more = generation.wants_counts or generation.wants_logprobs  # in chunks with text

    def take(self, text: str) -> bool:
        """Take a chunk, or several, as JSON; True has llama.cpp stop, which frees its place at once."""
        try:
            self._look()
            delta = None if self._has_more else self._text_alone(text)
            if delta is not None:
                return not self._sink.push([delta], 0)
            chunk = json.loads(text)
            for one in chunk if isinstance(chunk, list) else [chunk]:
                if not self._push(one):
                    return True
        except Exception as error:  # noqa: BLE001 - llama.cpp would drop it
            self.error = error
            return True
        return False

    def _text_alone(self, chunk: str) -> Optional[Delta]:
        """What a chunk brings, if that is text and nothing else."""
        found = (_CONTENT if self._is_chat else _TEXT).match(chunk)
        if found is None:
            return None
        index = int(found["index"])
        self._counted[index] = self._counted.get(index, 0) + 1
        return Delta(index, found["text"], tokens=1)

    def _push(self, chunk: Dict[str, Any]) -> bool:
        self.error = error_of(chunk)
        if self.error is not None:
            return False
        timings = chunk.get("timings") or {}
        deltas = [self._delta(choice, timings) for choice in chunk["choices"]]
        prompt_tokens = 0
        if timings.get("predicted_n"):
            prompt_tokens = timings["cache_n"] + timings["prompt_n"]
        return self._sink.push([delta for delta in deltas if delta is not None], prompt_tokens)

    def _delta(self, choice: Dict[str, Any], timings: Dict[str, Any]) -> Optional[Delta]:
        index = choice["index"]
        delta = Delta(index, finish_reason=choice["finish_reason"])
        if self._is_chat:
            message = {key: value for key, value in choice["delta"].items() if key != "role" and value is not None}
            delta.text = message.get("content", "")
            if set(message) - {"content"}:
                delta.message = message
        else:
            delta.text = choice["text"]
        if choice.get("logprobs"):
            for entry in choice["logprobs"]["content"]:
                delta.logprob += entry["logprob"]
                delta.logprobs.append(self._alternatives(entry))
        if not delta.text and delta.finish_reason is None and delta.message is None and not delta.logprobs:
            return None  # progress in reading the prompt, or that a message begins
        before = self._counted.get(index, 0)
        # Exact where it says so; else one for each chunk with text, which the last chunk's figure sets right.
        total = timings.get("predicted_n") or before + bool(delta.text)
        delta.tokens = total - before
        self._counted[index] = total
        return delta

    def _alternatives(self, entry: Dict[str, Any]) -> Dict[int, Dict[str, Any]]:
        """The most likely tokens by id, the one that was taken last."""
        top = entry["top_logprobs"]
        rank = next((place for place, other in enumerate(top, 1) if other["id"] == entry["id"]), len(top) + 1)
        made = {
            other["id"]: {"logprob": other["logprob"], "rank": place, "decoded_token": other["token"]}
            for place, other in enumerate(top[: self._wanted], 1)
            if other["id"] != entry["id"]
        }
        made[entry["id"]] = {"logprob": entry["logprob"], "rank": rank, "decoded_token": entry["token"]}
        return made
