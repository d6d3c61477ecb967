"""What llama.cpp answers: chunks of its stream, turned into what each choice has grown by."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional

from vllm_like.engines.base import CallerError, Delta, Generation, Sink

_SERVER_ERROR = 500


def error_of(answer: Any) -> Optional[Exception]:
    """The error that an answer is, None if it is none."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if error is None:
        return None
    text = str(error.get("message", error))
    return CallerError(text) if error.get("code", _SERVER_ERROR) < _SERVER_ERROR else RuntimeError(text)


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

    def __init__(self, generation: Generation, sink: Sink) -> None:
        self.error: Optional[Exception] = None
        self._sink = sink
        self._is_chat = generation.chat is not None
        self._wanted = generation.sampling.get("logprobs") or 0
        self._counted: Dict[int, int] = {}

    def take(self, chunk: Any) -> bool:
        """Take a chunk, or several; True has llama.cpp stop, which frees its place at once."""
        try:
            for one in chunk if isinstance(chunk, list) else [chunk]:
                if not self._push(one):
                    return True
        except Exception as error:  # noqa: BLE001 - llama.cpp would drop it
            self.error = error
            return True
        return False

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
