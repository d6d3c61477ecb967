"""Tool calls and reasoning in the text of a model, extracted by vLLM's own parsers, one for each family of models.

vLLM applies them in its HTTP server, which this backend does not use. The interface of parsers of tool calls has been
the same since release 0.6, but for the modules' places and the second argument of the constructor. The methods of those
of reasoning had other names before release 0.12.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from vllm_like.engines.base import CallerError, Delta, Generation

_AUTO = "auto"
_PASSED = ("messages", "tools", "parallel_tool_calls")  # what parsers look at in a conversation
_REASONING = ("reasoning", "reasoning_content")
"""Members of a delta with the reasoning: that of recent releases, and the earlier one."""


def tool_parser(name: str) -> Any:
    """The class of parsers of that name; `ValueError` if the installed release has none."""
    try:
        from vllm.tool_parsers import ToolParserManager as Manager
    except ImportError:  # before release 0.13
        from vllm.entrypoints.openai.tool_parsers import ToolParserManager as Manager
    return _find(Manager, Manager.get_tool_parser, Manager.tool_parsers, "tool_call_parser", name)


def reasoning_parser(name: str) -> Any:
    """As `tool_parser`, for reasoning."""
    from vllm.reasoning import ReasoningParserManager as Manager

    return _find(Manager, Manager.get_reasoning_parser, Manager.reasoning_parsers, "reasoning_parser", name)


def _find(manager: Any, find: Callable[[str], Any], eager: Iterable[str], key: str, name: str) -> Any:
    """What *find* returns for *name*, the value of *key*; `ValueError` with the parsers of *manager* if it has none."""
    try:
        return find(name)
    except KeyError:
        known = sorted({*getattr(manager, "lazy_parsers", {}), *eager})
        raise ValueError(f"'{key}' in model.json is '{name}'; this release of vLLM has {', '.join(known)}") from None


def expects_tool_calls(generation: Generation) -> bool:
    """Whether the model may answer a conversation with tool calls in its own form."""
    given = generation.chat or {}
    return bool(given.get("tools")) and given.get("tool_choice", _AUTO) == _AUTO and generation.constraint is None


def chat_request(conversation: Mapping[str, Any]) -> Any:
    """A conversation in vLLM's own form, with what parsers look at; `CallerError` if vLLM rejects it."""
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    except ImportError:  # before release 0.15
        from vllm.entrypoints.openai.protocol import ChatCompletionRequest
    given = {name: conversation[name] for name in _PASSED if name in conversation}
    choice = {"tool_choice": _AUTO} if given.get("tools") else {}
    try:
        return ChatCompletionRequest(model="", **choice, **given)
    except ValueError as error:  # pydantic's, too
        raise CallerError(f"vLLM rejected the conversation: {error}") from None


class _Extractor:
    """Moves a part of the text of one choice into the messages of its deltas.

    Without a stream, nothing is sent before the end: the parsers of complete texts accept more.
    """

    def __init__(self, parser: Any, request: Any, *, is_stream: bool) -> None:
        self._parser = parser  # which has the state of one text
        self._request = request  # the conversation in vLLM's own form
        self._is_stream = is_stream
        self._text = ""
        self._tokens: List[int] = []

    def _take(self, delta: Delta, tokens: Sequence[int]) -> Tuple[Any, ...]:
        """Take the text of *delta*; return what parsers of streams get: texts and tokens before, in all, and new."""
        before, tokens_before = self._text, list(self._tokens)
        new, delta.text = delta.text, ""
        self._text += new
        self._tokens += tokens
        return before, self._text, new, tokens_before, self._tokens, tokens


