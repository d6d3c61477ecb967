"""What a request for text asks of a model, read from chat and from plain completions alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from naiad.frontends.openai import fields
from naiad.frontends.openai.errors import ApiError
from naiad.frontends.openai.fields import ANYTHING, ARRAY, BOOLEAN, NUMBER, OBJECT, TEXT, TEXTS, Rule

COMPLETION_TOKENS = 16
"""How many tokens a completion has unless the request says: OpenAI's own default, and vLLM's."""
CHAT_TOKENS = 1 << 16
"""A chat's answer is as long as the model makes it and its context allows: this is beyond any."""

_MAX_CHOICES = 128
_MAX_ALTERNATIVES = 20
_COMPLETION_ALTERNATIVES = 5
_INT64 = 1 << 63

_SAMPLING: dict[str, Rule] = {
    "n": Rule("an integer", 1, _MAX_CHOICES),
    "temperature": Rule("a number", 0, 2),
    "top_p": Rule("a number", 0, 1),
    "presence_penalty": Rule("a number", -2, 2),
    "frequency_penalty": Rule("a number", -2, 2),
    "seed": Rule("an integer", -_INT64, _INT64 - 1),
    "stop": TEXTS,
    "logit_bias": OBJECT,
    # Beyond OpenAI's: what vLLM's server takes, too.
    "top_k": Rule("an integer", -1),
    "min_p": Rule("a number", 0, 1),
    "repetition_penalty": NUMBER,
    "length_penalty": NUMBER,
    "ignore_eos": BOOLEAN,
    "min_tokens": Rule("an integer", 0),
    "stop_token_ids": ARRAY,
    "allowed_token_ids": ARRAY,
    "bad_words": ARRAY,
    "include_stop_str_in_output": BOOLEAN,
    "skip_special_tokens": BOOLEAN,
    "spaces_between_special_tokens": BOOLEAN,
    "structured_outputs": OBJECT,
}
"""Fields that are sampling parameters of the model by the same name."""

_COMMON: dict[str, Rule] = {
    **_SAMPLING,
    "model": TEXT,
    "stream": BOOLEAN,
    "stream_options": OBJECT,
    "max_tokens": Rule("an integer", 1),
    "response_format": OBJECT,
    "guided_json": ANYTHING,
    "guided_regex": TEXT,
    "guided_choice": ARRAY,
    "guided_grammar": TEXT,
    # Matters of OpenAI's own service, which clients may send to anyone.
    "user": TEXT,
    "metadata": OBJECT,
    "store": BOOLEAN,
    "service_tier": TEXT,
    "prompt_cache_key": TEXT,
    "safety_identifier": TEXT,
}
_COMPLETION: dict[str, Rule] = {
    **_COMMON,
    "prompt": ANYTHING,
    "echo": BOOLEAN,
    "best_of": Rule("an integer", 1, 20),
    "suffix": TEXT,
    "logprobs": Rule("an integer", 0, _COMPLETION_ALTERNATIVES),
}
_TEMPLATE = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort",
             "add_generation_prompt", "continue_final_message")  # fmt: skip
"""Fields of a chat that belong to its conversation."""
_GUIDED = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}
"""vLLM's earlier names for `structured_outputs`, which many clients still use."""
_UNSUPPORTED = {
    "functions": "give `tools` instead",
    "function_call": "give `tool_choice` instead",
    "chat_template": "conversations are written by the model's own template, or that of --openai-chat-template",
    "documents": "give them to the template in `chat_template_kwargs`",
    "audio": "models here write text alone",
    "web_search_options": "models here search nothing",
    "use_beam_search": "leave it out",
    "prompt_logprobs": "give `echo` and `logprobs` to a model that can do that",
    "prompt_embeds": "give a `prompt`",
}
"""Fields that would make the answer another one, and what to do instead."""
_MOST_PROMPTS = 2048
_CHAT: dict[str, Rule] = {
    **_COMMON,
    "messages": ARRAY,
    "max_completion_tokens": Rule("an integer", 1),
    "logprobs": BOOLEAN,
    "top_logprobs": Rule("an integer", 0, _MAX_ALTERNATIVES),
    "tools": ARRAY,
    "tool_choice": ANYTHING,
    "parallel_tool_calls": BOOLEAN,
    "chat_template_kwargs": OBJECT,
    "add_generation_prompt": BOOLEAN,
    "continue_final_message": BOOLEAN,
    "reasoning_effort": TEXT,
    "verbosity": TEXT,
    "modalities": ARRAY,
}


@dataclass(frozen=True, slots=True)
class Question:
    """A request for text.

    Attributes:
        model: Name of the model.
        prompts: The texts to go on from; for a chat its conversation as JSON, alone.
        is_chat: Which of them it is.
        sampling: The model's sampling parameters.
        choices: How many answers each prompt gets.
        stream: Whether the answer comes in parts.
        include_usage: Whether a stream ends with the count of tokens.
        alternatives: How many likely tokens are wanted for each one taken; None for no probabilities at all.
        echo: Whether the prompt is repeated before the text.
    """

    model: str
    prompts: tuple[str, ...]
    is_chat: bool
    sampling: Mapping[str, Any]
    choices: int
    stream: bool
    include_usage: bool
    alternatives: int | None
    echo: bool = False


