"""Texts that a grammar binds, converted into reasoning, content and calls, whatever pieces they arrive in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from naiad_stub.template_rules import CallSyntax, TemplateRules
from vllm_like.constraints import JSON_CALLS, ConstrainedWriter, Constraint, ConstraintRules
from vllm_like.engines import llama_grammar
from vllm_like.engines.base import CallerError, Delta, Engine

RUN, RUNNER = ({"name": name, "parameters": {"type": "object"}} for name in ("run", "runner"))
MARKED = CallSyntax('<call>{"name": "', '", "arguments": ', '}</call><call>{"name": "', "}</call>")
BARE = CallSyntax('{"name": "', '", "parameters": ', "", "}")
ANSWER = {"json": {"type": "object"}}


def converted(text: str, size: int, reason: str = "stop", **members: Any) -> tuple[str, str, list[list[str]], str]:
    """Reasoning, content, calls and the finish reason of a text in pieces of *size* characters."""
    writer = ConstrainedWriter(Constraint((RUN, RUNNER), **members))
    reasoning = content = finish = ""
    calls: list[list[str]] = []
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    for number, piece in enumerate(pieces):
        delta = Delta(0, piece, finish_reason=reason if number == len(pieces) - 1 else None)
        writer.convert(delta)
        content += delta.text
        message = delta.message or {}
        reasoning += message.get("reasoning_content", "")
        for call in message.get("tool_calls", ()):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
        finish = delta.finish_reason or ""
    return reasoning, content, calls, finish


class PlainEngine(Engine):
    """An engine without grammars, as vLLM, or with them."""

    def __init__(self, *, takes_grammars: bool) -> None:
        self.takes_grammars = takes_grammars

    def is_plain_text(self, text: str) -> bool:
        return "[" not in text


TALK: Any = {"messages": [{"role": "user", "content": "Hello"}], "tools": [{"type": "function", "function": RUN}]}


def applied(
    *, takes_grammars: bool, mark: str = "<call>", describes: bool = True, **options: Any
) -> tuple[Constraint | None, dict[str, Any]]:
    """The constraint of a conversation with a tool and a format, and the parameters for the engine."""

    def render(conversation: dict[str, Any]) -> str:
        texts = [one.get("content") or "" for one in conversation["messages"]]
        calls = [call["function"] for one in conversation["messages"] for call in one.get("tool_calls", ())]
        texts[1:1] = [f'{mark}{{"name": "{one["name"]}", "arguments": {one["arguments"]}}}' for one in calls]
        return (json.dumps(conversation.get("tools")) if describes else "") + "".join(texts)

    parameters: dict[str, Any] = {"structured_outputs": ANSWER}
    rules = ConstraintRules(TemplateRules(render), PlainEngine(takes_grammars=takes_grammars))
    return rules.apply({**TALK, **options}, parameters)[1], parameters


def test_an_engine_without_grammars_has_no_format_while_tools_are_offered():
    assert applied(takes_grammars=False) == (None, {})
    assert applied(takes_grammars=False, tool_choice="none") == (None, {"structured_outputs": ANSWER})
    assert applied(takes_grammars=False, tools=[]) == (None, {"structured_outputs": ANSWER})


def test_an_engine_with_grammars_has_one_if_it_writes_the_form_of_calls_as_text():
    constraint, _ = applied(takes_grammars=True)
    assert constraint is not None
    assert (constraint.form.begin, constraint.structure) == ('<call>{"name": "', ANSWER)
    assert applied(takes_grammars=True, mark="[CALL]") == (None, {})


def test_a_format_binds_the_answer_if_the_template_does_not_tell_the_model_of_tools():
    assert applied(takes_grammars=False, describes=False) == (None, {"structured_outputs": ANSWER})
    constraint, _ = applied(takes_grammars=True, describes=False)
    assert constraint == Constraint(structure=ANSWER)


@pytest.mark.parametrize("takes_grammars", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "run"}}])
def test_a_format_is_dropped_where_a_call_is_demanded(choice, takes_grammars):
    constraint, parameters = applied(takes_grammars=takes_grammars, tool_choice=choice)
    assert constraint is not None
    assert (constraint.functions, constraint.structure) == ([RUN], None)
    assert parameters == ({} if takes_grammars else {"structured_outputs": {"json": constraint.schema()}})


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "members", "expected"),
    [
        (
            '<call>{"name": "runner", "arguments": {"a": "}\\"{"}}</call><call>{"name": "run", "arguments": {}}</call>',
            {"form": MARKED, "structure": ANSWER},
            ("", "", [["runner", '{"a": "}\\"{"}'], ["run", "{}"]], "tool_calls"),
        ),
        ('{"call": 1}', {"form": MARKED, "structure": ANSWER}, ("", '{"call": 1}', [], "stop")),
        ("<cal", {"form": MARKED, "structure": {"regex": ".*"}}, ("", "<cal", [], "stop")),
        ('{"name": "Ann"}', {"form": BARE, "structure": ANSWER}, ("", '{"name": "Ann"}', [], "stop")),
        ('{"name": "run"}', {"form": BARE, "structure": ANSWER}, ("", '{"name": "run"}', [], "stop")),
        (
            '<think>\nRun </thin it.</think>\n\n{"name": "run", "parameters": {"a": [1]}}',
            {"form": BARE, "structure": ANSWER},
            ("\nRun </thin it.", "", [["run", '{"a": [1]}']], "tool_calls"),
        ),
        ('<thinking>Yes.</thinking> {"a": 1}', {"form": MARKED, "structure": ANSWER}, ("Yes.", '{"a": 1}', [], "stop")),
        ("<thing>", {"structure": {"regex": ".*"}}, ("", "<thing>", [], "stop")),
        (
            '[ {"name" :"run","arguments":  {"a":1}}]',
            {"form": JSON_CALLS},
            ("", "", [["run", '{"a":1}']], "tool_calls"),
        ),
    ],
)
def test_a_text_is_converted_the_same_in_any_pieces(text, members, expected, size):
    assert converted(text, size, **members) == expected


def test_what_is_cut_off_stays_where_it_belongs():
    assert converted("<think>\nRun it.</th", 2, "length", form=MARKED) == ("\nRun it.</th", "", [], "length")
    text = '<call>{"name": "run", "arguments": {"a": "b'
    assert converted(text, 3, "length", form=MARKED) == ("", "", [["run", '{"a": "b']], "length")


def test_a_function_whose_parameters_no_grammar_takes_gets_any_object():
    odd = {"name": "odd", "parameters": {"type": "object", "propertyNames": {"pattern": "^a"}}}
    grammar = llama_grammar.of_constraint(Constraint((odd, RUN), form=MARKED))
    assert "propertyNames" not in grammar
    assert '"odd\\", \\"arguments\\": " arguments0 | "run\\", \\"arguments\\": " arguments1' in grammar


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        ("<|assistant|>\n", '("<think>" thought /\\s*/)? body'),
        ("<|assistant|>\n<think>\n", "(thought /\\s*/) body"),
        ("<|assistant|>\n<think>\n\n</think>\n\n", "body"),
        ("<|assistant|>\n<bot>", '("<think>" thought /\\s*/)? body'),
    ],
)
def test_a_grammar_has_the_reasoning_that_the_prompt_permits(prompt, start):
    grammar = llama_grammar.of_constraint(Constraint(structure=ANSWER))
    found = llama_grammar.with_reasoning(grammar, prompt, may_reason=True)
    assert found.splitlines()[1] == f"start: {start}"
    assert ("thought[lazy]" in found) == ("thought" in start)
    if "(thought" not in start:
        assert llama_grammar.with_reasoning(grammar, prompt, may_reason=False) == grammar


def test_a_format_that_is_several_formats_is_rejected():
    with pytest.raises(CallerError, match=r"must have one of .*; it has 'json', 'regex'"):
        llama_grammar.of_structure({"json": {}, "regex": "a"})
