"""The body of `POST /v1/responses`, read into the form that all requests for text share.

Items of the input become messages of a chat, so models need not know this API.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from naiad_llm.openai.custom_tools import custom_arguments
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.requests import (
    ANYTHING,
    ARRAY,
    BOOLEAN,
    CHAT_TOKENS,
    HOSTED,
    OBJECT,
    SAMPLING_RULES,
    TEXT,
    FieldRule,
    TextRequest,
    check_messages,
    sampling_of,
    to_json,
    validate_fields,
)
from naiad_llm.openai.responses.tools import (
    FUNCTION,
    CallForm,
    Tools,
    apply_choice,
    function_name,
    read_tools,
)

_LOGPROBS = "message.output_text.logprobs"
_SAMPLING = SAMPLING_RULES.keys() - {"n"}
_RULES: dict[str, FieldRule] = {
    **{name: rule for name, rule in SAMPLING_RULES.items() if name in _SAMPLING},
    **HOSTED,  # the response repeats `metadata`, `store` and `user`
    **dict.fromkeys(("model", "instructions", "previous_response_id", "truncation", "prompt_cache_retention"), TEXT),
    **dict.fromkeys(("input", "tool_choice"), ANYTHING),
    **dict.fromkeys(("max_output_tokens", "max_tool_calls"), FieldRule("an integer", 1)),
    **dict.fromkeys(("stream", "parallel_tool_calls", "background"), BOOLEAN),
    **dict.fromkeys(("stream_options", "text", "reasoning", "chat_template_kwargs"), OBJECT),
    **dict.fromkeys(("tools", "include"), ARRAY),
    "top_logprobs": FieldRule("an integer", 0),
}
_UNSUPPORTED = {
    "conversation": "use `previous_response_id` instead",
    "prompt": "send its text in `instructions` and `input`",
    "context_management": "send a shorter `input`",
    "moderation": "models here have no moderation",
    "functions": "use `tools` instead",
    "messages": "use `input` instead",
    "n": "send several requests",
}
_HOSTED_ITEMS = frozenset((
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call",
    "computer_call_output", "local_shell_call", "local_shell_call_output", "mcp_call", "mcp_list_tools",
    "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output", "compaction",
))  # fmt: skip
"""Items of tools that OpenAI's service runs, and of its own bookkeeping: nothing in them is for a model here."""
_REFERENCE = "item_reference"
_PARTS = {"input_text", "output_text", "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """A validated request."""

    text: TextRequest
    instructions: str  # the system message as JSON; "" for none
    messages: str  # the new messages, as JSON without the brackets of their list
    options: str  # the other members of the conversation, as JSON without braces
    items: str  # the input as items, each with an id, in JSON
    item_ids: tuple[str, ...]
    has_references: bool  # whether some items are references to stored ones, which `with_items` puts in their place
    previous: str
    is_stored: bool
    fields: Mapping[str, Any]  # members of the response that repeat the request
    forms: Mapping[str, CallForm]  # how calls are written, by the name of the function

    def with_earlier(self, earlier: tuple[str, ...]) -> TextRequest:
        """The request for text, with earlier messages before the new ones."""
        messages = ",".join(part for part in (self.instructions, *earlier, self.messages) if part)
        options = f",{self.options}" if self.options else ""
        return replace(self.text, prompts=(f'{{"messages":[{messages}]{options}}}',))

    def with_items(self, find: Callable[[str], dict[str, Any]]) -> ResponsesRequest:
        """The request with the items that *find* returns in place of references to their ids."""
        if not self.has_references:
            return self
        given = orjson.loads(self.items)
        items = [find(item["id"]) if item.get("type") == _REFERENCE else item for item in given]
        messages = check_messages(_messages(items, []), "input")
        return replace(self, messages=to_json(messages)[1:-1], items=to_json(items), has_references=False)


def read_response_request(document: Mapping[str, Any], default_tokens: int | None = None) -> ResponsesRequest:
    """The request in the body of `POST /v1/responses`; None for as many tokens as fit into the context."""
    given = validate_fields(document, _RULES, ("model", "input"), _UNSUPPORTED)
    _reject_unsupported_values(given)
    items = _items(given["input"])
    ignored: list[str] = []
    messages = check_messages(_messages(items, ignored), "input")
    tools = read_tools(given.get("tools", ()))
    options = _conversation_options(given, tools)
    previous = given.get("previous_response_id", "")
    has_references = any(item.get("type") == _REFERENCE for item in items)
    if not messages and not previous and not has_references:
        raise ApiError("`input` must hold at least one item", param="input")
    instructions = given.get("instructions")
    text_format = _text_format(given.get("text") or {})
    response_format = _response_format(text_format)
    sampling_fields = {**given, **({"response_format": response_format} if response_format else {})}
    sampling = sampling_of(sampling_fields, given.get("max_output_tokens", default_tokens or CHAT_TOKENS), _SAMPLING)
    top_logprobs = given.get("top_logprobs", 0) if _LOGPROBS in given.get("include", ()) else None
    if top_logprobs is not None:
        sampling["logprobs"] = top_logprobs
    stream = given.get("stream", False)
    return ResponsesRequest(
        text=TextRequest(
            model=given["model"],
            prompts=(),
            is_chat=True,
            sampling=sampling,
            stream=stream,
            include_usage=stream,
            top_logprobs=top_logprobs,
            ignored=(*ignored, *(f"tools of type '{kind}'" for kind in tools.ignored)),
        ),
        instructions=to_json({"role": "system", "content": instructions}) if instructions else "",
        messages=to_json(messages)[1:-1],
        options=to_json(options)[1:-1],
        items=to_json(items),
        item_ids=tuple(item["id"] for item in items),
        has_references=has_references,
        previous=previous,
        is_stored=given.get("store", True),
        fields=_repeated_fields(given, text_format),
        forms=tools.forms,
    )


def _reject_unsupported_values(given: Mapping[str, Any]) -> None:
    if given.get("background"):
        raise ApiError(
            "`background` is not supported: send the request with `stream`, or wait for the response",
            param="background",
            code="unsupported_parameter",
        )
    if given.get("truncation", "disabled") not in {"disabled", "auto"}:
        raise ApiError("`truncation` must be disabled or auto", param="truncation", code="invalid_value")
    if "top_logprobs" in given and _LOGPROBS not in given.get("include", ()):
        raise ApiError(f'`top_logprobs` can only be used with `include: ["{_LOGPROBS}"]`', param="top_logprobs")
    if given.get("stream_options") and not given.get("stream"):
        raise ApiError("`stream_options` can only be used when `stream` is True", param="stream_options")


# -- input --------------------------------------------------------------------------------------------------------


def _items(given: object) -> list[dict[str, Any]]:
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise ApiError("`input` must be a string or an array of items", param="input")
    for number, item in enumerate(given):
        if item.keys() == {"id"}:  # a reference may leave out its type
            item["type"] = _REFERENCE
        if item.get("type") == _REFERENCE:
            _string(item, "id", f"input[{number}]")
    return [
        {**item, "id": item["id"] if isinstance(item.get("id"), str) else f"item_{uuid.uuid4().hex}"} for item in given
    ]


def _messages(items: list[dict[str, Any]], ignored: list[str]) -> list[dict[str, Any]]:
    """The items as messages of a chat. What an assistant thinks, says and calls in succession is one message.

    Items that are left out are added to *ignored*.
    """
    messages: list[dict[str, Any]] = []
    is_open = False  # whether the last message is the assistant's and may be continued
    for number, item in enumerate(items):
        where = f"input[{number}]"
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message" and item.get("role") != "assistant":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"), where)})
            is_open = False
        elif kind in {"function_call_output", "custom_tool_call_output"}:
            call_id = _string(item, "call_id", where)
            output = _content(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
            is_open = False
        elif kind in {"message", "function_call", "custom_tool_call", "reasoning"}:
            if not is_open:
                messages.append({"role": "assistant", "content": None})
                is_open = True
            _continue(messages[-1], str(kind), item, where)
        elif kind == _REFERENCE:
            is_open = False  # `with_items` reads all items again
        elif kind in _HOSTED_ITEMS:
            ignored.append(f"items of type '{kind}'")
        else:
            raise ApiError(
                f"`{where}.type` {kind!r} is not supported: use message, function_call, function_call_output, "
                "custom_tool_call, custom_tool_call_output, reasoning or item_reference",
                param=f"{where}.type",
                code="unsupported_parameter",
            )
    return messages


def _continue(message: dict[str, Any], kind: str, item: Mapping[str, Any], where: str) -> None:
    if kind == "message":
        content = _content(item.get("content"), where)
        if not isinstance(content, str):
            content = "\n".join(part.get("text", "") for part in content)
        message["content"] = "\n".join(filter(None, (message["content"], content)))
    elif kind in {"function_call", "custom_tool_call"}:
        is_custom = kind == "custom_tool_call"
        arguments = custom_arguments(_string(item, "input", where)) if is_custom else _string(item, "arguments", where)
        name = function_name(_string(item, "name", where), item.get("namespace"))
        call = {
            "id": _string(item, "call_id", where),
            "type": FUNCTION,
            "function": {"name": name, "arguments": arguments},
        }
        message.setdefault("tool_calls", []).append(call)
    else:
        parts = item.get("content") or item.get("summary") or ()
        text = "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
        if text:
            message["reasoning_content"] = message.get("reasoning_content", "") + text


def _content(given: object, where: str) -> str | list[dict[str, Any]]:
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(part, dict) for part in given):
        raise ApiError(f"`{where}.content` must be a string or an array of parts", param=f"{where}.content")
    return [_part(part, where) for part in given]


def _part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind in _PARTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    raise ApiError(
        f"`{where}.content` has a part of type {kind!r} that is not supported: use input_text, or input_image with an "
        "`image_url`",
        param=f"{where}.content",
    )


def _string(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ApiError(f"`{where}.{name}` must be a string", param=f"{where}.{name}", code="invalid_type")
    return value


# -- tools and structure ------------------------------------------------------------------------------------------


def _conversation_options(given: Mapping[str, Any], tools: Tools) -> dict[str, Any]:
    options = {name: given[name] for name in ("parallel_tool_calls", "chat_template_kwargs") if name in given}
    if "tool_choice" in given:
        options["tool_choice"] = apply_choice(tools, given["tool_choice"])
    if tools.functions:
        options["tools"] = tools.functions
    effort = (given.get("reasoning") or {}).get("effort")
    if effort is not None:
        options["reasoning_effort"] = effort
    return options


def _text_format(text: Mapping[str, Any]) -> dict[str, Any]:
    found = text.get("format")
    if found is None:
        return {"type": "text"}
    if not isinstance(found, dict):
        raise ApiError("`text.format` must be an object", param="text.format", code="invalid_type")
    return found


def _response_format(text_format: Mapping[str, Any]) -> dict[str, Any] | None:
    """`text.format` in the form of chats; None for free text."""
    kind = text_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": kind}
    if kind == "json_schema" and isinstance(text_format.get("schema"), dict):
        return {"type": kind, "json_schema": {"schema": text_format["schema"]}}
    raise ApiError(
        '`text.format` must be {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "name": ..., '
        '"schema": {...}}',
        param="text.format",
    )


def _repeated_fields(given: Mapping[str, Any], text_format: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = given.get("reasoning") or {}
    return {
        "background": False,
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "max_tool_calls": given.get("max_tool_calls"),
        "metadata": given.get("metadata", {}),
        "model": given["model"],
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "previous_response_id": given.get("previous_response_id"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "store": given.get("store", True),
        "temperature": given.get("temperature", 1.0),
        "text": {**(given.get("text") or {}), "format": text_format},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
        "top_logprobs": given.get("top_logprobs", 0),
        "top_p": given.get("top_p", 1.0),
        "truncation": "disabled",
        "user": given.get("user"),
    }
