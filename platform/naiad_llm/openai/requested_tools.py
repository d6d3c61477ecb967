"""Tools of a chat, checked before a model gets them: functions, the choice among them, and calls in the history.

Custom tools become functions with one string, and so do their calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from naiad_llm.openai.custom_tools import custom_arguments, custom_function
from naiad_llm.openai.errors import ApiError

_FUNCTION, _CUSTOM = "function", "custom"
_CHOICES = ("auto", "none", "required")
_CHOICE_FORMS = (
    '`tool_choice` must be auto, none, required, {"type": "function", "function": {"name": ...}}, {"type": "custom", '
    '"custom": {"name": ...}} or {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}'
)


@dataclass(frozen=True, slots=True)
class ChatTools:
    """The tools of a chat."""

    options: Mapping[str, Any]
    custom: frozenset[str]


def read_tools(given: Mapping[str, Any], ignored: list[str]) -> ChatTools:
    """The tools in the body of a chat; types of tools that are left out are added to *ignored*."""
    options: dict[str, Any] = {}
    given_tools = given.get("tools", ())
    tools = [_tool(tool, f"tools[{number}]", ignored) for number, tool in enumerate(given_tools)]
    functions = [tool for tool in tools if tool is not None]
    choice = given.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        functions, choice = _allowed(functions, choice)
    if choice is not None:
        options["tool_choice"] = _choice(choice, [tool["function"]["name"] for tool in functions])
    if functions:
        options["tools"] = functions
    return ChatTools(options, frozenset(_named(tool) for tool in given_tools if tool.get("type") == _CUSTOM))


def _named(tool: object) -> str:
    """The name of a function or of a custom tool, in a tool, a choice or a call; "" if it has none."""
    kind = tool.get("type", _FUNCTION) if isinstance(tool, dict) else None
    named = tool.get(kind) if isinstance(tool, dict) and kind in {_FUNCTION, _CUSTOM} else None
    name = named.get("name") if isinstance(named, dict) else None
    return name if isinstance(name, str) else ""


def _tool(tool: object, where: str, ignored: list[str]) -> dict[str, Any] | None:
    kind = tool.get("type", _FUNCTION) if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(kind, str):
        raise ApiError(f"`{where}` must be an object with a `type`", param=where, code="invalid_type")
    if kind == _CUSTOM:
        return _custom_tool(tool, where)
    if kind != _FUNCTION:
        ignored.append(f"tools of type '{kind}'")
        return None
    function = _object(tool, _FUNCTION, where)
    name_of(function, f"{where}.function")
    if not isinstance(function.get("parameters") or {}, dict):
        param = f"{where}.function.parameters"
        raise ApiError(f"`{param}` must be an object", param=param, code="invalid_type")
    return {**tool, "type": _FUNCTION}


def _custom_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    custom = _object(tool, _CUSTOM, where)
    name = name_of(custom, f"{where}.{_CUSTOM}")
    form = custom.get("format")
    grammar = form.get("grammar") if isinstance(form, dict) else None
    function = custom_function(custom.get("description"), grammar if isinstance(grammar, dict) else None)
    return {"type": _FUNCTION, "function": {"name": name, **function}}


def _allowed(functions: list[dict[str, Any]], choice: Mapping[str, Any]) -> tuple[list[dict[str, Any]], object]:
    allowed = choice.get("allowed_tools")
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(allowed, dict) or not isinstance(tools, list):
        raise ApiError(_CHOICE_FORMS, param="tool_choice")
    names = set(map(_named, tools))
    return [tool for tool in functions if tool["function"]["name"] in names], allowed.get("mode", "auto")


def _choice(choice: object, names: list[str]) -> object:
    if isinstance(choice, str) and choice in _CHOICES:
        if choice == "required" and not names:
            raise ApiError("`tool_choice` requires a call, but `tools` has no function", param="tool_choice")
        return choice
    name = _named(choice) if isinstance(choice, dict) and "type" in choice else ""
    if not name:
        raise ApiError(_CHOICE_FORMS, param="tool_choice")
    if name not in names:
        raise ApiError(f"Tool '{name}' has not been passed in `tools`.", param="tool_choice")
    return {"type": _FUNCTION, "function": {"name": name}}


def checked_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """The tool calls of a message of the assistant, checked: each has a type and arguments that are JSON."""
    if not isinstance(calls, list):
        raise ApiError(f"`{where}` must be an array", param=where, code="invalid_type")
    return [_call(call, f"{where}[{number}]") for number, call in enumerate(calls)]


def _call(call: object, where: str) -> dict[str, Any]:
    if isinstance(call, dict) and call.get("type") == _CUSTOM:
        return _custom_call(call, where)
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise ApiError(f"`{where}` must be an object with a `function`", param=where, code="invalid_type")
    name = name_of(function, f"{where}.function")
    param = f"{where}.function.arguments"
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = "{}"  # how clients write a call without arguments
    elif isinstance(arguments, str):
        try:
            orjson.loads(arguments)
        except orjson.JSONDecodeError as problem:
            raise ApiError(f"`{param}` of a call of '{name}' is not valid JSON: {problem}", param=param) from None
    elif not isinstance(arguments, dict):
        raise ApiError(f"`{param}` must be JSON in a string", param=param, code="invalid_type")
    return {**call, "type": _FUNCTION, "function": {**function, "arguments": arguments}}


def _custom_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    custom = _object(call, _CUSTOM, where)
    name = name_of(custom, f"{where}.{_CUSTOM}")
    text = custom.get("input", "")
    if not isinstance(text, str):
        param = f"{where}.{_CUSTOM}.input"
        raise ApiError(f"`{param}` must be a string", param=param, code="invalid_type")
    rest = {member: value for member, value in call.items() if member != _CUSTOM}
    return {**rest, "type": _FUNCTION, "function": {"name": name, "arguments": custom_arguments(text)}}


def _object(holder: Mapping[str, Any], member: str, where: str) -> dict[str, Any]:
    value = holder.get(member)
    if not isinstance(value, dict):
        raise ApiError(f"`{where}.{member}` must be an object", param=f"{where}.{member}", code="invalid_type")
    return value


def name_of(function: Mapping[str, Any], where: str) -> str:
    """The name of a function or of a tool, which must have one."""
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ApiError(f"`{where}.name` must be a string", param=f"{where}.name", code="invalid_type")
    return name
