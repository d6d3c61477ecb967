"""Log probabilities of tokens: converted from vLLM's form, as the model returns it, into OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Alternatives = Mapping[str, Mapping[str, Any]]
"""Candidates for one token by token id: `logprob`, `rank` and `decoded_token`. One of them was sampled."""

_MIN_LOGPROB = -9999.0
"""Replaces the logarithm of a probability of zero: JSON has no infinity, and OpenAI documents this value."""


class SampledTokenFinder:
    """Finds the sampled token among the alternatives, which vLLM's form does not mark.

    The sampled token is the one that the generated text continues with. If several match, or none because the text ends
    within a character, the order decides: the last one (as `vllm_like` writes it), then the first one (as vLLM does).
    """

    def __init__(self) -> None:
        self._text = ""
        self._place = 0  # of the next token in it

    def find(self, alternatives: Alternatives) -> Mapping[str, Any]:
        """The next sampled token; its text is consumed."""
        entries = list(alternatives.values())
        candidates = [entries[-1], entries[0], *entries[1:-1]]
        text, place = self._text, self._place
        found = next((one for one in candidates if text.startswith(_text(one), place) and _text(one)), candidates[0])
        if text.startswith(_text(found), place):
            self._place += len(_text(found))
        return found

    def add_text(self, text: str) -> None:
        """Append generated text, before `find` is called for its tokens."""
        self._text, self._place = self._text[self._place :] + text, 0


def for_chat(finder: SampledTokenFinder, tokens: Sequence[Alternatives], count: int) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat's choice: each token with its *count* most likely alternatives."""
    return [
        {**_token(finder.find(alternatives)), "top_logprobs": list(map(_token, _most_likely(alternatives, count)))}
        for alternatives in tokens
        if alternatives
    ]


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    text = _text(entry)
    return {"token": text, "logprob": _logprob(entry), "bytes": list(text.encode("utf-8", "replace"))}


def for_completion(
    finder: SampledTokenFinder, tokens: Sequence[Alternatives], count: int, offset: int
) -> dict[str, list[Any]]:
    """`logprobs` of a completion's choice; *offset* is the position of the first token in the choice's text."""
    document = _empty_document()
    for alternatives in tokens:
        if alternatives:
            offset = _add_token(document, finder.find(alternatives), alternatives, count, offset)
    return document


def for_prompt(tokens: Sequence[Alternatives | None], count: int) -> dict[str, list[Any]]:
    """`logprobs` of an echoed prompt: its first token has none. Each token is the last one of its alternatives."""
    document, offset = _empty_document(), 0
    for alternatives in tokens:
        if not alternatives:
            continue
        token = list(alternatives.values())[-1]
        offset = _add_token(document, token, alternatives, count, offset)
        if token.get("logprob") is None:
            document["token_logprobs"][-1] = document["top_logprobs"][-1] = None
    return document


def _empty_document() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _add_token(
    document: dict[str, list[Any]], token: Mapping[str, Any], alternatives: Alternatives, count: int, offset: int
) -> int:
    """Add a token at a place in the text; return the place after it."""
    document["tokens"].append(_text(token))
    document["token_logprobs"].append(_logprob(token))
    top: dict[str, float] = {}
    for one in _most_likely(alternatives, count):
        # Different tokens can have equal texts: parts of a character are all U+FFFD. The most likely one is kept.
        top.setdefault(_text(one), _logprob(one))
    # OpenAI: "there may be up to logprobs+1 elements", since the sampled token is always included.
    top.setdefault(_text(token), _logprob(token))
    document["top_logprobs"].append(top)
    document["text_offset"].append(offset)
    return offset + len(_text(token))


def _most_likely(alternatives: Alternatives, count: int) -> list[Mapping[str, Any]]:
    return sorted(alternatives.values(), key=lambda one: -_logprob(one))[:count]


def _text(entry: Mapping[str, Any]) -> str:
    return str(entry.get("decoded_token") or "")


def _logprob(entry: Mapping[str, Any]) -> float:
    value = entry.get("logprob")
    # The order of min and max also maps NaN, which compares false with everything, to the lower bound.
    return min(max(_MIN_LOGPROB, float(value)), -_MIN_LOGPROB) if value is not None else _MIN_LOGPROB
