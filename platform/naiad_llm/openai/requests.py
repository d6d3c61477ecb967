"""The JSON bodies of requests: parsed, validated field by field, and read into `TextRequest`.

Validation follows OpenAI's API where OpenAI documents a limit, and vLLM's server for the fields that vLLM adds.
A field is handled in one of four ways:

- A known field is checked against its `FieldRule`. `null` counts as absent: many clients send every field they know.
- An unsupported field that would change the response is rejected, with an alternative.
- An unknown name that is very similar to a known one is rejected as a misspelling.
- Any other unknown field is ignored and logged once: clients send one body to servers of several vendors.
"""

from __future__ import annotations

import base64
import difflib
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from naiad.frontends.kserve_http.json_document import reason_of
from naiad.protocol.inference import Buffer
from naiad_llm.openai.errors import TOO_LARGE, ApiError
from naiad_llm.openai.requested_tools import checked_calls, read_tools

logger = logging.getLogger("naiad.openai")

COMPLETION_TOKENS = 16  # `max_tokens` of a completion whose request sets none: OpenAI's default, and vLLM's
CHAT_TOKENS = 1 << 16
"""`max_tokens` of a chat whose request sets none: larger than any context, so that the context is the limit."""

_MAX_CHOICES = 128
_MAX_PROMPTS = 2048
_INT32 = 1 << 31
_INT64 = 1 << 63

_PARTS_OF_RESPONSES = {
    **dict.fromkeys(("input_text", "output_text"), '{"type": "text", "text": ...}'),
    "input_image": '{"type": "image_url", "image_url": {"url": ...}}',
}
_IMAGE_HEAD = re.compile(r"data:image/[\w.+-]+;base64")
_MISSPELLING_SIMILARITY = 0.88
"""Similarity (difflib's ratio) from which on an unknown name is a misspelling. `top_a` and `top_p`, two different
parameters, have 0.8; `temprature` and `temperature` have 0.95."""
_NOT_MISSPELLED = frozenset({"models"})  # names that are similar to a known one but are fields of other servers
_MAX_LOGGED = 100  # bound of `_logged`: clients choose the names, so the set must not grow without limit
_logged: set[str] = set()

# -- validation of fields ---------------------------------------------------------------------------------------


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_TYPE_CHECKS: Mapping[str, Callable[[object], bool]] = {
    "a boolean": lambda value: isinstance(value, bool),
    "an integer": _is_integer,
    "a number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "a string": lambda value: isinstance(value, str),
    "an object": lambda value: isinstance(value, dict),
    "an array": lambda value: isinstance(value, list),
    "a string or an array of strings": lambda value: (
        isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    ),
    "anything": lambda _: True,
}


class FieldRule(NamedTuple):
    """Permitted values of a field; None for no limit."""

    kind: str
    low: float | None = None
    high: float | None = None


FieldRules = Mapping[str, FieldRule]

BOOLEAN = FieldRule("a boolean")
NUMBER = FieldRule("a number")
TEXT = FieldRule("a string")
OBJECT = FieldRule("an object")
ARRAY = FieldRule("an array")
TEXTS = FieldRule("a string or an array of strings")
ANYTHING = FieldRule("anything")
_NONE: Mapping[str, str] = {}
_FREE: Mapping[str, object] = {}


def parse_body(body: Buffer, limit: int) -> dict[str, Any]:
    """The JSON object in the body of a request."""
    check_size(body, limit)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        why = f"{reason_of(problem)} at {problem.pos}"
        raise ApiError(f"We could not parse the JSON body of your request: {why}") from None
    if not isinstance(document, dict):
        raise ApiError("The body of the request must be a JSON object")
    return document


def check_size(body: Buffer, limit: int) -> None:
    """Reject a body that is longer than *limit* bytes."""
    if len(body) > limit:
        raise ApiError(
            f"The request has {len(body)} bytes, more than the {limit} that --http-max-input-size allows",
            status=TOO_LARGE,
        )


