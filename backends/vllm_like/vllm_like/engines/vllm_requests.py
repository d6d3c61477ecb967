"""Converts requests into vLLM's own types, whose modules and names differ between its releases."""

from __future__ import annotations

import io
import json
from typing import Any, Dict, List, Mapping, Sequence, Union

from vllm_like.engines.base import CallerError, Generation

_REMOVED: Mapping[str, Any] = {"use_beam_search": False, "early_stopping": False, "length_penalty": 1.0}
"""Parameters that later releases have removed, as they have `best_of`, with the values that have no effect."""


_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
NOT_PARAMETERS = ("priority", "cache_salt", "data_parallel_rank")
"""What requests have among their parameters, and vLLM takes elsewhere."""


async def make_engine(engine_args: Any) -> Any:
    """The engine; must be awaited on the event loop that it will run on."""
    try:
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError:  # before release 0.8
        from vllm.engine.async_llm_engine import AsyncLLMEngine as AsyncLLM
    return AsyncLLM.from_engine_args(engine_args)


def sampling_parameters(generation: Generation) -> Any:
    """The `SamplingParams` of vLLM; `CallerError` if vLLM rejects them."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    given: Dict[str, Any] = dict(generation.sampling)
    structure = given.pop("structured_outputs", None)
    for name, neutral in _REMOVED.items():
        if given.get(name) == neutral:
            del given[name]
    if given.get("best_of") in (1, given.get("n", 1)):
        del given["best_of"]
    for name in NOT_PARAMETERS:
        given.pop(name, None)
    transfer = given.pop("kv_transfer_params", None)
    if transfer is not None:
        given["extra_args"] = {**given.get("extra_args", {}), "kv_transfer_params": transfer}
    if generation.wants_logprobs:
        given.setdefault("logprobs", 0)  # the sampled token only
    try:
        if structure is not None:
            given.update(_structure(structure))
        return SamplingParams(**given, output_kind=RequestOutputKind.DELTA)
    except (TypeError, ValueError) as error:
        raise CallerError(str(error)) from None


def _structure(given: Mapping[str, Any]) -> Dict[str, Any]:
    from vllm import sampling_params

    kept = {key: value for key, value in given.items() if value is not None}
    if hasattr(sampling_params, "StructuredOutputsParams"):
        return {"structured_outputs": sampling_params.StructuredOutputsParams(**kept)}
    return {"guided_decoding": sampling_params.GuidedDecodingParams(**kept)}  # before release 0.11


def chat_prompt(tokenizer: Any, conversation: Mapping[str, Any], template: str) -> Dict[str, Any]:
    """A conversation rendered by the chat template, as tokens.

    Not as text: the template writes the first token (BOS) already, and vLLM would add it again.
    """
    text = chat_text(tokenizer, conversation, template)
    return {"prompt_token_ids": list(tokenizer.encode(text, add_special_tokens=False))}


def chat_text(tokenizer: Any, conversation: Mapping[str, Any], template: str) -> str:
    """A conversation rendered by the chat template; `CallerError` if the template rejects it."""
    options: Dict[str, Any] = dict(conversation.get("chat_template_kwargs") or {})
    if template:
        options["chat_template"] = template
    continues = bool(conversation.get("continue_final_message"))
    tools = conversation.get("tools") if conversation.get("tool_choice") != "none" else None
    try:
        text: str = tokenizer.apply_chat_template(
            conversation["messages"],
            tools=tools,
            tokenize=False,
            add_generation_prompt=conversation.get("add_generation_prompt", not continues),
            continue_final_message=continues,
            **options,
        )
    except Exception as error:  # noqa: BLE001 - a template is code and can raise any exception
        raise CallerError(f"the chat template rejected the conversation: {error}") from None
    return text


def tokenizer_info(tokenizer: Any, template: str) -> Dict[str, Any]:
    """The settings of a tokenizer, without paths of files; *template* replaces its own chat template if not empty."""
    given = dict(getattr(tokenizer, "init_kwargs", None) or {})
    kept = {key: value for key, value in given.items() if not key.endswith("_file") and key != "name_or_path"}
    info = {**kept, "tokenizer_class": type(tokenizer).__name__}
    for name in _SPECIAL_TOKENS:
        info.setdefault(name, getattr(tokenizer, name, None))
    info["chat_template"] = template or getattr(tokenizer, "chat_template", None)
    made: Dict[str, Any] = json.loads(json.dumps(info, default=_plain))
    return made


def _plain(value: Any) -> str:
    """The text of a token that has flags, and of whatever else is not JSON."""
    return str(getattr(value, "content", value))


def prompt_with_images(prompt: Union[str, List[int]], images: Sequence[bytes]) -> Dict[str, Any]:
    """A prompt with images; `CallerError` if an image cannot be decoded."""
    from PIL import Image

    try:
        pictures = [Image.open(io.BytesIO(image)).convert("RGB") for image in images]
    except OSError as error:
        raise CallerError(f"an element of input 'image' is not an image file: {error}") from None
    name = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
    return {name: prompt, "multi_modal_data": {"image": pictures if len(pictures) > 1 else pictures[0]}}
