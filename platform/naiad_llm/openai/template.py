"""The operator's chat template (`--openai-chat-template`), for models without an input for conversations."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from naiad_stub.template_rules import TemplateRules

from naiad.core.errors import OptionError
from naiad.core.extras import install_command
from naiad_llm.openai.errors import ApiError


class ChatTemplate:
    """Renders conversations as prompts by a Jinja template written for Hugging Face's `apply_chat_template`."""

    def __init__(self, path: Path) -> None:
        """Read the template; `OptionError` if the file is missing or invalid, or Jinja is not installed."""
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise OptionError(
                f"--openai-chat-template needs Jinja, which is not installed: {install_command('chat')}"
            ) from None
        # As in transformers' utils/chat_template_utils.py: `break` and `continue` are an extension of Jinja.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as problem:
            raise OptionError(f"cannot read --openai-chat-template={path}: {problem}") from None
        except TemplateError as problem:
            raise OptionError(f"--openai-chat-template={path} is not a valid Jinja template: {problem}") from None
        self._rules = TemplateRules(self._render)

    def prompt(self, conversation: dict[str, Any]) -> str:
        """The prompt of a conversation, whose messages are adapted to what the template accepts."""
        if conversation.get("continue_final_message"):
            raise ApiError(
                "`continue_final_message` needs a model with the input 'messages'", param="continue_final_message"
            )
        if any(isinstance(message.get("content"), list) for message in conversation["messages"]):
            raise ApiError("images in chats need a model with the input 'messages'", param="messages")
        return self._render(self._rules.adapted(conversation))

    def _render(self, conversation: dict[str, Any]) -> str:
        add_generation_prompt = conversation.get("add_generation_prompt", True)
        extra = dict(conversation.get("chat_template_kwargs") or {})
        try:
            rendered: str = self._template.render(
                messages=conversation["messages"],
                tools=conversation.get("tools"),
                **{"add_generation_prompt": add_generation_prompt, "bos_token": "", "eos_token": "", **extra},
            )
        except Exception as problem:  # noqa: BLE001 - a template is code and can raise any exception
            raise ApiError(f"The chat template rejected the conversation: {problem}", param="messages") from None
        return rendered


def _raise_exception(message: str) -> None:
    raise ValueError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - signature of Hugging Face's filter
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - signature of Hugging Face's filter
) -> str:
    """The filter `tojson` of Hugging Face: Jinja's own escapes `<`, `>`, `&` and `'` for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
