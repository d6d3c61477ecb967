"""Conversations in the form of OpenAI's API: validation, images, and messages assembled from deltas."""

from __future__ import annotations

import base64
import json
from typing import Any, Dict, List, Optional, Tuple

from vllm_like import json_text, keys
from vllm_like.engines.base import CallerError

_KEYS = keys.words("""
messages tools tool_choice parallel_tool_calls chat_template_kwargs add_generation_prompt continue_final_message
reasoning_effort
""")


def parse(text: str) -> Dict[str, Any]:
    """The conversation in the input `messages`: a list of messages, or an object with `messages` and other keys."""
    given = json_text.parse(text, "'messages'")
    if isinstance(given, list):
        given = {"messages": given}
    if not isinstance(given, dict):
        raise CallerError("'messages' must be a list of messages, or an object with the key 'messages'")
    json_text.reject_unknown(given, _KEYS, "'messages'")
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CallerError("'messages' must hold at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise CallerError(f"message {number} must be an object with a 'role'")
    conversation = {key: value for key, value in given.items() if value is not None}
    conversation["messages"] = [_with_checked_calls(message, f"message {n}") for n, message in enumerate(messages)]
    _check_tools(conversation.get("tools", []))
    return conversation


def _check_tools(tools: Any) -> None:
    functions = [tool.get("function") if isinstance(tool, dict) else None for tool in _list(tools, "'tools'")]
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) and one["name"] for one in functions):
        raise CallerError("'tools' must be a list of objects with a 'function', which has a 'name'")
    if not all(isinstance(one.get("parameters") or {}, dict) for one in functions):
        raise CallerError("the 'parameters' of a function in 'tools' must be a JSON schema, which is an object")


def _list(value: Any, what: str) -> List[Any]:
    if not isinstance(value, list):
        raise CallerError(f"{what} must be a list")
    return value


def _with_checked_calls(message: Dict[str, Any], what: str) -> Dict[str, Any]:
    """The message with its tool calls as engines take them: with a type, and with arguments that are JSON."""
    calls = message.get("tool_calls")
    if calls is None:
        return message
    made = [
        _checked_call(call, f"call {n} of {what}") for n, call in enumerate(_list(calls, f"'tool_calls' of {what}"))
    ]
    if made:
        return {**message, "tool_calls": made}
    return {"content": "", **keys.without(message, ("tool_calls",))}  # engines want one of both


def _checked_call(call: Any, what: str) -> Dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise CallerError(f"{what} must be an object with a 'function', which has a 'name'")
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = "{}"  # clients write a call without arguments so
    elif isinstance(arguments, str):
        try:
            json.loads(arguments)
        except ValueError as error:
            raise CallerError(f"the arguments of {what}, '{function['name']}', are not valid JSON: {error}") from None
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def take_images(conversation: Dict[str, Any]) -> Tuple[Dict[str, Any], List[bytes]]:
    """The conversation with `{"type": "image"}` in place of each image, as chat templates expect, and the images."""
    images: List[bytes] = []
    messages = []
    for message in conversation["messages"]:
        content = message.get("content")
        parts = [_without_image(part, images) for part in content] if isinstance(content, list) else content
        messages.append({**message, "content": parts} if parts is not content else message)
    return ({**conversation, "messages": messages} if images else conversation), images


def _without_image(part: Any, images: List[bytes]) -> Any:
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return part
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    head, _, data = str(url).partition(",")
    try:
        if not (head.startswith("data:image/") and head.endswith(";base64")):
            raise ValueError
        images.append(base64.b64decode(data, validate=True))
    except ValueError:
        raise CallerError("an image in 'messages' must be a data URL in base64: data:image/png;base64,...") from None
    return {"type": "image"}


def merge_message(message: Dict[str, Any], delta: Dict[str, Any]) -> None:
    """Add *delta* to *message*, a whole message or another delta; tool calls keep their `index`."""
    for key, value in delta.items():
        if key == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for call in value:
                _merge_call(calls, call)
        elif isinstance(value, str) and key != "role":
            message[key] = (message.get(key) or "") + value
        elif value is not None or key not in message:
            message[key] = value


def _merge_call(calls: List[Dict[str, Any]], delta: Dict[str, Any]) -> None:
    index = delta.get("index", 0)
    found = [call for call in calls if call["index"] == index]
    if not found:
        calls.append({"index": index, **delta, "function": dict(delta.get("function") or {})})
        return
    call, function = found[0], delta.get("function") or {}
    call.update({key: delta[key] for key in ("id", "type") if delta.get(key)})
    for key in ("name", "arguments"):
        if function.get(key):
            call["function"][key] = (call["function"].get(key) or "") + function[key]


def finish_message(message: Dict[str, Any]) -> Dict[str, Any]:
    """The message with its tool calls ordered by `index`, which is a member of streamed calls only."""
    if "tool_calls" not in message:
        return message
    calls = sorted(message["tool_calls"], key=lambda call: call["index"])
    return {**message, "tool_calls": [{"type": "function", **keys.without(call, ("index",))} for call in calls]}


def with_first_call(delta: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """A delta without tool calls after the first one; None if nothing is left of it."""
    calls = [call for call in delta["tool_calls"] if call.get("index", 0) == 0]
    rest = keys.without(delta, ("tool_calls",))
    return {**rest, "tool_calls": calls} if calls else rest or None
