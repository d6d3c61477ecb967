"""A chat template of the operator's, for models that take a prompt and no conversation."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from naiad.errors import OptionError
from naiad.frontends.openai.errors import ApiError


class ChatTemplate:
    """Makes prompts of conversations by a Jinja template, with what Hugging Face's templates expect to find."""

    def __init__(self, path: Path) -> None:
        """Read the template.

        Raises:
            OptionError: If it cannot be read or is no template, or Jinja is not installed.
        """
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise OptionError(
                "--openai-chat-template needs Jinja; install naiad with the extra 'chat': pip install 'naiad[chat]'"
            ) from None
        # `break` and `continue` are an extension of Jinja that Hugging Face's templates count on.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as problem:
            raise OptionError(f"cannot read --openai-chat-template={path}: {problem}") from None
        except TemplateError as problem:
            raise OptionError(f"--openai-chat-template={path} is no template: {problem}") from None
        self._problem: type[Exception] = TemplateError

    def prompt(self, conversation: dict[str, Any]) -> str:
        """The prompt that a conversation makes.

        Raises:
            ApiError: If the template refuses it.
        """
        if conversation.get("continue_final_message"):
            raise ApiError(
                "`continue_final_message` needs a model that takes conversations itself", param="continue_final_message"
            )
        begins = conversation.get("add_generation_prompt", True)
        further = dict(conversation.get("chat_template_kwargs") or {})
        try:
            return self._template.render(
                messages=conversation["messages"],
                tools=conversation.get("tools"),
                **{"add_generation_prompt": begins, "bos_token": "", "eos_token": "", **further},
            )
        except Exception as problem:  # noqa: BLE001 - a template can divide by zero, recurse, look up what is not there
            raise ApiError(f"The chat template refuses the conversation: {problem}", param="messages") from None


def _refuse(message: str) -> None:
    raise ValueError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - their order, too
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """As Hugging Face's: Jinja's own filter would escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
