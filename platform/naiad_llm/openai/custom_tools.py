"""Custom tools, whose argument is one text, as functions of a chat. OpenAI's chats and responses both declare them.

A model calls functions with JSON. A custom tool becomes a function with one string, and the string of a call becomes
the tool's input again, while it is generated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import orjson

_ARGUMENT = "input"
_HEAD = re.compile(rf'\s*\{{\s*"{_ARGUMENT}"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\\ud800-\udfff]|\\(?:["\\/bfnrt]|u(?![dD][89abAB])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}))*'
)  # the part of a JSON string that ends with a whole character: no escape is cut off, nor the second half of a pair


def custom_function(description: object, grammar: Mapping[str, Any] | None) -> dict[str, Any]:
    """A custom tool as a function with one text, without its name; a grammar for the text joins the description."""
    text = str(description or "")
    if grammar is not None:
        syntax, definition = grammar.get("syntax", ""), grammar.get("definition", "")
        text += f"\n\nThe input must match this {syntax} grammar:\n{definition}"
    parameters = {
        "type": "object",
        "properties": {_ARGUMENT: {"type": "string"}},
        "required": [_ARGUMENT],
        "additionalProperties": False,
    }
    return {"description": text.strip(), "parameters": parameters}


def custom_arguments(text: str) -> str:
    """The arguments of the function for a custom tool that is called with *text*."""
    return orjson.dumps({_ARGUMENT: text}).decode()


def custom_input(arguments: str) -> str:
    """The text in the arguments of a function for a custom tool; the part that is there of arguments that are cut."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        rest = arguments.partition(f'"{_ARGUMENT}"')[2]
        return _cut_string(rest.partition('"')[2])
    given = found.get(_ARGUMENT) if isinstance(found, dict) else None
    return given if isinstance(given, str) else arguments


def _cut_string(text: str) -> str:
    """The value of a JSON string whose end is missing."""
    for dropped in range(min(len(text), len("\\u1234")) + 1):  # an escape may be cut off too
        try:
            return str(json.loads(f'"{text[: len(text) - dropped]}"', strict=False))
        except ValueError:
            continue
    return ""


class CustomInput:
    """The text in the arguments of one call of a custom tool, as they are generated."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._rest = ""  # of the arguments, not converted yet
        self._sent = 0
        self._is_in_text = self._is_over = False

    def add(self, arguments: str) -> str:
        """The new text in further *arguments*, "" while there is none."""
        self._parts.append(arguments)
        if self._is_over:
            return ""
        self._rest += arguments
        if not self._is_in_text:
            head = _HEAD.match(self._rest)
            if head is None:
                return ""
            self._is_in_text = True
            self._rest = self._rest[head.end() :]
        found = _WHOLE.match(self._rest)
        end = found.end() if found is not None else 0
        text = str(json.loads(f'"{self._rest[:end]}"', strict=False))
        self._rest = self._rest[end:]
        self._is_over = self._rest.startswith('"')
        self._sent += len(text)
        return text

    def end(self) -> str:
        """The text that was not returned before: of arguments in another form, which are whole only now."""
        whole = custom_input("".join(self._parts)) if self._parts else ""
        rest, self._sent = whole[self._sent :], max(self._sent, len(whole))
        return rest


class CustomCalls:
    """Gives the calls of custom tools, by their *names*, in a chat's answer the form of these tools."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._inputs: dict[tuple[int, int], CustomInput] = {}

    def whole(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        if function.get("name") not in self._names:
            return call
        rest = {name: value for name, value in call.items() if name != "function"}
        text = custom_input(str(function.get("arguments") or ""))
        return {**rest, "type": "custom", "custom": {"name": function["name"], "input": text}}

    def streamed(self, choice: int, message: dict[str, Any] | None, *, is_last: bool) -> dict[str, Any] | None:
        """The new members of a choice's message (None for none), with calls in the form of their tools."""
        calls = (message or {}).get("tool_calls") or []
        made = [part for place, call in enumerate(calls) for part in self._part(choice, place, call)]
        if is_last:
            made += self._rests(choice)
        if not calls and not made:
            return message
        rest = {name: value for name, value in (message or {}).items() if name != "tool_calls"}
        return {**rest, "tool_calls": made} if made else rest or None

    def _part(self, choice: int, place: int, call: dict[str, Any]) -> list[dict[str, Any]]:
        """A part of a call; empty if it has no new text."""
        given = call.get("index")
        number = place if given is None else given
        function = call.get("function") or {}
        arguments = str(function.get("arguments") or "")
        if function.get("name") in self._names:
            reader = self._inputs[choice, number] = CustomInput()
            head = {name: value for name, value in call.items() if name != "function"}
            custom = {"name": function["name"], "input": reader.add(arguments)}
            return [{**head, "index": number, "type": "custom", "custom": custom}]
        known = self._inputs.get((choice, number))
        if known is None:
            return [call if given is not None else {**call, "index": number}]
        text = known.add(arguments)
        return [_more(number, text)] if text else []

    def _rests(self, choice: int) -> list[dict[str, Any]]:
        """What the calls of a choice have not returned yet."""
        texts = [(number, reader.end()) for (of, number), reader in self._inputs.items() if of == choice]
        return [_more(number, text) for number, text in texts if text]


def _more(number: int, text: str) -> dict[str, Any]:
    return {"index": number, "custom": {"input": text}}
