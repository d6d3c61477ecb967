"""The bodies of requests below `/v1/messages`, read into the form that all requests for text share.

Content blocks become messages of a chat, so models need not know this API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.requests import (
    ANYTHING,
    ARRAY,
    BOOLEAN,
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

_SAMPLING = ("temperature", "top_p", "top_k")
_COUNT_RULES: dict[str, FieldRule] = {
    "model": TEXT,
    **dict.fromkeys(("messages", "tools"), ARRAY),
    "system": ANYTHING,
    **dict.fromkeys(("tool_choice", "thinking", "output_config"), OBJECT),
    # Settings of Anthropic's hosted service, which its clients also send to other servers: accepted and ignored.
    "cache_control": OBJECT,
    # What the service drops of a long conversation, to make it shorter: nothing is dropped here.
    "context_management": OBJECT,
}
_RULES: dict[str, FieldRule] = {
    **_COUNT_RULES,
    **{name: SAMPLING_RULES[name] for name in _SAMPLING},
    "max_tokens": FieldRule("an integer", 1),
    "stop_sequences": ARRAY,
    "stream": BOOLEAN,
    "metadata": OBJECT,
    **dict.fromkeys(("service_tier", "inference_geo", "speed"), TEXT),
}
_UNSUPPORTED = {
    "mcp_servers": "call their tools in the client",
    "container": "models here run no code",
}
_CUSTOM = "custom"
_HOSTED_BLOCKS = "server_tool_use"
_RESULT, _RESULTS = "tool_result", "_tool_result"
"""Type of the results of the client's tools, and how the types of results end that the service's own tools have."""
_ROLES = ("user", "assistant", "system")


def read_message_request(document: Mapping[str, Any], default_tokens: int | None) -> TextRequest:  # noqa: ARG001 - `max_tokens` is required here
    """The request in the body of `POST /v1/messages`."""
    given = validate_fields(document, _RULES, ("model", "max_tokens", "messages"), _UNSUPPORTED)
    stops = given.get("stop_sequences", [])
    if not all(isinstance(stop, str) for stop in stops):
        raise ApiError("`stop_sequences` must be an array of strings", param="stop_sequences")
    fields = {**given, **({"stop": stops} if stops else {})}
    structure = _structure(given.get("output_config") or {})
    if structure is not None:
        fields["response_format"] = structure
    sampling = sampling_of(fields, given["max_tokens"], (*_SAMPLING, "stop"))
    return _text_request(given, sampling, stream=given.get("stream", False))


def read_count_request(document: Mapping[str, Any]) -> TextRequest:
    """The request in the body of `POST /v1/messages/count_tokens`, as one that generates a single token."""
    given = validate_fields(document, _COUNT_RULES, ("model", "messages"), _UNSUPPORTED)
    return _text_request(given, {"max_tokens": 1}, stream=False)


def _text_request(given: Mapping[str, Any], sampling: Mapping[str, Any], *, stream: bool) -> TextRequest:
    ignored = ["`context_management`"] if given.get("context_management") else []
    messages = _messages(given["messages"], ignored)
    if not messages:
        raise ApiError("messages: at least one message is required", param="messages")
    system = _system(given.get("system"))
    if system:
        messages.insert(0, {"role": "system", "content": system})
    tools = _tool_options(given, ignored)
    conversation = {"messages": check_messages(messages, "messages"), **tools, **_reasoning(given)}
    if messages[-1]["role"] == "assistant":  # Anthropic: the answer continues from its content
        conversation.update(continue_final_message=True, add_generation_prompt=False)
    return TextRequest(
        model=given["model"],
        prompts=(to_json(conversation),),
        is_chat=True,
        sampling=sampling,
        stream=stream,
        include_usage=stream,
        ignored=tuple(ignored),
    )


# -- messages -----------------------------------------------------------------------------------------------------


def _system(given: object) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, list):
        raise ApiError("system: must be a string or an array of text blocks", param="system")
    return "\n".join(_text(block, "system") for block in given)


def _text(block: object, where: str) -> str:
    if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise ApiError(f"{where}: must hold text blocks only", param=where)
    return str(block["text"])


def _messages(given: list[Any], ignored: list[str]) -> list[dict[str, Any]]:
    """The messages of the chat; what is left out is added to *ignored*."""
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(given):
        where = f"messages.{number}"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            raise ApiError(f"{where}.role: must be user or assistant, not {role!r}", param=f"{where}.role")
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            raise ApiError(f"{where}.content: must be a string or an array of blocks", param=f"{where}.content")
        hosted = [str(block.get("type")) for block in content if _is_hosted(block)]
        ignored += [f"content blocks of type '{kind}'" for kind in hosted]
        blocks = [(block, f"{where}.content.{index}") for index, block in enumerate(content) if not _is_hosted(block)]
        messages += [_assistant_message(blocks)] if role == "assistant" else _user_messages(role, blocks)
    return messages


def _is_hosted(block: Mapping[str, Any]) -> bool:
    """Whether a block is of a tool that Anthropic's service runs itself."""
    kind = str(block.get("type"))
    return kind == _HOSTED_BLOCKS or (kind.endswith(_RESULTS) and kind != _RESULT)


