"""Probabilities of tokens: vLLM's form, as the model gives it, in the two forms of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Alternatives = Mapping[str, Mapping[str, Any]]
"""Tokens by id: `logprob`, `rank` and `decoded_token`. One of them was taken."""

_LEAST = -9999.0
"""What stands for a probability of zero: JSON has no infinity."""


class Taken:
    """Finds out which of the alternatives was taken, which vLLM's form does not say.

    It is the one that the text goes on with; where several would do, or the text is cut within a character, the last
    (the shipped backend's order), then the first (vLLM's).
    """

    def __init__(self) -> None:
        self._text = ""

    def of(self, alternatives: Alternatives) -> Mapping[str, Any]:
        """The token that was taken next."""
        entries = list(alternatives.values())
        candidates = [entries[-1], entries[0], *entries[1:-1]]
        found = next((one for one in candidates if self._text.startswith(_text(one)) and _text(one)), candidates[0])
        self._text = self._text.removeprefix(_text(found))
        return found

    def grow(self, text: str) -> None:
        """The text goes on with this."""
        self._text += text


def for_chat(taken: Taken, new: Sequence[Alternatives], count: int) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat's choice: each token with its *count* most likely alternatives."""
    return [_chat_token(taken.of(alternatives), alternatives, count) for alternatives in new if alternatives]


def _chat_token(token: Mapping[str, Any], alternatives: Alternatives, count: int) -> dict[str, Any]:
    return {**_token(token), "top_logprobs": [_token(one) for one in _most_likely(alternatives, count)]}


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    text = _text(entry)
    return {"token": text, "logprob": _number(entry), "bytes": list(text.encode("utf-8", "replace"))}


def for_completion(taken: Taken, new: Sequence[Alternatives], count: int, offset: int) -> dict[str, list[Any]]:
    """`logprobs` of a completion's choice; *offset* is where the first new token begins in the text."""
    made: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for alternatives in new:
        if not alternatives:
            continue
        token = taken.of(alternatives)
        made["tokens"].append(_text(token))
        made["token_logprobs"].append(_number(token))
        likely: dict[str, float] = {}
        for one in _most_likely(alternatives, count):
            likely.setdefault(_text(one), _number(one))  # pieces of characters look alike: the likelier stays
        likely.setdefault(_text(token), _number(token))  # "up to logprobs + 1 elements", says OpenAI
        made["top_logprobs"].append(likely)
        made["text_offset"].append(offset)
        offset += len(_text(token))
    return made


def _most_likely(alternatives: Alternatives, count: int) -> list[Mapping[str, Any]]:
    return sorted(alternatives.values(), key=lambda one: -_number(one))[:count]


def _text(entry: Mapping[str, Any]) -> str:
    return str(entry.get("decoded_token") or "")


def _number(entry: Mapping[str, Any]) -> float:
    value = entry.get("logprob")
    return min(max(_LEAST, float(value)), -_LEAST) if value is not None else _LEAST  # also for what is no number
