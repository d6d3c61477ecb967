"""Writes the pages about error messages: `.venv/bin/python docs/make_errors.py`.

`docs/reference/errors.md` has every message that the host raises deliberately, read from its source: the exceptions of
`naiad.core.errors` and their texts. `docs/how-to/troubleshoot.md` has causes and remedies of messages that users meet,
from `docs/troubleshooting.toml`; each of them has to occur in the source.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from naiad.core import errors
from naiad.core.errors import NaiadError
from naiad.frontends.status import GRPC_STATUS, HTTP_STATUS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).resolve().parent
SOURCES = [DOCS.parent / "platform", DOCS.parent / "stubs", DOCS.parent / "backends"]
CATALOGUE = DOCS / "reference" / "errors.md"
TROUBLESHOOTING = DOCS / "how-to" / "troubleshoot.md"

_CATALOGUE_INTRODUCTION = """\
# Error messages

Written by `docs/make_errors.py` from the source: the messages that the server and the commands raise, by the class of
their exception (`naiad.core.errors`). `...` stands for a value. A message says what failed, the cause with its value
and place, and, after the last semicolon, what to do. Causes and remedies of the most frequent ones:
[troubleshoot](../how-to/troubleshoot.md).

A message of a failed load is in the log, in the repository index and on the page at `/ui`. The status is that of a
response; a message of a command is on stderr.
"""
_TROUBLESHOOTING_INTRODUCTION = """\
# Troubleshoot by message

At the end you know what a message means, and what to do. Search this page for the words of the message without its
names and numbers. Written by `docs/make_errors.py` from `docs/troubleshooting.toml`;
[all messages](../reference/errors.md) are on a page of their own.

Before that, three commands find most causes:

| command | what it prints |
|---|---|
| `naiad doctor REPOSITORY` | what would fail if this machine served the repository, with a remedy for each finding |
| `naiad explain MODEL --model-repository=REPOSITORY` | what runs the model, why, and every path that was tried |
| `naiad run MODEL --input 'NAME=VALUE'` | one request without a server, with the model's own traceback |
"""
_FEWEST_WORDS = 3
"""Texts with fewer words of their own are made of other errors' messages."""
_PARAMETER = "parameter ... of model '...' "
_HELPERS = {
    "parameter_error": ("ParameterError", 1, _PARAMETER),
    "converted": ("ParameterError", 2, f"{_PARAMETER}is '...': give "),
}
"""Methods that make an error: its class, the position of the argument that ends its message, and what comes before."""


class CatalogueError(Exception):
    """An entry of the catalogue is wrong."""


def catalogue() -> str:
    """The page of all messages."""
    by_class: dict[type[NaiadError], set[str]] = defaultdict(set)
    known = {name: found for name, found in vars(errors).items() if _is_error(found)}
    for path in sorted(SOURCES[0].rglob("*.py")):
        for name, text in _raised(_nodes(path), known):
            by_class[known[name]].add(text)
    parts = [_CATALOGUE_INTRODUCTION]
    for kind in sorted(by_class, key=lambda kind: kind.__name__):
        code = kind.default_code
        about = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
        status = f"HTTP {HTTP_STATUS[code]}, gRPC {GRPC_STATUS[code].name}"
        rows = [f"- {_marked(text)}" for text in sorted(by_class[kind])]
        parts.append("\n".join([f"## {kind.__name__}", "", f"{about} Status: {status}.", "", *rows, ""]))
    return "\n".join(parts)


def troubleshooting() -> str:
    """The page of causes and remedies.

    Raises:
        CatalogueError: If a message does not occur in the source, or an entry lacks a part.
    """
    text = (DOCS / "troubleshooting.toml").read_text(encoding="utf-8")
    source = "\n".join(sorted(_texts()))
    parts = [_TROUBLESHOOTING_INTRODUCTION]
    for situation in tomllib.loads(text)["situation"]:
        rows = []
        for entry in situation["message"]:
            missing = {"text", "cause", "remedy"} - entry.keys()
            if missing:
                raise CatalogueError(f"'{entry.get('text')}' has no {' and no '.join(sorted(missing))}")
            for piece in filter(None, (piece.strip() for piece in entry["text"].split("..."))):
                if piece not in source:
                    raise CatalogueError(f"'{piece}' of '{entry['text']}' is in no message of the source")
            rows.append(f"| {_code(entry['text'])} | {entry['cause']} | {entry['remedy']} |")
        parts.append(
            "\n".join([f"## {situation['title']}", "", "| message | cause | remedy |", "|---|---|---|", *rows, ""])
        )
    return "\n".join(parts)


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, NaiadError)


@functools.cache
def _nodes(path: Path) -> list[ast.Call | ast.JoinedStr | ast.Constant]:
    """The calls and texts of a file, which both pages are made from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, (ast.Call, ast.JoinedStr, ast.Constant))]


def _raised(
    nodes: Iterable[ast.Call | ast.JoinedStr | ast.Constant], known: dict[str, type[NaiadError]]
) -> Iterator[tuple[str, str]]:
    """Class and message of each exception of `naiad.core.errors` that is constructed with a text."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        function = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        name, position, start = _HELPERS.get(function, (function, 0, ""))
        if name in known and len(node.args) > position and (start or isinstance(node.func, ast.Name)):
            text = start + _text(node.args[position])
            if len(re.findall(r"[A-Za-z']{2,}", text.replace("...", " "))) >= _FEWEST_WORDS:
                yield name, text


def _texts() -> Iterator[str]:
    """Every text in the sources, with `...` for values."""
    for folder in SOURCES:
        for path in folder.rglob("*.py"):
            for node in _nodes(path):
                if not isinstance(node, ast.Call):
                    yield _text(node)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return " ".join(node.value.split()) if isinstance(node.value, str) else "..."
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
        return " ".join("".join(map(str, parts)).split())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "..."


def _code(text: str) -> str:
    """A message as code in a cell of a table."""
    return _marked(text).replace("|", "\\|")


def _marked(text: str) -> str:
    """A message as code."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    CATALOGUE.write_text(catalogue(), encoding="utf-8")
    TROUBLESHOOTING.write_text(troubleshooting(), encoding="utf-8")
