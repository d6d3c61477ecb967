"""Parses configurations in protobuf's text format and in JSON.

Errors name file, line and column. For an unknown field or value they also name the nearest valid one, where the
reference only repeats the message of protobuf's parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.json_form import prepare
from naiad.config.model.suggestions import PACKAGE, unknown_field, unknown_value
from naiad.core.errors import ConfigError
from naiad.core.foreign_json import TOO_MANY_DIGITS

_POSITION = re.compile(r"^\d+:\d+ : ")
# protobuf repeats the failing line in quotes; the position is enough.
_QUOTED_LINE = re.compile(r"^'.*': (?=[A-Z])", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "([^"]+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "([\w.]+)" has no value named (\S+?)\.?$')
_NO_MESSAGE = re.compile(r'Expected "[{<]"')
_NO_END = re.compile(r'Expected "}"')
_NO_COMMA = re.compile(r'Expected ","')
_PLACEHOLDER = re.compile(r"\$\{[^{}\s]*\}|\{\{[^{}]*\}\}")  # of the shell and of Helm: `${name}`, `{{ .Values.name }}`
_COMMENT = re.compile(r"#.*")
# Comments and texts, whose brackets do not count, and brackets.
_TOKEN = re.compile(r"""#.*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[][{}]""")
_MARK = "\ufeff"  # byte order mark, with which Windows editors begin a UTF-8 file
_JSON_FIELD = re.compile(r"Failed to parse (\w+) field: ")


def parse_text(text: str, source: str | Path) -> pb.ModelConfig:
    """Parse `config.pbtxt`; errors begin with *source*, and have line, column and what to write instead."""
    message = pb.ModelConfig()
    try:
        text_format.Parse(text.removeprefix(_MARK), message)
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        plain, problem = text.removeprefix(_MARK), str(error)
        hint = _hint_at(plain, line, column) or _missing_brace(plain, line, column, problem) or _clarify_text(problem)
        raise ConfigError(f"{source}:{line}:{column}: {hint}") from error
    except ValueError as error:
        # protobuf's parser does not catch numbers of enum values beyond 32 bits.
        raise ConfigError(f"{source}: {error}") from error
    _reject_nul(message, source)
    return message


def find_placeholder(text: str) -> str:
    """The first placeholder of a template in a text, such as `${max_batch_size}`; empty without one."""
    found = _PLACEHOLDER.search(text)
    return found[0] if found else ""


def find_placeholders(text: str) -> list[str]:
    """The placeholders of a template in a configuration in protobuf's text format, without those in comments."""
    return [found[0] for found in _PLACEHOLDER.finditer(_COMMENT.sub("", text))]


def parse_json(text: str, source: str | Path) -> pb.ModelConfig:
    """Parse a configuration in JSON, as the load API receives it and auto-completion returns it.

    As protobuf's parser in C++, by which the reference reads it, this accepts strings in single quotes, keys without
    quotes and commas before a closing bracket. Unknown fields are errors; names of enum values may be in any case.
    """
    return parse_mapping(decode_json(text, source), source)