class ToolCallRequest:
    """A conversation with tools, in vLLM's own form."""

    def __init__(self, parser: Any, tokenizer: Any, conversation: Mapping[str, Any], *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._parser = parser
        self._tokenizer = tokenizer
        request = chat_request(conversation)
        self._request = self._new_parser(request).adjust_request(request)
        # Whether special tokens may be left out of the text; the marks of calls are some.
        self.skips_special_tokens = bool(getattr(self._request, "skip_special_tokens", True))

    def new_extractor(self) -> ToolCallExtractor:
        return ToolCallExtractor(self._new_parser(self._request), self._request, is_stream=self._is_stream)

    def _new_parser(self, request: Any) -> Any:
        takes_tools = "tools" in inspect.signature(self._parser).parameters
        return self._parser(self._tokenizer, request.tools) if takes_tools else self._parser(self._tokenizer)


class ToolCallExtractor(_Extractor):
    """Moves the tool calls of one choice from the text of its deltas into their messages."""

    _calls = 0

    def convert(self, delta: Delta, tokens: Sequence[int]) -> None:
        """Convert a delta, whose new tokens are *tokens*."""
        parts = self._take(delta, tokens)
        calls: List[Dict[str, Any]] = []
        if self._is_stream:
            calls = self._calls_in_part(delta, parts)
        elif delta.finish_reason is not None:
            found = self._parser.extract_tool_calls(self._text, self._request)
            delta.text = (found.content or "") if found.tools_called else self._text
            if found.tools_called:
                calls = [{**_plain(call), "index": number} for number, call in enumerate(found.tool_calls)]
                self._calls = len(calls)
        if calls:
            delta.message = {**(delta.message or {}), "tool_calls": calls}
        if self._calls and delta.finish_reason == "stop":
            delta.finish_reason = "tool_calls"

    def _calls_in_part(self, delta: Delta, parts: Tuple[Any, ...]) -> List[Dict[str, Any]]:
        found = self._parser.extract_tool_calls_streaming(*parts, self._request)
        calls = [] if found is None else [_plain(call) for call in found.tool_calls]
        delta.text = "" if found is None else found.content or ""
        self._calls = max([self._calls, *(call["index"] + 1 for call in calls)])
        if self._calls and delta.finish_reason is not None:
            # A parser may know the end of the arguments, and have held it back.
            rest = getattr(self._parser, "get_remaining_unstreamed_args", str)()
            if rest:
                calls.append({"index": self._calls - 1, "function": {"arguments": rest}})
        return calls


def _plain(call: Any) -> Dict[str, Any]:
    plain: Dict[str, Any] = call.model_dump(exclude_none=True)
    return plain


class ReasoningExtractor(_Extractor):
    """Moves the reasoning of one choice from the text of its deltas into their messages."""

    def __init__(
        self, parser: Any, tokenizer: Any, conversation: Mapping[str, Any], request: Any, *, is_stream: bool
    ) -> None:
        options = dict(conversation.get("chat_template_kwargs") or {})
        takes_options = any(
            one.kind is inspect.Parameter.VAR_KEYWORD or name == "chat_template_kwargs"
            for name, one in inspect.signature(parser).parameters.items()
        )
        given = {"chat_template_kwargs": options} if takes_options else {}
        super().__init__(parser(tokenizer, **given), request, is_stream=is_stream)
        self._is_over = False
        self._has_begun = False

    def convert(self, delta: Delta, tokens: Sequence[int], prompt: Sequence[int]) -> List[int]:
        """Convert a delta, whose new tokens are *tokens*; return those of them that are not reasoning."""
        if not self._has_begun:
            self._has_begun = True
            # A template that was told not to think writes the end of the reasoning into the prompt.
            self._is_over = bool(self._parser.is_reasoning_end(list(prompt)))
        if self._is_over:
            return list(tokens)
        parts = self._take(delta, list(tokens))
        if self._is_stream:
            found = self._method("extract_reasoning_streaming", "extract_reasoning_content_streaming")(*parts)
            delta.text = getattr(found, "content", None) or ""
            reasoning = next((text for text in (getattr(found, name, None) for name in _REASONING) if text), None)
            self._is_over = bool(self._parser.is_reasoning_end(tokens))
            rest = self._parser.extract_content_ids(tokens) if self._is_over else tokens if delta.text else ()
        elif delta.finish_reason is None:
            return []
        else:
            reasoning, content = self._method("extract_reasoning", "extract_reasoning_content")(
                self._text, self._request
            )
            delta.text = content or ""
            rest = self._parser.extract_content_ids(self._tokens)
        if reasoning:
            delta.message = {"reasoning_content": reasoning}
        return list(rest)

    def _method(self, name: str, former: str) -> Any:
        return getattr(self._parser, name, None) or getattr(self._parser, former)
