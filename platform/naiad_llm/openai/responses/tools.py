"""The tools of a request to `/v1/responses` as functions of a chat, and the calls of these in the tools' own form.

A model calls functions. Clients also declare tools in namespaces, and custom tools, whose argument is one text; both
become functions here, and their calls get their form back. Tools that OpenAI's service runs itself are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from naiad_llm.openai.custom_tools import custom_function
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.requested_tools import name_of

FUNCTION, CUSTOM, NAMESPACE = "function", "custom", "namespace"
_MEMBERS = ("name", "description", "parameters", "strict")
_CHOICE_FORMS = (
    '`tool_choice` must be auto, none, required, {"type": "function", "name": ...}, {"type": "custom", "name": ...} or '
    '{"type": "allowed_tools", "mode": ..., "tools": [...]}'
)


class CallForm(NamedTuple):
    """How a call of one function of the chat is written; the namespace is "" for none."""

    name: str
    namespace: str = ""
    is_custom: bool = False


@dataclass(slots=True)
class Tools:
    """The tools of a request."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    forms: dict[str, CallForm] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def read_tools(given: Sequence[object]) -> Tools:
    """The tools in the field `tools`."""
    tools = Tools()
    for number, tool in enumerate(given):
        _add(tools, tool, f"tools[{number}]", "")
    return tools


def _add(tools: Tools, tool: object, where: str, namespace: str) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(kind, str):
        raise ApiError(f"`{where}` must be an object with a `type`", param=where, code="invalid_type")
    if kind == NAMESPACE and not namespace:
        name = name_of(tool, where)
        inner = tool.get("tools")
        if not isinstance(inner, list):
            raise ApiError(f"`{where}.tools` must be an array", param=f"{where}.tools", code="invalid_type")
        for number, one in enumerate(inner):
            _add(tools, one, f"{where}.tools[{number}]", name)
        return
    if kind not in {FUNCTION, CUSTOM}:
        tools.ignored.append(kind)
        return
    name = name_of(tool, where)
    function = {member: tool[member] for member in _MEMBERS if tool.get(member) is not None}
    if not isinstance(function.get("parameters", {}), dict):
        raise ApiError(f"`{where}.parameters` must be an object", param=f"{where}.parameters", code="invalid_type")
    if kind == CUSTOM:
        form = tool.get("format")
        grammar = form if isinstance(form, dict) and form.get("type") == "grammar" else None
        function = custom_function(tool.get("description"), grammar)
    function["name"] = function_name(name, namespace)
    if namespace or kind == CUSTOM:
        tools.forms[function["name"]] = CallForm(name, namespace, is_custom=kind == CUSTOM)
    tools.functions.append({"type": FUNCTION, "function": function})


def function_name(name: str, namespace: object) -> str:
    """The name of the function for a tool; *namespace* is empty for a tool in none."""
    return f"{namespace}__{name}" if namespace else name


def apply_choice(tools: Tools, choice: object) -> object:
    """`tool_choice` in the form of chats. With `allowed_tools`, the other tools are removed from *tools*."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("tools")
        if not isinstance(allowed, list) or not all(isinstance(tool, dict) for tool in allowed):
            raise ApiError("`tool_choice.tools` must be an array of objects", param="tool_choice")
        names = {function_name(str(tool.get("name")), tool.get("namespace")) for tool in allowed}
        tools.functions = [tool for tool in tools.functions if tool["function"]["name"] in names]
        choice = choice.get("mode", "auto")
    if isinstance(choice, str) and choice in {"auto", "none", "required"}:
        return choice
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and kind in {FUNCTION, CUSTOM} and isinstance(choice.get("name"), str):
        name = function_name(choice["name"], choice.get("namespace"))
        return {"type": FUNCTION, "function": {"name": name}}
    if isinstance(kind, str) and kind in tools.ignored:
        raise ApiError(
            f"`tool_choice` requires the tool {kind!r}, which only OpenAI's own service runs; models here can call the "
            "client's own tools",
            param="tool_choice",
            code="unsupported_parameter",
        )
    raise ApiError(_CHOICE_FORMS, param="tool_choice")
