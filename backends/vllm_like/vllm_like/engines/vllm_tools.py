"""Tool calls in the text of a model, extracted by vLLM's own parsers, one for each family of models.

vLLM applies them in its HTTP server, which this backend does not use. Their interface has been the same since release
0.6, but for the modules' places and the second argument of the constructor.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence

from vllm_like.engines.base import CallerError, Delta, Generation

_AUTO = "auto"
_PASSED = ("messages", "tools", "parallel_tool_calls")  # what parsers look at in a conversation


def parser_class(name: str) -> Any:
    """The parser of that name; `ValueError` if the installed release has none."""
    manager = _manager()
    return find_parser(manager, manager.get_tool_parser, manager.tool_parsers, "tool_call_parser", name)


def find_parser(manager: Any, find: Callable[[str], Any], eager: Iterable[str], key: str, name: str) -> Any:
    """What *find* returns for *name*, the value of *key*; `ValueError` with the parsers of *manager* if it has none."""
    try:
        return find(name)
    except KeyError:
        known = sorted({*getattr(manager, "lazy_parsers", {}), *eager})
        raise ValueError(f"'{key}' in model.json is '{name}'; this release of vLLM has {', '.join(known)}") from None


def are_expected(generation: Generation) -> bool:
    """Whether the model may answer a conversation with tool calls in its own form."""
    given = generation.chat or {}
    return bool(given.get("tools")) and given.get("tool_choice", _AUTO) == _AUTO and generation.constraint is None


def chat_request(conversation: Mapping[str, Any]) -> Any:
    """A conversation in vLLM's own form, with what parsers look at; `CallerError` if vLLM rejects it."""
    given = {name: conversation[name] for name in _PASSED if name in conversation}
    choice = {"tool_choice": _AUTO} if given.get("tools") else {}
    try:
        return _request_class()(model="", **choice, **given)
    except ValueError as error:  # pydantic's, too
        raise CallerError(f"vLLM rejected the conversation: {error}") from None


class ToolCallRequest:
    """A conversation with tools, in vLLM's own form."""

    def __init__(self, parser: Any, tokenizer: Any, conversation: Mapping[str, Any]) -> None:
        self._parser = parser
        self._tokenizer = tokenizer
        request = chat_request(conversation)
        self._request = self._new_parser(request).adjust_request(request)
        # Whether special tokens may be left out of the text; the marks of calls are some.
        self.skips_special_tokens = bool(getattr(self._request, "skip_special_tokens", True))

    def extractor(self, *, is_stream: bool) -> ToolCallExtractor:
        return ToolCallExtractor(self._new_parser(self._request), self._request, is_stream=is_stream)

    def _new_parser(self, request: Any) -> Any:
        """A parser, which has the state of one text."""
        takes_tools = "tools" in inspect.signature(self._parser).parameters
        return self._parser(self._tokenizer, request.tools) if takes_tools else self._parser(self._tokenizer)


class ToolCallExtractor:
    """Moves the tool calls of one choice from the text of its deltas into their messages."""

    def __init__(self, parser: Any, request: Any, *, is_stream: bool) -> None:
        self._parser = parser
        self._request = request
        self._is_stream = is_stream
        self._text = ""
        self._tokens: List[int] = []
        self._calls = 0

    def convert(self, delta: Delta, tokens: Sequence[int]) -> None:
        """Convert a delta, whose new tokens are *tokens*.

        Without a stream, nothing is sent before the end: the parsers of complete texts accept more.
        """
        before, tokens_before = self._text, list(self._tokens)
        new, delta.text = delta.text, ""
        self._text += new
        self._tokens += tokens
        if self._is_stream:
            self._convert_part(delta, before, new, tokens_before, tokens)
        elif delta.finish_reason is not None:
            self._convert_all(delta)
        if self._calls and delta.finish_reason == "stop":
            delta.finish_reason = "tool_calls"

    def _convert_part(
        self, delta: Delta, before: str, new: str, tokens_before: Sequence[int], tokens: Sequence[int]
    ) -> None:
        found = self._parser.extract_tool_calls_streaming(
            before, self._text, new, tokens_before, self._tokens, tokens, self._request
        )
        calls = [] if found is None else [_plain(call) for call in found.tool_calls]
        delta.text = "" if found is None else found.content or ""
        self._calls = max([self._calls, *(call["index"] + 1 for call in calls)])
        if self._calls and delta.finish_reason is not None:
            # A parser may know the end of the arguments, and have held it back.
            rest = getattr(self._parser, "get_remaining_unstreamed_args", str)()
            if rest:
                calls.append({"index": self._calls - 1, "function": {"arguments": rest}})
        if calls:
            delta.message = {**(delta.message or {}), "tool_calls": calls}

    def _convert_all(self, delta: Delta) -> None:
        found = self._parser.extract_tool_calls(self._text, self._request)
        if not found.tools_called:
            delta.text = self._text
            return
        delta.text = found.content or ""
        self._calls = len(found.tool_calls)
        calls = [{**_plain(call), "index": number} for number, call in enumerate(found.tool_calls)]
        delta.message = {**(delta.message or {}), "tool_calls": calls}


def _plain(call: Any) -> Dict[str, Any]:
    plain: Dict[str, Any] = call.model_dump(exclude_none=True)
    return plain


def _manager() -> Any:
    try:
        from vllm.tool_parsers import ToolParserManager
    except ImportError:  # before release 0.13
        from vllm.entrypoints.openai.tool_parsers import ToolParserManager
    return ToolParserManager


def _request_class() -> Any:
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    except ImportError:  # before release 0.15
        from vllm.entrypoints.openai.protocol import ChatCompletionRequest
    return ChatCompletionRequest
