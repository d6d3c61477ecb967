"""What a model's chat template accepts, found by rendering small conversations, and conversations that it accepts.

Clients put system messages anywhere, and several messages of the user in succession. Some templates raise an exception
for these, others drop them: what they render is the only thing that tells. The backends of language models use this,
and the host for its `--openai-chat-template`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Callable, Dict, List, Optional

_SYSTEM, _USER = "system", "user"
_TOOL = {
    "type": "function",
    "function": {
        "name": "naiad_probe_tool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
_BETWEEN = "\n\n"


class TemplateRules:
    """The rules of one template, each of which is found when a conversation needs it."""

    def __init__(self, render: Callable[[Dict[str, Any]], str], *, enforces_calls: bool = False) -> None:
        """The rules of the template that *render* applies to a conversation.

        Args:
            render: Returns the prompt; raises any exception for a conversation that the template rejects.
            enforces_calls: Whether the engine makes the model call a tool where the template describes tools.
        """
        self._render = render
        self._enforces_calls = enforces_calls

    @property
    def enforces_calls(self) -> bool:
        """Whether the engine itself makes the model call a tool, in the form of the template."""
        return self._enforces_calls and self.describes_tools

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
        given: Dict[str, Any] = {"messages": [{"role": role, "content": content} for role, content in said]}
        if tools is not None:
            given["tools"] = tools
        try:
            text = self._render(given)
        except Exception:  # noqa: BLE001 - a template is code and can raise any exception
            return False
        return all(mark in text for mark in marks)


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
