"""Finds a function's source without importing it, and the files that the model needs to import it."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path, PurePath

from naiad.core.errors import ScaffoldError


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """The source of a function."""

    module: str
    function: ast.FunctionDef
    tree: ast.Module
    path: Path
    # Contents of the files to copy beside the model's code, by path there; empty for an installed module.
    files: dict[str, bytes]


def find_function(named: str, search: Sequence[str]) -> FunctionSource:
    """The source of `package.module:function`; ScaffoldError if it is missing, or one call cannot serve a request."""
    module, colon, name = named.partition(":")
    if not (colon and _is_name(module, name)):
        raise ScaffoldError(
            f"cannot read --from '{named}': expected package.module:function{_right_form(module, name)}"
        )
    path = _source_of(module, search)
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise ScaffoldError(f"cannot read module '{module}' from {path}: {error}") from error
    return FunctionSource(
        module=module,
        function=_function(tree, name, module, path),
        tree=tree,
        path=path,
        files=_copied_files(module, path),
    )


def _is_name(module: str, function: str) -> bool:
    is_module = all(part.isidentifier() for part in module.split(".")) and not module.endswith(".py")
    return is_module and function.isidentifier()


def _right_form(module: str, name: str) -> str:
    """What to write in place of the path of a file, a call or a method."""
    module = ".".join(PurePath(module.removesuffix(".py")).parts)
    function = name.removesuffix("()") or "FUNCTION"
    if _is_name(module, function):
        return f", such as {module}:{function}"
    return ", with a function at the top level of a module that can be imported here"


def _source_of(module: str, search: Sequence[str]) -> Path:
    places: Sequence[str] | None = search
    origin: str | None = None
    for depth, part in enumerate(module.split("."), 1):
        prefix = ".".join(module.split(".")[:depth])
        # `importlib.util.find_spec` would import the parent packages; PathFinder imports nothing.
        spec = PathFinder.find_spec(prefix, places) if places else None
        if spec is None:
            where = ", ".join(place or "." for place in places or search)
            raise ScaffoldError(
                f"cannot find module '{prefix}': no '{part}' in {where}; run the command in the module's folder"
            )
        places, origin = spec.submodule_search_locations, spec.origin
    if origin is None or not origin.endswith(".py"):
        raise ScaffoldError(
            f"cannot read module '{module}': {origin or 'a folder without __init__.py'} is not Python source"
        )
    return Path(origin)


def _function(tree: ast.Module, name: str, module: str, path: Path) -> ast.FunctionDef:
    for node in tree.body:
        match node:
            case ast.FunctionDef() if node.name == name:
                if any(isinstance(inside, ast.Yield | ast.YieldFrom) for inside in ast.walk(node)):
                    raise ScaffoldError(
                        f"cannot serve {path}:{node.lineno}: '{name}' is a generator, and a request has one response; "
                        "return a list, or see examples/decoupled_repeat"
                    )
                return node
            case ast.AsyncFunctionDef() if node.name == name:
                raise ScaffoldError(
                    f"cannot serve {path}:{node.lineno}: '{name}' is async; name a plain function that calls it"
                )
            case ast.ClassDef() if node.name == name:
                raise ScaffoldError(
                    f"cannot serve {path}:{node.lineno}: '{name}' is a class; name a function that uses it"
                )
            case ast.ImportFrom(module=str(origin), level=0) if any((a.asname or a.name) == name for a in node.names):
                raise ScaffoldError(
                    f"cannot serve {path}:{node.lineno}: '{name}' is imported there; name it as {origin}:{name}"
                )
            case _:
                continue
    known = ", ".join(node.name for node in tree.body if isinstance(node, ast.FunctionDef)) or "none"
    raise ScaffoldError(f"cannot find function '{name}' in module '{module}' ({path}); its functions are: {known}")


def _copied_files(module: str, path: Path) -> dict[str, bytes]:
    """The files of the module, and of the modules beside it that it imports; none for an installed module."""
    if _is_installed(path):
        return {}
    root = path.parents[module.count(".") + (path.name == "__init__.py")]
    copied: dict[str, bytes] = {}
    pending, seen = [module.split(".", maxsplit=1)[0]], set[str]()
    while pending:
        top = pending.pop()
        if top in seen:
            continue
        seen.add(top)
        for file in _files_of(root, top):
            copied[str(file.relative_to(root))] = file.read_bytes()
            if file.suffix == ".py":
                pending += _imported(file)
    return dict(sorted(copied.items()))


def _files_of(root: Path, top: str) -> Iterator[Path]:
    module, package = root / f"{top}.py", root / top
    if module.is_file():
        yield module
    elif (package / "__init__.py").is_file():
        yield from (file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def _imported(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def _is_installed(path: Path) -> bool:
    standard = [Path(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return (
        any(part in {"site-packages", "dist-packages"} for part in path.parts)
        or any(path.is_relative_to(folder) for folder in standard)
        or path.is_relative_to(Path(sys.prefix))
    )
