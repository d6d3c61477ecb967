"""How templates write calls: found by rendering some, for templates of several families."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from naiad_stub.template_rules import CallSyntax, TemplateRules

Calls = list[dict[str, Any]]
NAME, ARGUMENTS = '{"name": "', '", "arguments": '
TAG, TAGGED_END = f"<tool_call>\n{NAME}", "}\n</tool_call>"


def rendering(write: Callable[[Calls], str]) -> TemplateRules:
    """The rules of a template that describes its tools, and writes calls by *write*."""

    def render(conversation: dict[str, Any]) -> str:
        messages = conversation["messages"]
        said = [write(one["tool_calls"]) if "tool_calls" in one else one["content"] for one in messages]
        turns = [f"<|{one['role']}|>\n{text}<|end|>\n" for one, text in zip(messages, said, strict=True)]
        return json.dumps(conversation.get("tools")) + "".join(turns)

    return TemplateRules(render)


def written(calls: Calls, begin: str, middle: str, end: str, between: str = "") -> str:
    functions = [call["function"] for call in calls]
    return between.join(f"{begin}{one['name']}{middle}{one['arguments']}{end}" for one in functions)


def llama(calls: Calls) -> str:
    if len(calls) > 1:
        raise ValueError("one call at a time")
    return written(calls, '{"name": "', '", "parameters": ', "}")


def xml(calls: Calls) -> str:
    return written(calls, "<function=", ">", "</function>").replace("{", "{\n").replace("}", "\n}")


@pytest.mark.parametrize(
    ("write", "form"),
    [
        (
            lambda calls: written(calls, f"\n{TAG}", ARGUMENTS, TAGGED_END),
            CallSyntax(TAG, ARGUMENTS, f"{TAGGED_END}\n{TAG}", TAGGED_END),
        ),
        (
            lambda calls: f"[CALLS][{written(calls, NAME, ARGUMENTS, '}', ', ')}]",
            CallSyntax(f"[CALLS][{NAME}", ARGUMENTS, "}, " + NAME, "}]"),
        ),
        (llama, CallSyntax(NAME, '", "parameters": ', "", "}")),
        (xml, CallSyntax("<function=", ">", "</function><function=", "</function>")),
        (lambda calls: "".join(f'{{"id": "{one["id"]}", "f": {llama([one])}}}' for one in calls), None),
        (lambda calls: "".join(f"<{one['function']['name']}><place>probe-place</place>" for one in calls), None),
        (lambda calls: "".join(f"{one['function']['arguments']} for {one['function']['name']}" for one in calls), None),
        (lambda _: "", None),
    ],
)
def test_a_form_is_known_if_it_has_names_and_json_in_order_and_no_ids(write, form):
    assert rendering(write).call_form == form


def test_a_template_that_describes_no_tools_has_no_form():
    assert TemplateRules(lambda conversation: str(conversation["messages"])).call_form is None