def to_json(value: object) -> str:
    """A part of a request as JSON for a model; orjson parses deeper nesting than it serializes (254 levels)."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as problem:
        raise ApiError(f"cannot send the JSON body of the request to the model: {problem}") from None


def validate_fields(
    document: Mapping[str, Any],
    rules: FieldRules,
    required: tuple[str, ...],
    unsupported: Mapping[str, str] = _NONE,
    fixed: Mapping[str, object] = _FREE,
) -> dict[str, Any]:
    """The known fields of *document* whose value is not null."""
    given = {name: value for name, value in document.items() if value is not None}
    for name, value in fixed.items():
        if given.pop(name, value) != value:
            only = "" if value is None else f" unless it is {orjson.dumps(value).decode()}"
            raise ApiError(f"`{name}` is not supported{only}; omit it", param=name, code="unsupported_parameter")
    for name in [name for name in given if name not in rules]:
        is_neutral = given[name] == _NEUTRAL.get(name) or (not given[name] and _NEUTRAL.get(name) is not True)
        if name in _NEUTRAL and name not in unsupported and not is_neutral:
            raise ApiError(
                f"`{name}` is not supported: models here have no such setting; omit it",
                param=name,
                code="unsupported_parameter",
            )
        # A falsy value (false, 0, an empty list) asks for nothing, so the response is the expected one.
        if given.pop(name) and name in unsupported:
            raise ApiError(f"`{name}` is not supported: {unsupported[name]}", param=name, code="unsupported_parameter")
        _ignore_unknown(name, rules)
    for name in required:
        if name not in given:
            raise ApiError(f"you must provide a `{name}` parameter", param=name, code="missing_required_parameter")
    for name, value in given.items():
        _check_value(name, value, rules[name])
    return given


def _ignore_unknown(name: str, rules: FieldRules) -> None:
    close = difflib.get_close_matches(name[:100], rules, 1, _MISSPELLING_SIMILARITY)
    if close and name not in _NOT_MISSPELLED:
        advice = f"did you mean `{close[0]}`?"
        raise ApiError(f"Unrecognized request argument supplied: {name}; {advice}", param=name)
    log_ignored(f"unknown request field {name[:100]!r}")


def log_ignored(what: str) -> None:
    """Log what a request asked for and does not get, unless it was logged before."""
    if what not in _logged and len(_logged) < _MAX_LOGGED:
        _logged.add(what)
        logger.info("ignoring %s", what)


def _check_value(name: str, value: object, rule: FieldRule) -> None:
    if not _TYPE_CHECKS[rule.kind](value):
        kind = next(kind for kind, is_one in _TYPE_CHECKS.items() if is_one(value))
        raise ApiError(f"`{name}` must be {rule.kind}, not {kind}", param=name, code="invalid_type")
    if (rule.low is None and rule.high is None) or not isinstance(value, int | float):
        return
    if (rule.low is not None and value < rule.low) or (rule.high is not None and value > rule.high):
        limits = f"between {rule.low} and {rule.high}" if rule.high is not None else f"at least {rule.low}"
        raise ApiError(f"`{name}` must be {limits}, got {value}", param=name, code="invalid_value")


# -- requests for text ------------------------------------------------------------------------------------------

SAMPLING_RULES: dict[str, FieldRule] = {
    "n": FieldRule("an integer", 1, _MAX_CHOICES),
    "temperature": FieldRule("a number", 0),  # OpenAI's own models take 2 at most, the engines any
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), FieldRule("a number", -2, 2)),
    "seed": FieldRule("an integer", -_INT64, _INT64 - 1),
    "stop": TEXTS,
    "logit_bias": OBJECT,
    # Besides top_p not in OpenAI's API: extensions of vLLM's server.
    **dict.fromkeys(("top_p", "min_p"), FieldRule("a number", 0, 1)),
    **dict.fromkeys(("top_k", "truncate_prompt_tokens", "thinking_token_budget"), FieldRule("an integer", -1)),
    **dict.fromkeys(("repetition_penalty", "length_penalty"), NUMBER),
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"), BOOLEAN),
    "spaces_between_special_tokens": BOOLEAN,
    "min_tokens": FieldRule("an integer", 0),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "bad_words"), ARRAY),
    **dict.fromkeys(("structured_outputs", "kv_transfer_params"), OBJECT),
    "priority": FieldRule("an integer", -_INT32, _INT32 - 1),
    **dict.fromkeys(("cache_salt", "lora_name"), TEXT),
}  # fields that are passed to the model as sampling parameters of the same name

HOSTED: dict[str, FieldRule] = {
    **dict.fromkeys(("user", "service_tier", "prompt_cache_key", "safety_identifier"), TEXT),
    "metadata": OBJECT,
    "store": BOOLEAN,
}  # settings of OpenAI's hosted service, which its clients also send to other servers: accepted and ignored

_COMMON: dict[str, FieldRule] = {
    **SAMPLING_RULES,
    **HOSTED,
    **dict.fromkeys(("model", "grammar", "regex", "guided_regex", "guided_grammar"), TEXT),
    "stream": BOOLEAN,
    **dict.fromkeys(("stream_options", "response_format", "json_schema"), OBJECT),
    "max_tokens": FieldRule("an integer", 0),
    "n_predict": FieldRule("an integer", -1),
    "repeat_penalty": NUMBER,
    "guided_json": ANYTHING,
    "guided_choice": ARRAY,
}
_COMPLETION: dict[str, FieldRule] = {
    **_COMMON,
    "prompt": ANYTHING,
    "echo": BOOLEAN,
    "best_of": FieldRule("an integer", 1, 20),
    "suffix": TEXT,
    "logprobs": FieldRule("an integer", 0),
}
_CONVERSATION = ("parallel_tool_calls", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt",
             "continue_final_message")  # fmt: skip
"""Fields of a chat that are sent to the model together with its messages."""
_GUIDED = {
    **{f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")},
    "json_schema": "json",
    "grammar": "grammar",
    "regex": "regex",
}  # other names of the members of `structured_outputs`: vLLM's earlier ones, llama.cpp's, and SGLang's
_NEUTRAL: Mapping[str, object] = {
    "typical_p": 1, "tfs_z": 1, "top_a": 0, "top_n_sigma": -1, "xtc_probability": 0, "dry_multiplier": 0, "mirostat": 0,
    "mirostat_mode": 0, "dynatemp_range": 0, "n_keep": 0, "epsilon_cutoff": 0, "eta_cutoff": 0, "smoothing_factor": 0,
    "min_keep": 0, "add_special_tokens": None, "include_reasoning": True, "samplers": None, "ebnf": None,
    "negative_prompt": None,
    "return_token_ids": False, "return_tokens_as_token_ids": False, "logits_processors": None, "vllm_xargs": None,
    "custom_params": None, "custom_logit_processor": None, "mm_processor_kwargs": None, "images": None, "format": None,
    "post_sampling_probs": False, "n_probs": 0, "guided_whitespace_pattern": None, "structural_tag": None,
    "stop_regex": None, "prefix": None, "input_extra": None, "no_stop_trim": False, "min_new_tokens": 0,
}  # fmt: skip
"""Fields of other servers that would change the answer and that no engine here takes, with a value without effect."""
_UNSUPPORTED = {
    "functions": "use `tools` instead",
    "function_call": "use `tool_choice` instead",
    "chat_template": "prompts are rendered by the model's own template, or by that of --openai-chat-template",
    "documents": "pass them to the template in `chat_template_kwargs`",
    "audio": "models here generate text only",
    "web_search_options": "models here have no web search",
    "use_beam_search": "omit it",
    "prompt_logprobs": "use `echo` and `logprobs` of completions, with a model that has an output `prompt_logprobs`",
    "prompt_embeds": "use `prompt` instead",
}  # fields that must not be ignored because they change the response; each with an alternative
_CHAT: dict[str, FieldRule] = {
    **_COMMON,
    **dict.fromkeys(("messages", "tools", "modalities"), ARRAY),
    "max_completion_tokens": FieldRule("an integer", 1),
    **dict.fromkeys(("logprobs", "parallel_tool_calls", "add_generation_prompt", "continue_final_message"), BOOLEAN),
    "top_logprobs": FieldRule("an integer", 0),
    "tool_choice": ANYTHING,
    "chat_template_kwargs": OBJECT,
    **dict.fromkeys(("reasoning_effort", "verbosity"), TEXT),
}


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A validated request to `/v1/chat/completions` or `/v1/completions`."""

    model: str
    # Prompts of a completion, each a text or token ids; for a chat one element, its conversation as JSON.
    prompts: tuple[str | list[int], ...]
    is_chat: bool
    sampling: Mapping[str, Any]
    stream: bool
    include_usage: bool
    choices: int = 1
    # Number of most likely tokens reported for each generated token; None to report no probabilities.
    top_logprobs: int | None = None
    echo: bool = False
    is_empty: bool = False  # whether no text is wanted, only what is told of the prompt; the model generates one token
    ignored: tuple[str, ...] = ()  # what was left out of the request, for the log
    # Names of the functions whose calls are written as those of custom tools.
    custom_tools: frozenset[str] = frozenset()


