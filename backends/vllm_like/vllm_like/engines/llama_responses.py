"""Converts the chunks of llama.cpp's response stream into deltas, and its errors into exceptions."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from vllm_like.engines import llama_requests
from vllm_like.engines.base import CallerError, Delta, Generation, Sink
from vllm_like.stops import StopFinder

_SERVER_ERROR = 500
_TOO_LONG = re.compile(r"input \((?P<tokens>\d+) tokens\) is too large to process.*batch size: (?P<limit>\d+)")
"""The error for an embedding's text that is longer than a batch: the caller's error, though its code is 500."""
_CONTEXT_EXCEEDED = "exceed_context_size_error"
_TEXT = re.compile(
    r'\{"choices":\[\{"text":"(?P<text>[^"\\]+)","index":(?P<index>\d+),"logprobs":null,"finish_reason":null\}\],'
)
_CONTENT = re.compile(
    r'\{"choices":\[\{"finish_reason":null,"index":(?P<index>\d+),"delta":\{"content":"(?P<text>[^"\\]+)"\}\}\],'
)  # start of a chunk that has only text, as nearly all have: parsing it as JSON takes five times as long


_TEMPLATE_SENTENCE = re.compile(r"Jinja Exception: (?P<text>.+)", re.DOTALL)
_TEMPLATE_ERROR = re.compile(r"^Error: (?P<text>.+)", re.DOTALL | re.MULTILINE)
"""In the error for a template that fails: what the template itself raised, or what is wrong in it."""
_SCHEMA_ERROR = re.compile(r"JSON schema error at (?P<text>.+)", re.DOTALL)


def template_error(text: str) -> CallerError:
    """The error for a conversation that the chat template, or what llama.cpp makes of the tools, rejects."""
    found = _TEMPLATE_SENTENCE.search(text) or _TEMPLATE_ERROR.search(text)
    if found is not None:
        return CallerError(f"the chat template rejected the conversation: {found['text'].strip()}")
    found = _SCHEMA_ERROR.search(text)
    if found is not None:
        return CallerError(f"cannot use the JSON schema of a tool: at {found['text'].strip()}")
    return CallerError(text)


_UNPARSED = re.compile(
    r"The model produced output that does not match the expected|^Failed to parse input at pos|"
    r"Unexpected empty grammar stack after accepting piece"
)  # errors for a text in another form than the template's, and for a call of a function that is not among the tools
_LOG_LINE = re.compile(r"^(?:[\d.]+ [A-Z] )?(?:[\w ~]+: )?(?P<text>.+)$")
_CONSEQUENCES = re.compile(
    r"failed to load model|fit params to free device memory|exiting due to|failed to create context|"
    r"failed to initialize chat template|std::exception"
)  # lines of the log that only say that a load failed, after the one with the reason


class UnparsedError(RuntimeError):
    """The text of the model is not in the form that its chat template describes, and llama.cpp does not return it."""


def load_error(lines: Sequence[str]) -> str:
    """The reasons in the log of a load that failed, each once; empty if there is none."""
    found = [line.strip() for line in lines if "error" in line.lower() or "fail" in line.lower()]
    reasons = []
    for line in found:
        match = _LOG_LINE.match(line)
        text = (match["text"] if match is not None else line).replace("error loading model: ", "").strip()
        text = re.sub(r"^(?:error|init): ", "", text)
        if text not in reasons and not _CONSEQUENCES.search(text):
            reasons.append(text)
    return "; ".join(reasons[:2]) or "; ".join(found[:2])


def parse_error(document: Any) -> Optional[Exception]:
    """The error in a document of llama.cpp; None if it is not an error."""
    error = document.get("error") if isinstance(document, dict) else None
    if error is None:
        return None
    text = str(error.get("message", error))
    if error.get("type") == _CONTEXT_EXCEEDED:
        return _too_long("prompt", error.get("n_prompt_tokens"), error.get("n_ctx"))
    found = _TOO_LONG.search(text)
    if found is not None:
        return _too_long("input", found["tokens"], found["limit"])
    if _UNPARSED.search(text):
        return UnparsedError(text)
    return CallerError(text) if error.get("code", _SERVER_ERROR) < _SERVER_ERROR else RuntimeError(text)


def checked(document: Any) -> Any:
    """A document of llama.cpp; raises the error that it may be."""
    error = parse_error(document)
    if error is not None:
        raise error
    return document


def check_length(tokens: int, limit: int) -> None:
    """`CallerError` unless a prompt fits into the context, with one token to generate."""
    if tokens >= limit:
        raise _too_long("prompt", tokens, limit)


def _too_long(what: str, tokens: Any, limit: Any) -> CallerError:
    """llama.cpp advises to increase sizes that `model.json` has under other names."""
    return CallerError(
        f"This model's maximum context length is {limit} tokens. However, your {what} has {tokens} tokens. Please "
        f"shorten the {what}, or raise 'max_model_len' in the model's model.json."
    )


Said = Mapping[int, Mapping[str, Sequence[Any]]]
"""What was sent of each choice: parts by the name of the member of its message."""


class ChunkReader:
    """Reads the chunks of one request and passes their deltas to its sink."""

    def __init__(
        self,
        generation: Generation,
        sink: Sink,
        on_progress: Callable[[], None],
        first_choice: int = 0,
        opening: str = "",
        said: Optional[Said] = None,
    ) -> None:
        """Read one call of llama.cpp, which generates choices in parts if it has fewer slots than there are choices.

        *opening* is the end of the prompt that belongs to each text, *said* what the sink has got of the texts already.
        """
        self.error: Optional[Exception] = None  # the error of the request; None without one
        # The parts that the sink has got of each choice of a chat: reasoning, content and calls, by their names.
        self.said: Dict[int, Dict[str, List[str]]] = {}
        choices = range(first_choice, first_choice + generation.sampling.get("n", 1))
        self._openings = dict.fromkeys(choices, opening) if opening else {}
        self._skipped = {index: _texts(parts) for index, parts in (said or {}).items()}
        self._unmatched: Dict[int, str] = {}  # text in which the next skipped part is not found yet
        self._sink = sink
        self._on_progress = on_progress
        self.first_choice = first_choice  # number of the choice that llama.cpp calls 0
        self._is_chat = generation.chat is not None
        self._top_logprobs = generation.sampling.get("logprobs") or 0
        self._counted: Dict[int, int] = {}
        self._stops: Optional[StopFinder] = None
        if llama_requests.finds_stops(generation):
            self._stops = StopFinder(generation.sampling["stop"])
        self._held_tokens = 0  # of text that `_stops` holds back
        self._is_stopped = False
        self._needs_json = generation.wants_counts or generation.wants_logprobs or self._stops is not None

    def on_chunk(self, text: str) -> bool:
        """Read one chunk, or a list of chunks; return True to stop llama.cpp, which frees its slot at once."""
        try:
            self._on_progress()
            delta = None if self._needs_json else self._parse_text_chunk(text)
            if delta is not None:
                return self._is_left(delta) and not self._sink.push([delta], 0)
            chunk = json.loads(text)
            for one in chunk if isinstance(chunk, list) else [chunk]:
                if not self._push(one):
                    return True
        except Exception as error:  # noqa: BLE001 - llama.cpp would swallow it
            self.error = error.with_traceback(None)  # which refers to this object
            return True
        return False

    def _parse_text_chunk(self, chunk: str) -> Optional[Delta]:
        """The delta of a chunk that has only text; None for any other chunk."""
        found = (_CONTENT if self._is_chat else _TEXT).match(chunk)
        if found is None:
            return None
        index = int(found["index"])
        self._counted[index] = self._counted.get(index, 0) + 1
        return Delta(self.first_choice + index, found["text"], tokens=1)

    def _push(self, chunk: Dict[str, Any]) -> bool:
        self.error = parse_error(chunk)
        if self.error is not None:
            return False
        timings = chunk.get("timings") or {}
        deltas = [self._delta(choice, timings) for choice in chunk["choices"]]
        prompt_tokens = 0
        if timings.get("predicted_n"):
            prompt_tokens = timings["cache_n"] + timings["prompt_n"]
            self._sink.on_cached_tokens(timings["cache_n"])
        elif chunk.get("prompt_progress"):
            progress = chunk["prompt_progress"]
            prompt_tokens = progress["total"]
            self._sink.on_progress(progress.get("processed", 0))
        new = [delta for delta in deltas if delta is not None and self._is_left(delta)]
        if self._stops is not None:
            new = [delta for delta in new if self._end_at_stop(self._stops, delta)]
        return self._sink.push(new, prompt_tokens) and not self._is_stopped

    def _is_left(self, delta: Delta) -> bool:
        """Take note of *delta*, and skip what the sink has got already; return whether anything is left to send."""
        if self._openings and delta.text:
            delta.text = self._openings.pop(delta.index, "") + delta.text
        if self._is_chat:
            said = self.said.setdefault(delta.index, {})
            for name, value in (delta.message or {"content": delta.text}).items():
                said.setdefault(name, []).append(value)
        parts = self._skipped.get(delta.index)
        if parts is None:
            return True
        text = self._unmatched.pop(delta.index, "") + delta.text
        while parts and parts[0] in text:
            text = text.partition(parts.pop(0))[2]
        delta.text = "" if parts else text
        if parts:
            self._unmatched[delta.index] = text
            delta.tokens = 0
        else:
            del self._skipped[delta.index]
        return bool(delta.text) or delta.finish_reason is not None

    def _end_at_stop(self, stops: StopFinder, delta: Delta) -> bool:
        """End the text of *delta* at a stop; return whether anything is left to send."""
        is_content = delta.message is not None and "content" in delta.message
        if delta.text:
            delta.text, found = stops.add(delta.text)
            if found is not None:
                self._is_stopped = True
                delta.finish_reason, delta.stop_reason = "stop", found
        if not self._is_stopped and (delta.finish_reason is not None or "tool_calls" in (delta.message or {})):
            delta.text += stops.end()
        if delta.message is not None and (is_content or delta.text):
            delta.message = {**delta.message, "content": delta.text}
        delta.tokens += self._held_tokens
        is_left = bool(delta.text) or delta.finish_reason is not None or bool(set(delta.message or {}) - {"content"})
        self._held_tokens = 0 if is_left else delta.tokens
        return is_left

    def _delta(self, choice: Dict[str, Any], timings: Dict[str, Any]) -> Optional[Delta]:
        index = choice["index"]
        delta = Delta(self.first_choice + index, finish_reason=choice["finish_reason"])
        if self._is_chat:
            message = {key: value for key, value in choice["delta"].items() if key != "role" and value is not None}
            delta.text = message.get("content", "")
            if set(message) - {"content"}:
                delta.message = message
        else:
            delta.text = choice["text"]
        if choice.get("logprobs"):
            for entry in choice["logprobs"]["content"]:
                delta.logprob += entry["logprob"]
                delta.logprobs.append(alternatives(entry, self._top_logprobs))
        if not delta.text and delta.finish_reason is None and delta.message is None and not delta.logprobs:
            return None  # progress in reading the prompt, or the start of a message
        before = self._counted.get(index, 0)
        # `predicted_n` is exact. Chunks without it count as one token if they have text; the last chunk has the total.
        total = timings.get("predicted_n") or before + bool(delta.text)
        delta.tokens = total - before
        self._counted[index] = total
        return delta


def _texts(said: Mapping[str, Sequence[str]]) -> List[str]:
    """The texts of one choice that were sent, in the order of their generation."""
    reasoning, content = ("".join(said.get(name, ())) for name in ("reasoning_content", "content"))
    closing = [">"] if reasoning and not content else []  # the end of the tag that follows
    return [*filter(None, (reasoning, content)), *closing]


def alternatives(entry: Dict[str, Any], count: int) -> Dict[int, Dict[str, Any]]:
    """The *count* most likely tokens in place of one by id; the sampled token is the last key."""
    top = entry["top_logprobs"]
    rank = next((place for place, other in enumerate(top, 1) if other["id"] == entry["id"]), len(top) + 1)
    found = {
        other["id"]: {"logprob": other["logprob"], "rank": place, "decoded_token": other["token"]}
        for place, other in enumerate(top[:count], 1)
        if other["id"] != entry["id"]
    }
    found[entry["id"]] = {"logprob": entry["logprob"], "rank": rank, "decoded_token": entry["token"]}
    return found
