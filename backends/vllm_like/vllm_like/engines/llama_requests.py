"""Converts a `Generation` into llama.cpp's request: its names of the parameters, but the defaults of vLLM."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from vllm_like import keys
from vllm_like.engines import llama_grammar
from vllm_like.engines.base import CallerError, Generation

_NO_LIMIT = -1
_SAME_NAMES: Mapping[str, Any] = {
    "n": 1,
    "max_tokens": 16,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": False,
    "stop": [],
}
_CONVERTED = keys.words(
    "repetition_penalty top_k seed logprobs prompt_logprobs structured_outputs logit_bias best_of detokenize"
)
_NEUTRAL: Mapping[str, Any] = {
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "stop_token_ids": [],
    "bad_words": [],
    "use_beam_search": False,
    "early_stopping": False,
    "length_penalty": 1.0,
    "priority": 0,
    "data_parallel_rank": 0,
}  # parameters that llama.cpp does not have, with the values that have no effect


def finds_stops(generation: Generation) -> bool:
    """Whether the backend finds the end of the text, since llama.cpp does not tell which stop has ended it.

    llama.cpp ends one of several choices, and knows which log probabilities belong to the text that is left.
    """
    given = generation.sampling
    is_one = given.get("n", 1) == 1 and not generation.wants_logprobs
    return generation.wants_stop and is_one and bool(given.get("stop"))


def body(generation: Generation, seed: Optional[int], max_logprobs: int, *, takes_images: bool) -> Dict[str, Any]:
    """The body of a request to llama.cpp; *seed* is for requests that set none, None for a random one."""
    given = generation.sampling
    _reject_unsupported(generation, takes_images=takes_images)
    document: Dict[str, Any] = {name: given.get(name, default) for name, default in _SAME_NAMES.items()}
    if document["max_tokens"] is None:
        document["max_tokens"] = _NO_LIMIT
    document["stream"] = True
    document["repeat_penalty"] = given.get("repetition_penalty", 1.0)
    document["top_k"] = max(0, given.get("top_k", 0))
    # The complete list, so that no other sampler of llama.cpp has an effect.
    document["samplers"] = ["penalties", "top_k", "top_p", "min_p", "temperature"]
    seed = given.get("seed", seed)
    if seed is not None:
        document["seed"] = seed & 0xFFFFFFFF
    if "logit_bias" in given:
        document["logit_bias"] = [[token, bias] for token, bias in given["logit_bias"].items()]
    if finds_stops(generation):
        document["stop"] = []
    if generation.wants_counts or finds_stops(generation):
        document["timings_per_token"] = True
    _add_logprobs(document, generation, max_logprobs)
    if generation.constraint is not None:
        document["grammar"] = llama_grammar.of_constraint(generation.constraint)
    elif "structured_outputs" in given:
        document["grammar"] = llama_grammar.of_structure(given["structured_outputs"])
    if generation.chat is not None:
        document.update(generation.chat)
    else:
        document["prompt"] = generation.prompt
    # Chunks while the prompt is read: they tell its length, and a request can be cancelled meanwhile.
    document["return_progress"] = True
    return document


def _reject_unsupported(generation: Generation, *, takes_images: bool) -> None:
    given = generation.sampling
    if generation.images:
        raise CallerError("the engine xllamacpp does not support 'image'")
    if generation.has_images and not takes_images:
        raise CallerError(
            "the engine xllamacpp supports images in 'messages' with 'mmproj' in 'engine_options' of model.json only"
        )
    if generation.has_images and generation.constraint is not None and generation.constraint.functions:
        raise CallerError("the engine xllamacpp cannot demand a call in a conversation with images")
    if given.get("best_of", 1) not in (1, given.get("n", 1)):
        raise CallerError("the engine xllamacpp does not support the sampling parameter 'best_of'")
    if "prompt_logprobs" in given and generation.chat is not None:
        raise CallerError("the engine xllamacpp computes 'prompt_logprobs' of prompts only, not of 'messages'")
    for name, value in given.items():
        if name in _SAME_NAMES or name in _CONVERTED or (name in _NEUTRAL and value == _NEUTRAL[name]):
            continue
        raise CallerError(f"the engine xllamacpp does not support the sampling parameter '{name}'")


def _add_logprobs(document: Dict[str, Any], generation: Generation, max_logprobs: int) -> None:
    count = generation.sampling.get("logprobs")
    for kind, wanted in (("sample", count), ("prompt", generation.sampling.get("prompt_logprobs"))):
        if wanted is not None and wanted > max_logprobs:
            raise CallerError(
                f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: {max_logprobs}"
            )
    if not generation.wants_logprobs:
        return
    # `logprobs: 0` means the sampled token only. llama.cpp reports at least one alternative, which is dropped later.
    if generation.chat is None:
        document["logprobs"] = max(1, count or 0)
    else:
        document["logprobs"] = True
        document["top_logprobs"] = max(1, count or 0)
