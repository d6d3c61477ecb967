"""Log probabilities of the tokens of a prompt, which llama.cpp's server does not compute.

It reports the probabilities of the tokens that it generates. So each token of the prompt is generated, after those
before it: a bias forces it, and probabilities are reported as they were before the bias. The tokens before it are in
the cache, so each costs as much as a generated one.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from vllm_like.engines.llama_responses import alternatives, parse_error

_BIAS = 1e6  # far above any logit


class PromptScorer:
    """Computes the log probabilities of prompts; the text of *whole_token* is a whole character.

    *complete* runs a request to llama.cpp, given its JSON and what receives the chunks, which returns True to stop.
    """

    def __init__(self, complete: Callable[..., Any], vocabulary: int, whole_token: int) -> None:
        self._complete = complete
        self._vocabulary = vocabulary
        self._whole_token = whole_token

    def score(
        self, tokens: Sequence[int], count: int, options: Mapping[str, Any], on_token: Callable[[int], bool]
    ) -> List[Dict[int, Dict[str, Any]]]:
        """For each token but the first, the *count* most likely ones in its place, and last the token itself.

        *options* are more members of each request. *on_token* gets each token's number first; True stops there.
        """
        scores = []
        for place in range(1, len(tokens)):
            if on_token(place):
                break
            entry = self._entry(tokens[:place], tokens[place], max(1, count), options)
            if entry is None or entry["id"] != tokens[place]:
                # llama.cpp reports nothing for a token that ends within a character. So another one is generated.
                entry = self._rare_entry(tokens[:place], tokens[place], options)
            scores.append(alternatives(entry, count))
        return scores

    def _rare_entry(self, before: Sequence[int], token: int, options: Mapping[str, Any]) -> Dict[str, Any]:
        """The entry of a token among those of all tokens."""
        found = self._entry(before, self._whole_token, self._vocabulary, options)
        top = found["top_logprobs"] if found is not None else []
        wanted = next((one for one in top if one["id"] == token), None)
        if wanted is None:
            raise RuntimeError(f"llama.cpp reported no probability of token {token}")
        return {**wanted, "top_logprobs": top}

    def _entry(
        self, before: Sequence[int], token: int, count: int, options: Mapping[str, Any]
    ) -> Optional[Dict[str, Any]]:
        """What llama.cpp reports of *token*, generated after those *before* it; None if it reports nothing."""
        entries: List[Dict[str, Any]] = []
        errors: List[Exception] = []

        def on_chunk(text: str) -> bool:
            chunk = json.loads(text)
            for one in chunk if isinstance(chunk, list) else [chunk]:
                error = parse_error(one)
                if error is not None:
                    errors.append(error)
                    return True
                for choice in one["choices"]:
                    entries.extend((choice.get("logprobs") or {}).get("content") or ())
            return False

        body = {
            **options,
            "prompt": list(before),
            "max_tokens": 1,
            "temperature": 0,
            "samplers": ["temperature"],
            "logit_bias": [[token, _BIAS]],
            "logprobs": count,
            "stream": True,
        }
        self._complete(json.dumps(body), on_chunk)
        if errors:
            raise errors[0]
        return entries[0] if entries else None