def read_completion(document: Mapping[str, Any], default_tokens: int | None) -> TextRequest:
    """The request in the body of `POST /v1/completions`; None for OpenAI's default of `max_tokens`."""
    given = validate_fields(document, _COMPLETION, ("model", "prompt"), _UNSUPPORTED)
    if given.get("suffix"):
        raise ApiError("suffix is not currently supported", param="suffix")
    choices = given.get("n", 1)
    if given.get("best_of", choices) != choices:
        raise ApiError("`best_of` is not supported unless it equals `n`", param="best_of")
    limit = _limit(given, given.get("max_tokens"), default_tokens or COMPLETION_TOKENS)
    echo = given.get("echo", False)
    sampling = sampling_of(given, max(limit, 1))  # no engine generates nothing: what it generates is dropped then
    top_logprobs = given.get("logprobs")
    if top_logprobs is not None:
        sampling["logprobs"] = top_logprobs
        if echo:
            sampling["prompt_logprobs"] = top_logprobs
    prompts = _prompts(given["prompt"])
    return TextRequest(
        model=given["model"],
        prompts=prompts,
        is_chat=False,
        sampling=sampling,
        choices=choices,
        stream=given.get("stream", False),
        include_usage=_include_usage(given),
        top_logprobs=top_logprobs,
        echo=echo,
        is_empty=limit == 0,
    )