def read_completion(document: Mapping[str, Any], default_tokens: int | None) -> Question:
    """What a request to `/v1/completions` asks.

    Raises:
        ApiError: If it cannot be understood.
    """
    given = fields.checked(document, _COMPLETION, ("model", "prompt"), _UNSUPPORTED)
    if given.get("suffix"):
        raise ApiError("suffix is not currently supported", param="suffix")
    choices = given.get("n", 1)
    if given.get("best_of", choices) != choices:
        raise ApiError("`best_of` is not supported unless it equals `n`", param="best_of")
    sampling = _sampling(given, given.get("max_tokens", default_tokens or COMPLETION_TOKENS))
    alternatives = given.get("logprobs")
    if alternatives is not None:
        sampling["logprobs"] = alternatives
    prompts = _prompts(given["prompt"])
    return Question(
        model=given["model"],
        prompts=prompts,
        is_chat=False,
        sampling=sampling,
        choices=choices,
        stream=given.get("stream", False),
        include_usage=_includes_usage(given),
        alternatives=alternatives,
        echo=given.get("echo", False),
    )


def read_chat(document: Mapping[str, Any], default_tokens: int | None) -> Question:
    """What a request to `/v1/chat/completions` asks.

    Raises:
        ApiError: If it cannot be understood.
    """
    given = fields.checked(document, _CHAT, ("model", "messages"), _UNSUPPORTED)
    if not given["messages"]:
        raise ApiError("`messages` must hold at least one message", param="messages")
    if given.get("modalities", ["text"]) != ["text"]:
        raise ApiError('`modalities` must be ["text"]: models here write text alone', param="modalities")
    if "top_logprobs" in given and not given.get("logprobs"):
        raise ApiError("`top_logprobs` can only be used when `logprobs` is True", param="top_logprobs")
    most = given.get("max_completion_tokens", given.get("max_tokens", default_tokens or CHAT_TOKENS))
    sampling = _sampling(given, most)
    alternatives = given.get("top_logprobs", 0) if given.get("logprobs") else None
    if alternatives is not None:
        sampling["logprobs"] = alternatives
    conversation = {"messages": _messages(given["messages"])}
    conversation.update({name: given[name] for name in _TEMPLATE if name in given})
    return Question(
        model=given["model"],
        prompts=(fields.as_json(conversation),),
        is_chat=True,
        sampling=sampling,
        choices=given.get("n", 1),
        stream=given.get("stream", False),
        include_usage=_includes_usage(given),
        alternatives=alternatives,
    )


def _sampling(given: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    sampling = {name: given[name] for name in _SAMPLING if name in given}
    sampling["max_tokens"] = tokens
    structure = _structure(given.get("response_format")) or {
        kind: given[name] for name, kind in _GUIDED.items() if name in given
    }
    if structure:
        sampling["structured_outputs"] = structure
    return sampling


def _structure(wanted: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What `response_format` asks for, as vLLM's `structured_outputs`."""
    if wanted is None or wanted.get("type") == "text":
        return None
    if wanted.get("type") == "json_object":
        return {"json_object": True}
    described = wanted.get("json_schema")
    if wanted.get("type") != "json_schema" or not isinstance(described, dict):
        raise ApiError(
            '`response_format` must be {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", '
            '"json_schema": {"name": ..., "schema": {...}}}',
            param="response_format",
        )
    schema = described.get("schema")
    if not isinstance(schema, dict):
        raise ApiError("`response_format.json_schema.schema` must be an object", param="response_format")
    return {"json": schema}


def _includes_usage(given: Mapping[str, Any]) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not given.get("stream"):
        raise ApiError("`stream_options` can only be used when `stream` is True", param="stream_options")
    return bool(options.get("include_usage"))


def _prompts(given: object) -> tuple[str, ...]:
    prompts = [given] if isinstance(given, str) else given
    if not isinstance(prompts, list) or not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise ApiError(
            "`prompt` must be a string or an array of strings; prompts of token ids are not supported", param="prompt"
        )
    if not all(prompts):
        raise ApiError("prompt must be non-empty", param="prompt")
    if len(prompts) > _MOST_PROMPTS:
        raise ApiError(f"`prompt` must hold at most {_MOST_PROMPTS} strings, got {len(prompts)}", param="prompt")
    return tuple(prompts)


def _messages(given: list[Any]) -> list[dict[str, Any]]:
    return [_message(message, f"messages[{number}]") for number, message in enumerate(given)]


def _message(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise ApiError(f"`{where}` must be an object with a `role`", param=where)
    message = dict(given)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = _joined(content, where)
    elif content is not None and not isinstance(content, str):
        raise ApiError(f"`{where}.content` must be a string or an array of parts", param=f"{where}.content")
    if message["role"] == "developer":  # OpenAI's newer word, which no template knows
        message["role"] = "system"
    return message


def _joined(parts: list[Any], where: str) -> str:
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ApiError(f"only text message is supported, but got {kind}", param=f"{where}.content")
        texts.append(part["text"])
    return "".join(texts)
