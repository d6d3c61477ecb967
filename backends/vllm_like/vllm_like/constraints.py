"""What an answer must be: calls of tools, text in a format, or either.

`tool_choice` may demand a call; it takes precedence over a format, as in vLLM's server. Where the model may call a tool
or not, a format binds its text only. An engine that takes grammars gets one for all of this, in which calls have the
form of the chat template. Other engines get a JSON schema for calls that are demanded, and no format while the model
may call a tool: it would make calls impossible. For a template that does not describe tools, a system message does.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from naiad_stub.template_rules import CallSyntax, TemplateRules

from vllm_like import chat, keys
from vllm_like.engines.base import CallerError, Delta, Engine
from vllm_like.stops import overlap

JSON_CALLS = CallSyntax('[{"name": "', '", "arguments": ', '}, {"name": "', "}]")
"""A list of calls as `json.dumps` writes it, for templates whose own form is not known."""
_TOOL_KEYS = ("messages", "tools", "tool_choice", "parallel_tool_calls")
_STRUCTURE = "structured_outputs"
_IN_GRAMMARS = ("json", "json_object", "choice", "regex")  # kinds of structures that can be a part of a larger grammar
REASONING_TAGS = ("think", "thinking", "thought", "reasoning", "seed:think")
_OPENING = re.compile(rf"\s*<(?P<tag>{'|'.join(REASONING_TAGS)})>")


@dataclass(frozen=True)
class Constraint:
    """What an answer must be."""

    functions: Sequence[Dict[str, Any]] = ()  # the functions that may be called
    # The format of text that is not a call, as `structured_outputs`; None if there must be a call.
    structure: Optional[Mapping[str, Any]] = None
    takes_several: bool = False  # whether there may be several calls
    form: CallSyntax = JSON_CALLS  # how calls are written

    def schema(self) -> Dict[str, Any]:
        """The JSON schema of calls in the form `JSON_CALLS`."""
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": parameters_of(function)},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for function in self.functions
        ]
        limit = {} if self.takes_several else {"maxItems": 1}
        return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **limit}


def parameters_of(function: Mapping[str, Any]) -> Dict[str, Any]:
    """The JSON schema of a function's arguments."""
    return function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


class ConstraintRules:
    """Makes the constraints of the conversations with one model."""

    def __init__(self, template: TemplateRules, engine: Engine) -> None:
        self.template = template  # the rules of its chat template
        self._engine = engine

    @cached_property
    def _form(self) -> Optional[CallSyntax]:
        """How the chat template writes calls; None if that is unknown, or not plain text."""
        form = self.template.call_form if self._engine.takes_grammars else None
        return form if form is not None and self._engine.is_plain_text("".join(form)) else None

    def apply(
        self, conversation: Dict[str, Any], parameters: Dict[str, Any]
    ) -> Tuple[Dict[str, Any], Optional[Constraint]]:
        """The conversation as the model gets it, and the constraint of its answer; None where the engine needs none.

        The structure in the sampling *parameters* is changed to the one that the engine must enforce by itself.
        """
        demanded = _demanded_functions(conversation)
        if demanded is not None:
            conversation, constraint = self._demand(conversation, demanded)
            parameters.pop(_STRUCTURE, None)
            if not self._engine.takes_grammars:
                parameters[_STRUCTURE] = {"json": constraint.schema()}
            return self.template.adapted(conversation), constraint
        conversation = self.template.adapted(conversation)
        structure = parameters.get(_STRUCTURE)
        if structure is None:
            return conversation, None
        tools = conversation.get("tools") if conversation.get("tool_choice") != "none" else None
        in_grammar = self._engine.takes_grammars and any(structure.get(kind) is not None for kind in _IN_GRAMMARS)
        if tools and not self.template.describes_tools:  # a model that is not told of tools calls none
            tools, conversation = None, keys.without(conversation, _TOOL_KEYS[1:])
        if not tools:
            return conversation, Constraint(structure=structure) if in_grammar else None
        if not in_grammar or self._form is None or chat.take_images(conversation)[1]:
            del parameters[_STRUCTURE]
            return conversation, None
        functions = [tool["function"] for tool in tools]
        several = conversation.get("parallel_tool_calls", True) and bool(self._form.between)
        return conversation, Constraint(functions, structure, several, self._form)

    def _demand(
        self, conversation: Dict[str, Any], functions: List[Dict[str, Any]]
    ) -> Tuple[Dict[str, Any], Constraint]:
        describes = self.template.describes_tools
        form = self._form or JSON_CALLS
        is_named = isinstance(conversation.get("tool_choice"), dict)
        several = not is_named and conversation.get("parallel_tool_calls", describes) and bool(form.between)
        if describes:
            told = keys.without(conversation, ("tool_choice",))
        else:
            told = _with_tools_in_prompt(conversation, functions)
        return told, Constraint(functions, None, several, form)