def read_chat(document: Mapping[str, Any], default_tokens: int | None) -> TextRequest:
    """The request in the body of `POST /v1/chat/completions`; None for as many tokens as fit into the context."""
    given = validate_fields(document, _CHAT, ("model", "messages"), _UNSUPPORTED)
    if not given["messages"]:
        raise ApiError("`messages` must hold at least one message", param="messages")
    if given.get("modalities", ["text"]) != ["text"]:
        raise ApiError('`modalities` must be ["text"]: models here generate text only', param="modalities")
    if "top_logprobs" in given and not given.get("logprobs"):
        raise ApiError("`top_logprobs` can only be used when `logprobs` is True", param="top_logprobs")
    asked = given.get("max_completion_tokens", given.get("max_tokens"))
    sampling = sampling_of(given, _limit(given, asked, default_tokens or CHAT_TOKENS, least=1))
    top_logprobs = given.get("top_logprobs", 0) if given.get("logprobs") else None
    if top_logprobs is not None:
        sampling["logprobs"] = top_logprobs
    ignored: list[str] = []
    tools = read_tools(given, ignored)
    conversation: dict[str, Any] = {
        "messages": check_messages(given["messages"], "messages"),
        **tools.options,
        **{name: given[name] for name in _CONVERSATION if name in given},
    }
    return TextRequest(
        model=given["model"],
        prompts=(to_json(conversation),),
        is_chat=True,
        sampling=sampling,
        choices=given.get("n", 1),
        stream=given.get("stream", False),
        include_usage=_include_usage(given),
        top_logprobs=top_logprobs,
        ignored=tuple(ignored),
        custom_tools=tools.custom,
    )


def sampling_of(
    given: Mapping[str, Any], max_tokens: int, rules: Collection[str] = SAMPLING_RULES.keys()
) -> dict[str, Any]:
    """The sampling parameters among the fields *given*: those in *rules*, the limit of tokens, and the structure."""
    sampling = {name: given[name] for name in rules if name in given}
    if "repeat_penalty" in given:  # llama.cpp's name
        sampling.setdefault("repetition_penalty", given["repeat_penalty"])
    sampling["max_tokens"] = max_tokens
    structure = _structured_outputs(given.get("response_format")) or {
        kind: given[name] for name, kind in _GUIDED.items() if name in given
    }
    if structure:
        sampling["structured_outputs"] = structure
    return sampling


def _limit(given: Mapping[str, Any], asked: int | None, default: int, least: int = 0) -> int:
    """The largest number of tokens to generate; `n_predict` is llama.cpp's name, where -1 is as many as fit."""
    predicted = given.get("n_predict")
    if asked is None and predicted is not None:
        asked = predicted if predicted >= 0 else CHAT_TOKENS
    limit = default if asked is None else asked
    if limit < least:
        raise ApiError(f"`max_tokens` must be at least {least}, got {limit}", param="max_tokens", code="invalid_value")
    return limit