def _assistant_message(blocks: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    texts, calls, thoughts = [], [], []
    for block, where in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(_string(block, "text", where))
        elif kind == "tool_use":
            function = {"name": _string(block, "name", where), "arguments": to_json(block.get("input") or {})}
            calls.append({"id": _string(block, "id", where), "type": "function", "function": function})
        elif kind == "thinking":
            thoughts.append(_string(block, "thinking", where))
        elif kind != "redacted_thinking":  # readable for Anthropic's models only
            raise _unsupported_block(kind, where, "text, tool_use and thinking")
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user_messages(role: str, blocks: list[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """The messages that one message of the user becomes: each tool's result is a separate one."""
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for block, where in blocks:
        if block.get("type") != _RESULT:
            parts.append(_part(block, where))
            continue
        content = block.get("content") or ""
        if isinstance(content, list):
            content = [_part(part, f"{where}.content") for part in content]
        elif not isinstance(content, str):
            raise ApiError(f"{where}.content: must be a string or an array of blocks", param=f"{where}.content")
        messages.append({"role": "tool", "tool_call_id": _string(block, "tool_use_id", where), "content": content})
    return [*messages, {"role": role, "content": parts}] if parts or not messages else messages


def _part(block: object, where: str) -> dict[str, Any]:
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(block, dict) and kind == "text":
        return {"type": "text", "text": _string(block, "text", where)}
    source = block.get("source") if isinstance(block, dict) else None
    if isinstance(source, dict) and kind == "image":
        if source.get("type") == "url":
            return {"type": "image_url", "image_url": {"url": _string(source, "url", where)}}
        if source.get("type") == "base64":
            media, data = _string(source, "media_type", where), _string(source, "data", where)
            return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}}
    if isinstance(source, dict) and kind == "document" and source.get("type") == "text":
        return {"type": "text", "text": _string(source, "data", where)}
    raise _unsupported_block(kind, where, "text, image with a source of type base64 or url, and tool_result")


def _unsupported_block(kind: object, where: str, supported: str) -> ApiError:
    return ApiError(f"{where}.type: {kind!r} is not supported here; supported are {supported}", param=f"{where}.type")


def _string(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise ApiError(f"{where}.{name}: must be a string", param=f"{where}.{name}")
    return value


# -- tools, reasoning and structure -------------------------------------------------------------------------------


def _tool_options(given: Mapping[str, Any], ignored: list[str]) -> dict[str, Any]:
    """The tools, and which of them is to be called; types of tools that are left out are added to *ignored*."""
    options: dict[str, Any] = {}
    hosted: dict[object, str] = {}
    tools = []
    for number, tool in enumerate(given.get("tools", ())):
        if not isinstance(tool, dict):
            raise ApiError(f"tools.{number}: must be an object", param=f"tools.{number}")
        kind = tool.get("type") or _CUSTOM
        if kind == _CUSTOM:
            tools.append(_tool(tool, f"tools.{number}"))
        else:
            hosted[tool.get("name")] = str(kind)
    ignored += [f"tools of type '{kind}'" for kind in hosted.values()]
    if tools:
        options["tools"] = tools
    choice = given.get("tool_choice")
    if choice is None:
        return options
    kind = choice.get("type")
    if kind == "tool":
        function = {"name": _string(choice, "name", "tool_choice")}
        if function["name"] in hosted:
            raise ApiError(
                f"tool_choice.name: the tool '{function['name']}' is of type '{hosted[function['name']]}', which only "
                "Anthropic's own service knows; models here can call the client's own tools",
                param="tool_choice.name",
            )
        options["tool_choice"] = {"type": "function", "function": function}
    elif kind in {"auto", "any", "none"}:
        options["tool_choice"] = "required" if kind == "any" else kind
    else:
        raise ApiError(f"tool_choice.type: must be auto, any, tool or none, not {kind!r}", param="tool_choice.type")
    if choice.get("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    return options


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(tool.get("input_schema"), dict):
        raise ApiError(f"{where}.input_schema: must be an object", param=f"{where}.input_schema")
    function = {"name": _string(tool, "name", where), "parameters": tool["input_schema"]}
    members = ("description", "strict")
    return {"type": "function", "function": {**function, **{name: tool[name] for name in members if name in tool}}}


def _reasoning(given: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    thinking = given.get("thinking")
    if thinking is not None:
        # The name that chat templates of reasoning models have for it.
        options["chat_template_kwargs"] = {"enable_thinking": thinking.get("type") != "disabled"}
    effort = (given.get("output_config") or {}).get("effort")
    if effort is not None:
        options["reasoning_effort"] = effort
    return options


def _structure(output_config: Mapping[str, Any]) -> dict[str, Any] | None:
    """`output_config.format` as `response_format` of chats; None for free text."""
    given = output_config.get("format")
    if given is None:
        return None
    schema = given.get("schema") if isinstance(given, dict) and given.get("type") == "json_schema" else None
    if not isinstance(schema, dict):
        raise ApiError(
            'output_config.format: must be {"type": "json_schema", "schema": {...}}', param="output_config.format"
        )
    return {"type": "json_schema", "json_schema": {"schema": schema}}
