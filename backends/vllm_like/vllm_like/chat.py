"""Conversations as of OpenAI's API: what may be asked, and answers that have to be calls of tools."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

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
    """The conversation of the input `messages`: a list of messages, or an object with such a list and more.

    Raises:
        CallerError: If it is neither.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise CallerError(f"'messages' is no JSON: {error}") from None
    if isinstance(given, list):
        given = {"messages": given}
    if not isinstance(given, dict):
        raise CallerError("'messages' must be a list of messages, or an object with one")
    try:
        keys.refuse_unknown(given, _KEYS, "'messages'")
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
class ForcedCall:
    """A call that the answer has to be.

    Attributes:
        conversation: With the tools told of in its system message: engines take a schema or tools, not both.
        schema: Of what the engine is to write.
        name: Of the tool; "" where there are several to choose from, whose name is then written, too.
    """

    conversation: Dict[str, Any]
    schema: Dict[str, Any]
    name: str

    def writer(self) -> ToolCallWriter:
        """What makes messages of the text of one choice."""
        return ToolCallWriter(self.name)


def forced_call(conversation: Dict[str, Any]) -> Optional[ForcedCall]:
    """The call that `tool_choice` demands, None if it demands none.

    Raises:
        CallerError: If it demands a tool that there is not.
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
        raise CallerError("'tool_choice' demands a call, but there are no 'tools'")
    if len(tools) == 1:
        return ForcedCall(_told(conversation, tools), _schema(tools[0]), tools[0]["name"])
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["name"]}, "arguments": _schema(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return ForcedCall(_told(conversation, tools), {"anyOf": calls}, "")


def _functions(tools: Any) -> List[Dict[str, Any]]:
    if tools is None:
        return []
    listed = tools if isinstance(tools, list) else [None]
    functions = [tool.get("function") if isinstance(tool, dict) else None for tool in listed]
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in functions):
        raise CallerError("'tools' must be a list of objects with a 'function', which has a 'name'")
    return functions  # type: ignore[return-value]


def _schema(tool: Dict[str, Any]) -> Dict[str, Any]:
    return tool.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def _told(conversation: Dict[str, Any], tools: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The conversation without tools, but with a system message that describes them."""
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
    """Makes the messages of a call out of the text of one choice."""

    name: str
    _text: str = ""
    _begun: bool = False
    _id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def turn(self, delta: Delta) -> None:
        """Put the text of *delta* into its message instead."""
        if self.name:
            arguments, delta.text = delta.text, ""
            if arguments or not self._begun:
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
        except (ValueError, KeyError, TypeError):  # cut short by the number of tokens
            delta.text = self._text

    def _message(self, name: str, arguments: str) -> Dict[str, Any]:
        call: Dict[str, Any] = {"index": 0, "function": {"arguments": arguments}}
        if not self._begun:
            self._begun = True
            call = {"index": 0, "id": self._id, "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"tool_calls": [call]}


def merge(whole: Dict[str, Any], part: Dict[str, Any]) -> None:
    """Let *whole*, a message or what one has grown by, grow by *part*; calls keep their `index`."""
    for key, value in part.items():
        if key == "tool_calls":
            calls = whole.setdefault("tool_calls", [])
            for call in value:
                _merge_call(calls, call)
        elif isinstance(value, str) and key != "role":
            whole[key] = (whole.get(key) or "") + value
        elif value is not None or key not in whole:
            whole[key] = value


def _merge_call(calls: List[Dict[str, Any]], part: Dict[str, Any]) -> None:
    place = part.get("index", 0)
    found = [call for call in calls if call["index"] == place]
    if not found:
        calls.append({"index": place, **part, "function": dict(part.get("function") or {})})
        return
    call, function = found[0], part.get("function") or {}
    call.update({key: part[key] for key in ("id", "type") if part.get(key)})
    for key in ("name", "arguments"):
        if function.get(key):
            call["function"][key] = (call["function"].get(key) or "") + function[key]


def finished(message: Dict[str, Any]) -> Dict[str, Any]:
    """A message that is whole: its calls have places, and need no numbers any more."""
    if "tool_calls" not in message:
        return message
    calls = sorted(message["tool_calls"], key=lambda call: call["index"])
    return {**message, "tool_calls": [{"type": "function", **keys.without(call, ("index",))} for call in calls]}