def _structured_outputs(response_format: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """`response_format` as vLLM's `structured_outputs`; None for free text."""
    if response_format is None or response_format.get("type") == "text":
        return None
    if response_format.get("type") == "json_object":
        return {"json_object": True}
    json_schema = response_format.get("json_schema")
    if response_format.get("type") != "json_schema" or not isinstance(json_schema, dict):
        raise ApiError(
            '`response_format` must be {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", '
            '"json_schema": {"name": ..., "schema": {...}}}',
            param="response_format",
        )
    schema = json_schema.get("schema")
    if not isinstance(schema, dict):
        raise ApiError("`response_format.json_schema.schema` must be an object", param="response_format")
    return {"json": schema}


def _include_usage(given: Mapping[str, Any]) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not given.get("stream"):
        raise ApiError("`stream_options` can only be used when `stream` is True", param="stream_options")
    return bool(options.get("include_usage"))


def _prompts(given: object) -> tuple[str | list[int], ...]:
    prompts = [given] if isinstance(given, str) or are_token_ids(given) else given
    if not isinstance(prompts, list) or not prompts or not all(map(_is_prompt, prompts)):
        raise ApiError(
            "`prompt` must be a string, an array of strings, an array of token ids or an array of such arrays",
            param="prompt",
        )
    if not all(prompts):
        raise ApiError("prompt must be non-empty", param="prompt")
    if len(prompts) > _MAX_PROMPTS:
        raise ApiError(f"`prompt` must hold at most {_MAX_PROMPTS} prompts, got {len(prompts)}", param="prompt")
    return tuple(prompts)


def _is_prompt(given: object) -> bool:
    return isinstance(given, str) or given == [] or are_token_ids(given)


def are_token_ids(given: object) -> bool:
    """Whether *given* is a list of token ids, which have 32 bits in all engines."""
    return (
        isinstance(given, list) and bool(given) and all(_is_integer(token) and 0 <= token < _INT32 for token in given)
    )


def check_messages(given: list[Any], where: str) -> list[dict[str, Any]]:
    """The messages of a chat as they are sent to a model; *where* is the name of the field that has them."""
    return [_message(message, f"{where}[{number}]") for number, message in enumerate(given)]


def _message(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise ApiError(f"`{where}` must be an object with a `role`", param=where)
    message = dict(given)
    content = message.get("content")
    if isinstance(content, list):
        content, reasoning = _split_thinking(content)
        message["content"] = _parts(content, where)
        if reasoning:
            message.setdefault("reasoning_content", reasoning)
    elif content is not None and not isinstance(content, str):
        raise ApiError(f"`{where}.content` must be a string or an array of parts", param=f"{where}.content")
    if isinstance(message.get("reasoning"), str):  # vLLM's newer name, which chat templates do not know
        message.setdefault("reasoning_content", message.pop("reasoning"))
    if message.get("tool_calls") is not None:
        message["tool_calls"] = checked_calls(message["tool_calls"], f"{where}.tool_calls")
    if message["role"] == "developer":  # OpenAI's newer name of the role, which chat templates do not know
        message["role"] = "system"
    return message


def _split_thinking(parts: list[Any]) -> tuple[list[Any], str]:
    """The parts of a content that are not the model's reasoning, and its text."""
    thoughts = [part for part in parts if isinstance(part, dict) and part.get("type") == "thinking"]
    rest = [part for part in parts if part not in thoughts]
    return rest, "\n".join(str(part.get("thinking") or "") for part in thoughts)


def _parts(parts: list[Any], where: str) -> str | list[dict[str, Any]]:
    """The parts of a message's content: one text if all parts are text, because chat templates take a string."""
    checked = [_part(part, where) for part in parts]
    if all(part["type"] == "text" for part in checked):
        return "\n".join(part["text"] for part in checked)
    return checked


def _part(part: object, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if isinstance(part, dict) and kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if isinstance(part, dict) and kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    image = part.get("image_url") if isinstance(part, dict) and kind == "image_url" else None
    if kind in _PARTS_OF_RESPONSES:
        raise ApiError(
            f"a part of type {kind} has the form of /v1/responses; in a chat it is {_PARTS_OF_RESPONSES[kind]}",
            param=f"{where}.content",
        )
    if image is None:
        raise ApiError(f"only text message is supported, but got {kind}", param=f"{where}.content")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not _is_image(url):
        # A server that fetches URLs of its clients reaches what only it can reach.
        raise ApiError(
            "an image must be a data URL in base64, such as data:image/png;base64,...; this server fetches no URLs",
            param=f"{where}.content",
        )
    return {"type": "image_url", "image_url": {"url": url}}


def _is_image(url: str) -> bool:
    head, comma, data = url.partition(",")
    if not comma or not _IMAGE_HEAD.fullmatch(head):
        return False
    try:
        return bool(base64.b64decode(data, validate=True))
    except ValueError:
        return False
