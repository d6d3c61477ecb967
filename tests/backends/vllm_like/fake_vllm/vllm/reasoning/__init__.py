"""One parser, `thoughts`: everything up to the word `</think>` is reasoning."""

from types import MappingProxyType, SimpleNamespace

END = "</think>"


class ThoughtsParser:
    def __init__(self, tokenizer, *args, **kwargs):
        assert "chat_template_kwargs" in kwargs, "a parser of recent releases gets the template's options"
        self.tokenizer = tokenizer

    def end_token(self):
        return self.tokenizer.encode(END)[0]

    def is_reasoning_end(self, ids):
        return self.end_token() in ids

    def extract_content_ids(self, ids):
        end = self.end_token()
        return ids[ids.index(end) + 1 :] if end in ids else []

    def extract_reasoning(self, text, request):
        assert request.messages
        reasoning, mark, content = text.partition(END)
        return reasoning, content if mark else None

    def extract_reasoning_streaming(self, previous, current, delta, previous_ids, current_ids, delta_ids):
        assert previous + delta == current
        if END in delta:
            return None
        return SimpleNamespace(reasoning=delta, content=None)


class ReasoningParserManager:
    reasoning_parsers = MappingProxyType({})
    lazy_parsers = MappingProxyType({"thoughts": ("vllm.reasoning", "ThoughtsParser")})

    @classmethod
    def get_reasoning_parser(cls, name):
        if name not in cls.lazy_parsers:
            raise KeyError(f"Reasoning parser '{name}' not found.")
        return ThoughtsParser
