"""Conversations in the form of OpenAI's API: validation, forced tool calls, and messages assembled from deltas."""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from vllm_like import keys
from vllm_like.engines.base import CallerError, Delta

_KEYS = (
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "reasoning_effort",
)


def parse(text: str) -> Dict[str, Any]:
    """The conversation in the input `messages`: a list of messages, or an object with `messages` and other keys.

    Raises:
        CallerError: If the conversation is invalid.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise CallerError(f"'messages' is not valid JSON: {error}") from None
    if isinstance(given, list):
        given = {"messages": given}
    if not isinstance(given, dict):
        raise CallerError("'messages' must be a list of messages, or an object with the key 'messages'")
    try:
        keys.reject_unknown(given, _KEYS, "'messages'")
    except ValueError as error:
        raise CallerError(str(error)) from None
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CallerError("'messages' must hold at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise CallerError(f"message {number} must be an object with a 'role'")
    return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True)
class ForcedToolCall:
    """A tool call that the response must be (`tool_choice` with a function or `required`).

    The engine is constrained by a JSON schema made of the functions' parameters, so that any model can do this.

    Attributes:
        conversation: The conversation, with the tools described in its system message instead of in `tools`: engines
            accept a schema or tools, not both.
        schema: JSON schema of the text to generate.
        name: Name of the tool; "" if there are several, then the generated text contains the name as well.
    """

    conversation: Dict[str, Any]
    schema: Dict[str, Any]
    name: str

    def writer(self) -> ToolCallWriter:
        """A converter for the text of one choice."""
        return ToolCallWriter(self.name)


def forced_tool_call(conversation: Dict[str, Any]) -> Optional[ForcedToolCall]:
    """The tool call that `tool_choice` demands; None if it demands none.

    Raises:
        CallerError: If `tool_choice` is invalid or names an unknown tool.
    """
    choice = conversation.get("tool_choice", "auto")
    if isinstance(choice, str) and choice in {"auto", "none"}:
        return None
    tools = _functions(conversation.get("tools"))
    if isinstance(choice, dict):
        wanted = choice.get("function", {}).get("name")
        tools = [tool for tool in tools if tool["name"] == wanted]
        if not tools:
            raise CallerError(f"Tool '{wanted}' has not been passed in `tools`.")
    elif choice != "required":
        raise CallerError("'tool_choice' must be auto, none, required or the name of a function")
    if not tools:
        raise CallerError("'tool_choice' requires a call, but 'tools' is empty")
    if len(tools) == 1:
        return ForcedToolCall(_with_tools_in_prompt(conversation, tools), _schema(tools[0]), tools[0]["name"])
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["name"]}, "arguments": _schema(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return ForcedToolCall(_with_tools_in_prompt(conversation, tools), {"anyOf": calls}, "")


def take_images(conversation: Dict[str, Any]) -> Tuple[Dict[str, Any], List[bytes]]:
    """The conversation with `{"type": "image"}` in place of each image, as chat templates expect, and the images.

    Raises:
        CallerError: If an image is not a data URL in base64.
    """
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


def _functions(tools: Any) -> List[Dict[str, Any]]:
    if tools is None:
        return []
    listed = tools if isinstance(tools, list) else [None]
    functions = [tool.get("function") if isinstance(tool, dict) else None for tool in listed]
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in functions):
        raise CallerError("'tools' must be a list of objects with a 'function', which has a 'name'")
    return functions  # type: ignore[return-value] - checked one line above


def _schema(tool: Dict[str, Any]) -> Dict[str, Any]:
    return tool.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def _with_tools_in_prompt(conversation: Dict[str, Any], tools: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The conversation without `tools`, and with a system message that describes them."""
    text = "Answer with a call of one of these functions, as JSON:\n" + "\n".join(map(json.dumps, tools))
    messages = list(conversation["messages"])
    if messages[0]["role"] == "system" and isinstance(messages[0].get("content"), str):
        messages[0] = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
    else:
        messages.insert(0, {"role": "system", "content": text})
    rest = keys.without(conversation, ("messages", "tools", "tool_choice", "parallel_tool_calls"))
    return {"messages": messages, **rest}


@dataclass
class ToolCallWriter:
    """Converts the generated text of one choice, which is JSON, into deltas of a tool call."""

    name: str
    _text: str = ""
    _has_begun: bool = False
    _id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def convert(self, delta: Delta) -> None:
        """Move the text of *delta* into its message."""
        if self.name:
            arguments, delta.text = delta.text, ""
            if arguments or not self._has_begun:
                delta.message = self._message(self.name, arguments)
        else:
            self._text += delta.text
            delta.text = ""
            if delta.finish_reason is not None:
                self._finish(delta)
        if delta.finish_reason == "stop":
            delta.finish_reason = "tool_calls"

    def _finish(self, delta: Delta) -> None:
        try:
            call = json.loads(self._text)
            delta.message = self._message(call["name"], json.dumps(call["arguments"]))
        except (ValueError, KeyError, TypeError):  # incomplete JSON: `max_tokens` was reached
            delta.text = self._text

    def _message(self, name: str, arguments: str) -> Dict[str, Any]:
        call: Dict[str, Any] = {"index": 0, "function": {"arguments": arguments}}
        if not self._has_begun:
            self._has_begun = True
            call = {"index": 0, "id": self._id, "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"tool_calls": [call]}


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
