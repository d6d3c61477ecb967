"""What a model's chat template accepts, found by rendering small conversations, and conversations that it accepts.

Clients put system messages anywhere, and several messages of the user in succession. Some templates raise an exception
for these, others drop them: what they render is the only thing that tells. The backends of language models use this,
and the host for its `--openai-chat-template`.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, Callable, Dict, List, NamedTuple, Optional

_SYSTEM, _USER = "system", "user"
_TOOL = {
    "type": "function",
    "function": {
        "name": "naiad_probe_tool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
_SAID = "probe-said"
_CALL_ID = "probeCall"
_CALL_PARTS = re.compile(r'(naiad_probe_tool)|\{\s*"place"\s*:\s*"probe-place"\s*\}')
"""The name and the arguments of a call of that tool; only the first is a group."""
_BETWEEN = "\n\n"


class CallSyntax(NamedTuple):
    """How a template writes the calls of a message, with arguments as JSON.

    Attributes:
        begin: Text before the name of the first function.
        middle: Text between a name and its arguments.
        between: Text between the arguments of a call and the name of the next; "" where there is one call at most.
        end: Text after the last arguments.
    """

    begin: str
    middle: str
    between: str
    end: str


class TemplateRules:
    """The rules of one template, each of which is found when a conversation needs it."""

    def __init__(self, render: Callable[[Dict[str, Any]], str]) -> None:
        """The rules of the template that *render* applies to a conversation.

        Args:
            render: Returns the prompt; raises any exception for a conversation that the template rejects.
        """
        self._render = render

    @cached_property
    def call_form(self) -> Optional[CallSyntax]:
        """How prompts have the calls of the assistant; None if they have none, or have their arguments not as JSON."""
        one = self._call_texts(1) if self.describes_tools else None
        if one is None:
            return None
        two = self._call_texts(2)
        takes_two = two is not None and [*two[:2], *two[3:]] == [*one[:2], one[1], one[2]]
        return CallSyntax(one[0].lstrip(), one[1], two[2] if two is not None and takes_two else "", one[2])

    def _call_texts(self, count: int) -> Optional[List[str]]:
        """The texts around the names and the arguments of *count* calls in succession."""
        function = {"name": "naiad_probe_tool", "arguments": '{"place": "probe-place"}'}
        calls = [{"id": f"{_CALL_ID}{n}", "type": "function", "function": function} for n in range(count)]
        said, called = (
            self._rendered([{"role": _USER, "content": "Hello"}, message, {"role": _USER, "content": "Hello"}], [_TOOL])
            for message in (
                {"role": "assistant", "content": _SAID},
                {"role": "assistant", "content": "", "tool_calls": calls},
            )
        )
        before, _, after = said.partition(_SAID)
        if not (said and called.startswith(before) and called.endswith(after)):
            return None
        # The name is in the text for each call, so every second part is a name or None.
        parts = _CALL_PARTS.split(called[len(before) : len(called) - len(after)])
        is_in_order = [bool(name) for name in parts[1::2]] == [True, False] * count
        return parts[::2] if is_in_order and _CALL_ID not in called else None

    @cached_property
    def describes_tools(self) -> bool:
        """Whether prompts have the tools of a conversation."""
        return self._shows([("user", "Hello")], ["naiad_probe_tool"], [_TOOL])

    @cached_property
    def _takes_system(self) -> bool:
        return self._shows([("system", "probe-one"), ("user", "probe-two")], ["probe-one", "probe-two"])

    @cached_property
    def _takes_late_system(self) -> bool:
        said = [("system", "probe-one"), ("system", "probe-two"), ("user", "Hello"), ("assistant", "Hello")]
        return self._shows(
            [*said, ("system", "probe-three"), ("user", "Hello")], ["probe-one", "probe-two", "probe-three"]
        )

    @cached_property
    def _takes_users_in_succession(self) -> bool:
        return self._shows([("user", "probe-one"), ("user", "probe-two")], ["probe-one", "probe-two"])

    def adapted(self, conversation: Dict[str, Any]) -> Dict[str, Any]:
        """The conversation with messages that the template accepts; *conversation* itself if it accepts them all."""
        messages = [_with_known_role(message) for message in conversation["messages"]]
        systems = [place for place, message in enumerate(messages) if message["role"] == _SYSTEM]
        if systems not in ([], [0]) and not self._takes_late_system:
            first = {"role": _SYSTEM, "content": _BETWEEN.join(_text(messages[place]) for place in systems)}
            messages = [first, *(message for message in messages if message["role"] != _SYSTEM)]
            systems = [0]
        if systems == [0] and len(messages) > 1 and not self._takes_system:
            messages = _with_text_before(messages[1:], _text(messages[0]))
        if _has_users_in_succession(messages) and not self._takes_users_in_succession:
            messages = _with_users_joined(messages)
        return conversation if messages == conversation["messages"] else {**conversation, "messages": messages}

    def _shows(self, said: List[Any], marks: List[str], tools: Optional[List[Any]] = None) -> bool:
        text = self._rendered([{"role": role, "content": content} for role, content in said], tools)
        return all(mark in text for mark in marks)

    def _rendered(self, messages: List[Any], tools: Optional[List[Any]]) -> str:
        """The prompt; "" if the template rejects the messages."""
        given = {"messages": messages} if tools is None else {"messages": messages, "tools": tools}
        try:
            return self._render(given)
        except Exception:  # noqa: BLE001 - a template is code and can raise any exception
            return ""


def _with_known_role(message: Dict[str, Any]) -> Dict[str, Any]:
    # OpenAI's newer name of the role, which chat templates do not know.
    return {**message, "role": _SYSTEM} if message["role"] == "developer" else message


def _text(message: Dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


def _with_text_before(messages: List[Dict[str, Any]], text: str) -> List[Dict[str, Any]]:
    """The messages with a text before that of the user's first one, or as a message of the user where there is none."""
    for place, message in enumerate(messages):
        if message["role"] == _USER:
            joined = _joined({"role": _USER, "content": text}, message)
            return [*messages[:place], joined, *messages[place + 1 :]]
    return [{"role": _USER, "content": text}, *messages]


def _has_users_in_succession(messages: List[Dict[str, Any]]) -> bool:
    return any(one["role"] == other["role"] == _USER for one, other in zip(messages, messages[1:]))


def _with_users_joined(messages: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    made: List[Dict[str, Any]] = []
    for message in messages:
        if made and made[-1]["role"] == message["role"] == _USER:
            made[-1] = _joined(made[-1], message)
        else:
            made.append(message)
    return made


def _joined(one: Dict[str, Any], other: Dict[str, Any]) -> Dict[str, Any]:
    """Two messages as one; parts, which may be images, stay parts."""
    if not isinstance(one.get("content"), list) and not isinstance(other.get("content"), list):
        return {**other, "content": _BETWEEN.join(filter(None, (_text(one), _text(other))))}
    return {**other, "content": [*_parts(one), *_parts(other)]}


def _parts(message: Dict[str, Any]) -> List[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": str(content or "")}]
