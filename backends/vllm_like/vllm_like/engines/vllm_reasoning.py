"""The reasoning in the text of a model, extracted by vLLM's own parsers, one for each family of models.

vLLM applies them in its HTTP server, which this backend does not use. Their methods had other names before
release 0.12.
"""

from __future__ import annotations

import inspect
from typing import Any, List, Mapping, Sequence

from vllm_like.engines.base import Delta
from vllm_like.engines.vllm_tools import find_parser

_MEMBERS = ("reasoning", "reasoning_content")
"""Members of a delta with the reasoning: that of recent releases, and the earlier one."""


def parser_class(name: str) -> Any:
    """The parser of that name; `ValueError` if the installed release has none."""
    from vllm.reasoning import ReasoningParserManager as Manager

    return find_parser(Manager, Manager.get_reasoning_parser, Manager.reasoning_parsers, "reasoning_parser", name)


class ReasoningExtractor:
    """Moves the reasoning of one choice from the text of its deltas into their messages."""

    def __init__(
        self, parser: Any, tokenizer: Any, conversation: Mapping[str, Any], request: Any, *, is_stream: bool
    ) -> None:
        """*request* is the conversation in vLLM's own form. Without a stream, all is extracted at the end."""
        options = dict(conversation.get("chat_template_kwargs") or {})
        takes_options = any(
            one.kind is inspect.Parameter.VAR_KEYWORD or name == "chat_template_kwargs"
            for name, one in inspect.signature(parser).parameters.items()
        )
        self._parser = parser(tokenizer, chat_template_kwargs=options) if takes_options else parser(tokenizer)
        self._request = request
        self._is_stream = is_stream
        self._is_over = False
        self._has_begun = False
        self._text = ""
        self._tokens: List[int] = []

    def convert(self, delta: Delta, tokens: Sequence[int], prompt: Sequence[int]) -> List[int]:
        """Convert a delta, whose new tokens are *tokens*; return those of them that are not reasoning."""
        if not self._has_begun:
            self._has_begun = True
            # A template that was told not to think writes the end of the reasoning into the prompt.
            self._is_over = bool(self._parser.is_reasoning_end(list(prompt)))
        if self._is_over:
            return list(tokens)
        before, tokens_before = self._text, list(self._tokens)
        new, delta.text = delta.text, ""
        self._text += new
        self._tokens += tokens
        if self._is_stream:
            return self._convert_part(delta, before, new, tokens_before, list(tokens))
        if delta.finish_reason is None:
            return []
        extract = getattr(self._parser, "extract_reasoning", None) or self._parser.extract_reasoning_content
        reasoning, content = extract(self._text, self._request)
        delta.text = content or ""
        if reasoning:
            delta.message = {"reasoning_content": reasoning}
        return list(self._parser.extract_content_ids(self._tokens))

    def _convert_part(
        self, delta: Delta, before: str, new: str, tokens_before: List[int], tokens: List[int]
    ) -> List[int]:
        extract = getattr(self._parser, "extract_reasoning_streaming", None)
        extract = extract or self._parser.extract_reasoning_content_streaming
        found = extract(before, self._text, new, tokens_before, self._tokens, tokens)
        delta.text = getattr(found, "content", None) or ""
        reasoning = next((text for text in (getattr(found, name, None) for name in _MEMBERS) if text), None)
        if reasoning:
            delta.message = {"reasoning_content": reasoning}
        if self._parser.is_reasoning_end(tokens):
            self._is_over = True
            return list(self._parser.extract_content_ids(tokens))
        return tokens if delta.text else []
