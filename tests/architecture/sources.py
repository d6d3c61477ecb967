"""The project's Python files as trees, parsed and walked once for all tests of this folder."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOST = ROOT / "platform"
GUEST = ROOT / "stubs"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
        path: Below the repository's root, with slashes.
        text: Its content.
    """

    path: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def module(self) -> str:
        """Its name as it is imported, for files below `platform/` and `stubs/`."""
        parts = Path(self.path).with_suffix("").parts[1:]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @functools.cached_property
    def _nodes(self) -> dict[type[ast.AST], list[ast.AST]]:
        nodes: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        for node in ast.walk(self.tree):
            nodes[type(node)].append(node)
        return dict(nodes)

    def nodes_of(self, kind: type[Node]) -> list[Node]:
        """Every node of exactly this kind, at any depth."""
        return cast("list[Node]", self._nodes.get(kind, []))

    def imports(self) -> tuple[tuple[int, str], ...]:
        """Line and full name of every module it imports, also inside functions."""
        return self._imports

    @functools.cached_property
    def _imports(self) -> tuple[tuple[int, str], ...]:
        return tuple(self._find_imports())

    def _find_imports(self) -> Iterator[tuple[int, str]]:
        for node in (*self.nodes_of(ast.Import), *self.nodes_of(ast.ImportFrom)):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            else:
                assert node.level == 0, f"{self.path}:{node.lineno}: a relative import hides where it leads"
                assert node.module is not None
                yield node.lineno, node.module
                # `from naiad.config import model_config_pb2` imports a module, too.
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)

    def functions(self) -> tuple[tuple[Function, bool], ...]:
        """Every function and method, and whether it is public: reached by names without underscore alone."""
        return self._functions

    @functools.cached_property
    def _functions(self) -> tuple[tuple[Function, bool], ...]:
        return tuple(_functions(self.tree.body, is_public=True))


def _functions(body: list[ast.stmt], *, is_public: bool) -> Iterator[tuple[Function, bool]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, is_public=is_public and not node.name.startswith("_"))
        elif isinstance(node, Function):
            yield node, is_public and not node.name.startswith("_")
            yield from _functions(node.body, is_public=False)
        else:
            for block in ("body", "orelse", "finalbody"):
                yield from _functions(getattr(node, block, []), is_public=is_public)


@functools.cache
def _source(path: Path) -> Source:
    """The file, the same object for all groups of folders that it belongs to."""
    return Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


@functools.cache
def python_files(*folders: Path) -> tuple[Source, ...]:
    """The Python files below some folders, but for those that protoc wrote; scripts without a suffix, too."""
    paths = (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file())
    return tuple(
        _source(path)
        for path in paths
        if not path.name.endswith("_pb2.py")
        and (path.suffix == ".py" or (path.suffix == "" and path.read_bytes().startswith(b"#!/usr/bin/env python")))
    )


def tracked_files() -> list[Path]:
    """What is committed or about to be; skips where there is no git to ask."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]