def _demanded_functions(conversation: Mapping[str, Any]) -> Optional[List[Dict[str, Any]]]:
    """The functions of which one must be called; None if `tool_choice` demands no call."""
    choice = conversation.get("tool_choice", "auto")
    if isinstance(choice, str) and choice in {"auto", "none"}:
        return None
    functions = [tool["function"] for tool in conversation.get("tools") or []]
    if isinstance(choice, dict):
        function = choice.get("function")
        wanted = function.get("name") if isinstance(function, dict) else None
        functions = [function for function in functions if function["name"] == wanted]
        if not functions:
            raise CallerError(f"Tool '{wanted}' has not been passed in `tools`.")
    elif choice != "required":
        raise CallerError("'tool_choice' must be auto, none, required or the name of a function")
    if not functions:
        raise CallerError("'tool_choice' requires a call, but 'tools' is empty")
    return functions


def _with_tools_in_prompt(conversation: Dict[str, Any], functions: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The conversation without `tools`, and with a system message that describes them."""
    form = 'a JSON list of calls, each {"name": ..., "arguments": {...}}'
    text = f"Answer with {form}. These functions can be called:\n" + "\n".join(map(json.dumps, functions))
    messages = list(conversation["messages"])
    if messages[0]["role"] == "system" and isinstance(messages[0].get("content"), str):
        messages[0] = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
    else:
        messages.insert(0, {"role": "system", "content": text})
    return {"messages": messages, **keys.without(conversation, _TOOL_KEYS)}


class ConstrainedWriter:
    """Converts the generated text of one choice into deltas of reasoning, content and tool calls."""

    def __init__(self, constraint: Constraint) -> None:
        form = constraint.form
        self._names = {json.dumps(function["name"])[1:-1]: function["name"] for function in constraint.functions}
        self._heads = [form.begin + name + form.middle for name in self._names]
        names = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
        if form is JSON_CALLS:  # engines other than llama.cpp choose the white space
            head = rf'\{{\s*"name"\s*:\s*"(?P<name>{names})"\s*,\s*"arguments"\s*:\s*(?=\S)'
        else:
            starts = "|".join(map(re.escape, filter(None, (form.between, form.begin))))
            head = rf"(?:{starts})(?P<name>{names}){re.escape(form.middle)}"
        self._head = re.compile(head)
        self._may_answer = constraint.structure is not None
        self._text = ""  # not converted yet
        self._has_begun = False  # whether it is known if there is reasoning
        self._closing = ""  # the tag that ends the reasoning, while there is some
        self._is_answer = False
        self._calls = 0
        self._value: Optional[_ValueScanner] = None  # that of the arguments which are being written

    def convert(self, delta: Delta) -> None:
        """Move the text of *delta* to where it belongs."""
        self._text += delta.text
        delta.text = ""
        message = keys.without(delta.message or {}, ("content",))  # reasoning that the engine has found stays
        is_last = delta.finish_reason is not None
        reasoning = self._take_reasoning(is_last=is_last)
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._has_begun and not self._closing:
            self._is_answer = self._is_answer or self._is_no_call(is_last=is_last)
            calls = [] if self._is_answer else self._read_calls()
            if calls:
                message["tool_calls"] = calls
            if self._is_answer:
                delta.text, self._text = self._text, ""
        delta.message = message or None
        if delta.finish_reason == "stop" and self._calls:
            delta.finish_reason = "tool_calls"

    def _take_reasoning(self, *, is_last: bool) -> str:
        """The reasoning at the start of the text, which is removed from it."""
        if not self._has_begun:
            found = _OPENING.match(self._text)
            start = self._text.lstrip()
            if found is None and not is_last and any(f"<{tag}>".startswith(start) for tag in REASONING_TAGS):
                return ""
            self._has_begun = True
            if found is not None:
                self._closing = f"</{found['tag']}>"
                self._text = self._text[found.end() :]
        if not self._closing:
            return ""
        reasoning, tag, rest = self._text.partition(self._closing)
        if tag:
            self._closing, self._text = "", rest
            return reasoning
        held = 0 if is_last else overlap(reasoning, self._closing)
        self._text = reasoning[len(reasoning) - held :]
        return reasoning[: len(reasoning) - held]

    def _is_no_call(self, *, is_last: bool) -> bool:
        """Whether the text, which no call precedes, cannot be the start of one."""
        if not self._may_answer or self._calls:
            return False
        self._text = self._text.lstrip()
        return not any(self._text.startswith(head) for head in self._heads) and (
            is_last or not any(head.startswith(self._text) for head in self._heads)
        )

    def _read_calls(self) -> List[Dict[str, Any]]:
        calls: List[Dict[str, Any]] = []
        while True:
            if self._value is None:
                found = self._head.search(self._text)
                if found is None:
                    return calls
                self._text = self._text[found.end() :]
                self._value = _ValueScanner()
                calls.append(self._begin(self._names[found["name"]]))
            count = self._value.scan(self._text)
            part, self._text = self._text[:count], self._text[count:]
            if part:
                calls.append({"index": self._calls - 1, "function": {"arguments": part}})
            if not self._value.is_over:
                return calls
            self._value = None

    def _begin(self, name: str) -> Dict[str, Any]:
        self._calls += 1
        function = {"name": name, "arguments": ""}
        call_id = f"call_{uuid.uuid4().hex[:24]}"
        return {"index": self._calls - 1, "id": call_id, "type": "function", "function": function}


class _ValueScanner:
    """Finds the end of a JSON value whose text arrives in parts."""

    def __init__(self) -> None:
        self.is_over = False  # whether the end was found
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
