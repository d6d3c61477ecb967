"""Grammars for llama.cpp, in the form of llguidance (Lark), with which xllamacpp is built.

llama.cpp generates without any constraint where llguidance rejects a grammar. So what it would reject is rejected here.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Mapping

from vllm_like import json_text
from vllm_like.constraints import REASONING_TAGS, Constraint, parameters_of
from vllm_like.engines import llama_schema
from vllm_like.engines.base import CallerError

_HEAD = "%llguidance {}\nstart: "
_DETAILS = frozenset(
    ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "backend", "disable_fallback")
)  # members of `structured_outputs` that only tune vLLM's implementation
_KINDS = ("json", "json_object", "choice", "regex", "grammar")
_OPEN_TAG = re.compile(r"<(?P<tag>[\w:]+)>\s*$")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_INNER_ANCHOR = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[ABZz]|\$(?!$)|(?!^)\^)")


def of_structure(given: Mapping[str, Any]) -> str:
    """The grammar of `structured_outputs`."""
    kind, value = _kind(given)
    if kind == "grammar":
        return str(value)
    return f"{_HEAD}{_expression(kind, value)}\n"


def of_constraint(constraint: Constraint) -> str:
    """The grammar of an answer without reasoning; see `with_reasoning`."""
    rules: Dict[str, str] = {}
    if constraint.functions:
        form = constraint.form
        calls = []
        for number, function in enumerate(constraint.functions):
            rules[f"arguments{number}"] = _json(_usable(parameters_of(function)))
            calls.append(f"{_text(json.dumps(function['name'])[1:-1] + form.middle)} arguments{number}")
        rules["call"] = " | ".join(calls)
        more = f" ({_text(form.between)} call)*" if constraint.takes_several else ""
        rules["calls"] = f"{_text(form.begin)} call{more} {_text(form.end)}"
    if constraint.structure is not None:
        rules["answer"] = _expression(*_kind(constraint.structure))
    start = " | ".join(name for name in ("calls", "answer") if name in rules)
    return f"{_HEAD}body\nbody: {start}\n" + "".join(f"{name}: {rule}\n" for name, rule in rules.items())


def with_reasoning(grammar: str, prompt: str, *, may_reason: bool) -> str:
    """The grammar of `of_constraint` with reasoning before the answer, where the model may reason.

    The *prompt* may begin the reasoning, or end it.
    """
    tag = opened_tag(prompt)
    opening = "" if tag else '"<think>" '
    if not tag and (not may_reason or prompt.rstrip().endswith("</think>")):
        return grammar
    thought = f"({opening}thought /\\s*/)" + ("" if tag else "?")
    rule = f"thought[lazy]: /(?s:.*)<\\/{tag or 'think'}>/\n"
    return grammar.replace(f"{_HEAD}body", f"{_HEAD}{thought} body", 1) + rule


def opened_tag(prompt: str) -> str:
    """The tag of reasoning that the end of a prompt opens; "" for none."""
    found = _OPEN_TAG.search(prompt[-40:])
    return found["tag"] if found is not None and found["tag"] in REASONING_TAGS else ""


def _kind(given: Mapping[str, Any]) -> Any:
    wanted = {key: value for key, value in given.items() if value not in (None, False)}
    found = [(key, wanted.pop(key)) for key in _KINDS if key in wanted]
    if len(found) != 1 or set(wanted) - _DETAILS:
        names = ", ".join(f"'{name}'" for name in given) or "nothing"
        raise CallerError(
            "'structured_outputs' must have one of 'json', 'json_object', 'choice', 'regex' and 'grammar' for the "
            f"engine xllamacpp; it has {names}"
        )
    return found[0]


def _expression(kind: str, value: Any) -> str:
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise CallerError("'choice' must be a list of strings")
        return " | ".join(map(_text, value))
    if kind == "regex":
        return _regex(value)
    if kind == "json_object":
        value = {"type": "object"}
    schema = json_text.parse(value, "the JSON schema") if isinstance(value, str) else value
    llama_schema.check(schema)
    return _json(schema)


def _regex(pattern: Any) -> str:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise CallerError(f"'regex' must be a regular expression, not {json.dumps(pattern)}: {error}") from None
    if llama_schema.UNSUPPORTED_PATTERN.search(pattern) or _INNER_ANCHOR.search(_CLASS.sub("_", pattern)):
        raise CallerError(
            f"the engine xllamacpp does not support the 'regex' {json.dumps(pattern)}: it has a look-around, a "
            "back-reference, \\b, or an anchor that is not at its start or end"
        )
    escaped = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern).replace("\n", "\\n")
    return f"/{escaped}/"


def _usable(schema: Dict[str, Any]) -> Any:
    """The schema of arguments; any object where llguidance would reject it, as the parameters only describe a tool."""
    try:
        llama_schema.check(schema)
    except CallerError:
        return {"type": "object"}
    return schema


def _json(schema: Any) -> str:
    """Any JSON of a schema, with the white space of `json.dumps`: weak models would generate blanks without end."""
    rules = schema if isinstance(schema, dict) else {}  # the schema True permits any JSON
    white = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return f"%json {json.dumps({**rules, 'x-guidance': white})}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
