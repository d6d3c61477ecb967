"""One parser, `marks`: a call is JSON between `<call>` and `</call>`; its arguments are held back by one character."""

import json
from types import MappingProxyType, SimpleNamespace

BEGIN, END = "<call>", "</call>"


class Plain(SimpleNamespace):
    def model_dump(self, exclude_none=False):
        return {name: value for name, value in vars(self).items() if value is not None or not exclude_none}


class MarksToolParser:
    def __init__(self, tokenizer, tools=None):
        assert tools, "a parser of recent releases gets the tools"
        self.sent = self.told = 0
        self.arguments = ""

    def adjust_request(self, request):
        request.skip_special_tokens = False
        return request

    def extract_tool_calls(self, text, request):
        before, mark, rest = text.partition(BEGIN)
        if not mark:
            return SimpleNamespace(tools_called=False, tool_calls=[], content=text)
        calls = [json.loads(part.partition(END)[0]) for part in rest.split(BEGIN)]
        made = [
            Plain(id=f"call-{number}", type="function", function={**call, "arguments": json.dumps(call["arguments"])})
            for number, call in enumerate(calls)
        ]
        return SimpleNamespace(tools_called=True, tool_calls=made, content=before or None)

    def extract_tool_calls_streaming(self, previous, current, delta, previous_ids, current_ids, delta_ids, request):
        assert previous + delta == current
        assert [*previous_ids, *delta_ids] == [*current_ids]
        before, mark, rest = current.partition(BEGIN)
        content, self.sent = before[self.sent :], len(before)
        calls = []
        if mark and END in rest and not self.told:
            call = json.loads(rest.partition(END)[0])
            self.told = 1
            calls.append(Plain(index=0, id="call-0", type="function", function={"name": call["name"]}))
            self.arguments = json.dumps(call["arguments"])
            calls.append(Plain(index=0, id=None, type=None, function={"arguments": self.arguments[:-1]}))
        return SimpleNamespace(content=content or None, tool_calls=calls) if content or calls else None

    def get_remaining_unstreamed_args(self):
        return self.arguments[-1:]


class ToolParserManager:
    tool_parsers = MappingProxyType({})
    lazy_parsers = MappingProxyType({"marks": ("vllm.tool_parsers", "MarksToolParser")})

    @classmethod
    def get_tool_parser(cls, name):
        if name not in cls.lazy_parsers:
            raise KeyError(f"Tool parser '{name}' not found.")
        return MarksToolParser