def decode_json(text: str, source: str | Path) -> Any:
    """Decode the JSON of a configuration, as `parse_json` does."""
    try:
        return _decode(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: not a model configuration: nested too deeply") from error
    except ValueError as error:  # Python does not convert it, and says how to change its limit
        raise ConfigError(f"{source}: not a model configuration: {TOO_MANY_DIGITS}") from error


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        strict = make_strict(text)
        if strict is None:
            raise
        try:
            return json.loads(strict)
        except json.JSONDecodeError:
            raise error from None  # its position is that of the user's text


def parse_mapping(fields: Mapping[str, Any], source: str | Path) -> pb.ModelConfig:
    """Parse a configuration from decoded JSON."""
    message = pb.ModelConfig()
    try:
        json_format.ParseDict(prepare(fields, pb.ModelConfig.DESCRIPTOR), message)
    except ConfigError as error:
        # A key may have half of a surrogate pair, which cannot be sent as UTF-8.
        problem = error.message.encode("utf-8", "backslashreplace").decode()
        raise ConfigError(f"{source}: {problem}") from error
    except json_format.ParseError as error:
        raise ConfigError(f"{source}: {_clarify_json(str(error))}") from error
    _reject_nul(message, source)
    return message


def _reject_nul(message: Message, source: str | Path) -> None:
    path = _path_to_nul(message)
    if path:
        raise ConfigError(f"{source}: {path} contains a NUL character; remove it")


def _path_to_nul(message: Message) -> str:
    for field, value in message.ListFields():
        entries: Iterable[tuple[str, Any]]
        if isinstance(value, Mapping):
            if any(isinstance(key, str) and "\0" in key for key in value):
                return f"a key of {field.name}"
            entries = ((f"{field.name}[{key}]", each) for key, each in value.items())
        elif isinstance(value, (str, bytes, Message)):
            entries = ((field.name, value),)
        elif isinstance(value, Iterable):
            entries = ((f"{field.name}[{index}]", each) for index, each in enumerate(value))
        else:
            continue
        for path, each in entries:
            if isinstance(each, str) and "\0" in each:
                return path
            inner = _path_to_nul(each) if isinstance(each, Message) else ""
            if inner:
                return f"{path}.{inner}"
    return ""


def _hint_at(text: str, line: int, column: int) -> str:
    """What is wrong at a position where protobuf's parser only says what it expects; empty where that says enough."""
    lines = text.split("\n")
    if not 0 < line <= len(lines):
        return ""
    here = lines[line - 1][column - 1 :]
    if placeholder := _PLACEHOLDER.match(here):
        others = [name for name in dict.fromkeys(find_placeholders(text)) if name != placeholder[0]]
        more = f", and so are {', '.join(others)}" if others else ""
        return f"'{placeholder[0]}' is a placeholder{more}: fill in the template"
    before = _COMMENT.sub("", "\n".join([*lines[: line - 1], lines[line - 1][: column - 1]])).rstrip()
    if before.endswith(",") and here.startswith(("]", ",")):
        return f"the comma before '{here[0]}' is one too many: remove it"
    if before.endswith("[") and here.startswith(","):
        return "a list begins with an element, not with a comma: remove it"
    opened = _open_brackets(text, line, column)
    if here.startswith("}") and not opened:
        return "no '{' is open here: is this '}' one too many?"
    if here.startswith("]") and opened and opened[-1][0] == "{":
        return f"']' ends a list, and the '{{' of line {opened[-1][1]} is still open: is a '}}' missing before it?"
    return ""


def _missing_brace(text: str, line: int, column: int, problem: str) -> str:
    """The error where the text ends in a message, or a message has a field of the whole configuration; else empty."""
    lines = text.split("\n")
    left = _open_brackets(text, len(lines), len(lines[-1]) + 1)
    if not left:
        return ""
    if _NO_END.search(problem):
        return f"the file ends, and the '{{' of line {left[-1][1]} is still open: add a '}}'"
    match = _UNKNOWN_FIELD.search(problem)
    opened = _open_brackets(text, line, column)
    if match is None or match[2] not in pb.ModelConfig.DESCRIPTOR.fields_by_name or not opened:
        return ""
    place = match[1].removeprefix(PACKAGE)
    return (
        f"{place} has no field '{match[2]}', but the configuration has: is a '}}' missing before it? The "
        f"'{opened[-1][0]}' of line {opened[-1][1]} is still open"
    )


def _open_brackets(text: str, line: int, column: int) -> list[tuple[str, int]]:
    """The brackets that are open at a position, outermost first, each with its line."""
    lines = text.split("\n")
    before = "\n".join([*lines[: line - 1], lines[line - 1][: column - 1]])
    opened: list[tuple[str, int]] = []
    for token in _TOKEN.finditer(before):
        if token[0] in "{[":
            opened.append((token[0], before.count("\n", 0, token.start()) + 1))
        elif token[0] in "}]" and opened:
            opened.pop()
    return opened


def _clarify_text(problem: str) -> str:
    problem = _QUOTED_LINE.sub("", _POSITION.sub("", problem))
    if match := _UNKNOWN_FIELD.search(problem):
        return unknown_field(pb.DESCRIPTOR.pool.FindMessageTypeByName(match[1]), match[2])
    if match := _UNKNOWN_VALUE.search(problem):
        return unknown_value(pb.DESCRIPTOR.pool.FindEnumTypeByName(match[1]), match[2])
    if _NO_MESSAGE.match(problem):
        problem += ' What this field holds goes in braces: parameters { key: "k" value { string_value: "v" } }'
    if _NO_COMMA.match(problem):
        problem = "the elements of a list are separated by commas, and the list ends with ]: put one of them here"
    return problem.replace(PACKAGE, "")


def _clarify_json(problem: str) -> str:
    path = ".".join(_JSON_FIELD.findall(problem))
    reason = _JSON_FIELD.sub("", problem).replace(PACKAGE, "").rstrip(".")
    return f"{path}: {reason}" if path else reason


_JSON_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<double>"(?:[^"\\]|\\.)*")
    |'(?P<single>(?:[^'\\]|\\.)*)'
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<number>-?[0-9][0-9.eE+-]*)
    |(?P<mark>[{}\[\]:,])""",
    re.VERBOSE | re.DOTALL,
)


def make_strict(text: str) -> str | None:
    """The lenient JSON of protobuf's parser in C++ as JSON; None if *text* has a character that begins no token.

    Strings in single quotes and keys without quotes get double quotes; a comma after a value and before a closing
    bracket is left out. Whether the result is JSON is for its parser to say.
    """
    words: list[str] = []
    position = 0
    while position < len(text):
        match = _JSON_TOKEN.match(text, position)
        if match is None:
            return None
        position = match.end()
        if match.lastgroup != "space":
            _add_word(words, match)
    return "".join(words)


def _add_word(words: list[str], match: re.Match[str]) -> None:
    word = match.group()
    if match.lastgroup == "single":
        word = _double_quoted(match["single"])
    elif word in {"}", "]"} and len(words) > 1 and words[-1] == "," and words[-2] not in {"{", "[", ",", ":"}:
        words.pop()
    elif word == ":" and words and (words[-1][0].isalpha() or words[-1][0] in "_$"):
        words[-1] = json.dumps(words[-1])
    words.append(word)


def _double_quoted(content: str) -> str:
    """The content of a string in single quotes, in double quotes; its escapes stay, except that of a single quote."""
    # Escapes and what is between them: a quote of an escape needs no other one.
    parts = re.findall(r"\\.|[^\\]+", content, flags=re.DOTALL)
    inner = ("'" if part == "\\'" else part if part[0] == "\\" else part.replace('"', '\\"') for part in parts)
    return f'"{"".join(inner)}"'
