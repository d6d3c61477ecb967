"""Tool calls that an answer must have: `tool_choice` with `required` or the name of a function.

Where the engine enforces it, the model writes calls in the form of its chat template. Other engines are constrained by
a JSON schema made of the functions' parameters, and the JSON becomes calls here. Prompts have the template's own
description of the tools; for a template without one, a system message describes them.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from naiad_stub.template_rules import TemplateRules

from vllm_like import keys
from vllm_like.engines.base import CallerError, Delta

_CALL_HEAD = re.compile(r'\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')
_TOOL_KEYS = ("messages", "tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True)
class ForcedToolCalls:
    """The calls that an answer must have.

    Attributes:
        conversation: The conversation to generate the answer for.
        schema: JSON schema of the text to generate; None if the engine enforces the calls.
        name: Name of the only function, whose arguments the text is then; "" if the text is a list of calls.
    """

    conversation: Dict[str, Any]
    schema: Optional[Dict[str, Any]] = None
    name: str = ""

    def writer(self) -> Optional[ToolCallWriter]:
        """A converter for the text of one choice; None if the engine writes calls."""
        return None if self.schema is None else ToolCallWriter(self.name)


def forced_tool_calls(conversation: Dict[str, Any], template: TemplateRules) -> Optional[ForcedToolCalls]:
    """The calls that `tool_choice` demands; None if it demands none.

    Raises:
        CallerError: If `tool_choice` is invalid or names an unknown tool.
    """
    choice = conversation.get("tool_choice", "auto")
    if isinstance(choice, str) and choice in {"auto", "none"}:
        return None
    tools = conversation.get("tools") or []
    if isinstance(choice, dict):
        function = choice.get("function")
        wanted = function.get("name") if isinstance(function, dict) else None
        tools = [tool for tool in tools if tool["function"]["name"] == wanted]
        if not tools:
            raise CallerError(f"Tool '{wanted}' has not been passed in `tools`.")
    elif choice != "required":
        raise CallerError("'tool_choice' must be auto, none, required or the name of a function")
    if not tools:
        raise CallerError("'tool_choice' requires a call, but 'tools' is empty")
    if template.enforces_calls:
        # llama.cpp does not know the choice of one function among several, so it gets that one only.
        return ForcedToolCalls({**conversation, "tools": tools, "tool_choice": "required"})
    is_one = isinstance(choice, dict)
    functions = [tool["function"] for tool in tools]
    takes_several = not is_one and conversation.get("parallel_tool_calls", template.describes_tools)
    schema, name = _schema_of(functions, takes_several=takes_several)
    if template.describes_tools:
        return ForcedToolCalls(keys.without(conversation, ("tool_choice",)), schema, name)
    return ForcedToolCalls(_with_tools_in_prompt(conversation, functions, is_list=not name), schema, name)


def _schema_of(functions: List[Dict[str, Any]], *, takes_several: bool) -> Any:
    """The schema of the text, and the name of the function if the text is the arguments of one call."""
    if len(functions) == 1 and not takes_several:
        return _parameters(functions[0]), functions[0]["name"]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, "arguments": _parameters(function)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    limit = {} if takes_several else {"maxItems": 1}
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **limit}, ""


def _parameters(function: Dict[str, Any]) -> Dict[str, Any]:
    return function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def _with_tools_in_prompt(
    conversation: Dict[str, Any], functions: List[Dict[str, Any]], *, is_list: bool
) -> Dict[str, Any]:
    """The conversation without `tools`, and with a system message that describes them."""
    form = (
        'a JSON list of calls, each {"name": ..., "arguments": {...}}' if is_list else "the arguments of a call as JSON"
    )
    text = f"Answer with {form}. These functions can be called:\n" + "\n".join(map(json.dumps, functions))
    messages = list(conversation["messages"])
    if messages[0]["role"] == "system" and isinstance(messages[0].get("content"), str):
        messages[0] = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
    else:
        messages.insert(0, {"role": "system", "content": text})
    return {"messages": messages, **keys.without(conversation, _TOOL_KEYS)}


class ToolCallWriter:
    """Converts the generated text of one choice, which is JSON, into deltas of tool calls."""

    def __init__(self, name: str) -> None:
        """The text is the arguments of the function *name*, or a list of calls if that is empty."""
        self._name = name
        self._text = ""
        self._calls = 0
        self._value: Optional[_ValueScanner] = None  # that of the arguments which are being written

    def convert(self, delta: Delta) -> None:
        """Move the text of *delta* into its message."""
        text, delta.text = delta.text, ""
        calls = self._one_call(text) if self._name else self._several_calls(text)
        message = keys.without(delta.message or {}, ("content",))  # reasoning stays
        if calls:
            message["tool_calls"] = calls
        delta.message = message or None
        if delta.finish_reason == "stop" and self._calls:
            delta.finish_reason = "tool_calls"

    def _one_call(self, text: str) -> List[Dict[str, Any]]:
        if not text:
            return []
        return [self._more(text) if self._calls else self._begin(self._name, text)]

    def _several_calls(self, text: str) -> List[Dict[str, Any]]:
        self._text += text
        calls: List[Dict[str, Any]] = []
        while True:
            if self._value is None:
                found = _CALL_HEAD.search(self._text)
                if found is None:
                    return calls
                self._text = self._text[found.end() :]
                self._value = _ValueScanner()
                calls.append(self._begin(json.loads(found["name"]), ""))
            count = self._value.scan(self._text)
            part, self._text = self._text[:count], self._text[count:]
            if part:
                calls.append(self._more(part))
            if not self._value.is_over:
                return calls
            self._value = None

    def _begin(self, name: str, arguments: str) -> Dict[str, Any]:
        self._calls += 1
        function = {"name": name, "arguments": arguments}
        call_id = f"call_{uuid.uuid4().hex[:24]}"
        return {"index": self._calls - 1, "id": call_id, "type": "function", "function": function}

    def _more(self, arguments: str) -> Dict[str, Any]:
        return {"index": self._calls - 1, "function": {"arguments": arguments}}


class _ValueScanner:
    """Finds the end of a JSON value whose text arrives in parts.

    Attributes:
        is_over: Whether the end was found.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._is_in_string = self._is_escaped = False

    def scan(self, text: str) -> int:
        """How many characters of *text*, which continues the value, belong to it."""
        for place, character in enumerate(text):
            if self._is_in_string:
                self._is_in_string = self._is_escaped or character != '"'
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._is_in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]" or (character == "," and not self._depth):
                if self._depth:
                    self._depth -= 1
                else:  # the end of the object around the value
                    self.is_over = True
                    return place
                if not self._depth:
                    self.is_over = True
                    return place + 1
        return len(text)
