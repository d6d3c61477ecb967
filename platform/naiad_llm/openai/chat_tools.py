"""Tools of a chat, checked before a model gets them: functions, the choice among them, and calls in the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from naiad_llm.openai.errors import ApiError

_FUNCTION, _CUSTOM = "function", "custom"
_CHOICES = ("auto", "none", "required")
_CHOICE_FORMS = (
    '`tool_choice` must be auto, none, required, {"type": "function", "function": {"name": ...}} or {"type": '
    '"allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}'
)


def tool_options(given: Mapping[str, Any], ignored: list[str]) -> dict[str, Any]:
    """The members `tools` and `tool_choice` of a conversation; types of tools that are left out are added to *ignored*.

    Raises:
        ApiError: If one of them is invalid.
    """
    options: dict[str, Any] = {}
    tools = [_tool(tool, f"tools[{number}]", ignored) for number, tool in enumerate(given.get("tools", ()))]
    functions = [tool for tool in tools if tool is not None]
    choice = given.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        functions, choice = _allowed(functions, choice)
    if choice is not None:
        options["tool_choice"] = _choice(choice, [tool["function"]["name"] for tool in functions])
    if functions:
        options["tools"] = functions
    return options


def _tool(tool: object, where: str, ignored: list[str]) -> dict[str, Any] | None:
    kind = tool.get("type", _FUNCTION) if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(kind, str):
        raise ApiError(f"`{where}` must be an object with a `type`", param=where, code="invalid_type")
    if kind == _CUSTOM:
        raise ApiError(
            f"`{where}.type` 'custom' is not supported in chats: use a function with one string, or /v1/responses",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    if kind != _FUNCTION:
        ignored.append(f"tools of type '{kind}'")
        return None
    function = tool.get("function")
    if not isinstance(function, dict):
        raise ApiError(f"`{where}.function` must be an object", param=f"{where}.function", code="invalid_type")
    _name(function, f"{where}.function")
    if not isinstance(function.get("parameters") or {}, dict):
        param = f"{where}.function.parameters"
        raise ApiError(f"`{param}` must be an object", param=param, code="invalid_type")
    return {**tool, "type": _FUNCTION}


def _allowed(functions: list[dict[str, Any]], choice: Mapping[str, Any]) -> tuple[list[dict[str, Any]], object]:
    """The functions that `allowed_tools` permits, and the choice among them."""
    allowed = choice.get("allowed_tools")
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(allowed, dict) or not isinstance(tools, list):
        raise ApiError(_CHOICE_FORMS, param="tool_choice")
    named = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = {function.get("name") for function in named if isinstance(function, dict)}
    return [tool for tool in functions if tool["function"]["name"] in names], allowed.get("mode", "auto")


def _choice(choice: object, names: list[str]) -> object:
    if isinstance(choice, str) and choice in _CHOICES:
        if choice == "required" and not names:
            raise ApiError("`tool_choice` requires a call, but `tools` has no function", param="tool_choice")
        return choice
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == _FUNCTION else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ApiError(_CHOICE_FORMS, param="tool_choice")
    if function["name"] not in names:
        raise ApiError(f"Tool '{function['name']}' has not been passed in `tools`.", param="tool_choice")
    return {"type": _FUNCTION, "function": {"name": function["name"]}}


def checked_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """The tool calls of a message of the assistant: each has a type and arguments that are JSON.

    Raises:
        ApiError: If one is invalid.
    """
    if not isinstance(calls, list):
        raise ApiError(f"`{where}` must be an array", param=where, code="invalid_type")
    return [_call(call, f"{where}[{number}]") for number, call in enumerate(calls)]


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise ApiError(f"`{where}` must be an object with a `function`", param=where, code="invalid_type")
    name = _name(function, f"{where}.function")
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


def _name(function: Mapping[str, Any], where: str) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ApiError(f"`{where}.name` must be a string", param=f"{where}.name", code="invalid_type")
    return name
