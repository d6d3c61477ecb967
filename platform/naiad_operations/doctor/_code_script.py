"""A script that a model's interpreter runs; it reads the model's code and prints one line of JSON.

It parses the code and resolves its imports; it runs neither. It must run on Python 3.8. The text of this file is passed
with `-c`; it is a file so that linters and tests see it.
"""

# ruff: noqa: T201, PTH100, PTH112, PTH113, PTH118, PTH120, UP006, UP031, UP035, UP045
# PTH: pathlib would be imported for this alone, once for each version of each model. UP: for Python 3.8.
# T201: printing is how the script reports.

import ast
import difflib
import importlib.machinery
import importlib.util
import json
import os
import pkgutil
import sys
import tokenize
import warnings
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

MARK = "naiad-doctor:"
CLASS = "TritonPythonModel"
REQUIRED, OPTIONAL, DEFERRED = "required", "optional", "deferred"
ELSEWHERE = "elsewhere"
IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
ARGUMENTS = {"execute": ("self", "requests"), "initialize": ("self", "args"), "finalize": ("self",)}
READS_INPUT, TENSOR, REQUEST, RESPONSE = "get_input_tensor_by_name", "Tensor", "InferenceRequest", "InferenceResponse"
# Functions of numpy that create an array, and the position of their `dtype`.
CREATES = {"array": 1, "asarray": 1, "zeros": 1, "ones": 1, "empty": 1, "full": 2}
ALIASES = {"bool": "bool_", "int": "int64", "float": "float64", "object": "object_", "str": "str_", "bytes": "bytes_"}
OLDER_DIALECT = "triton_python_backend."
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class CodeReader:
    """Collects problems and missing imports of a model's code, and of the modules beside it that it imports."""

    def __init__(self, folders: List[str], known: List[str], *, is_package: bool) -> None:
        self.folders = [os.path.abspath(folder) for folder in folders]
        self.known = set(known)
        self.is_package = is_package
        self.problems: List[Dict[str, Any]] = []
        self.missing: List[Dict[str, Any]] = []
        self.tensors: List[Dict[str, Any]] = []
        self.calls_models = False
        self.seen: Set[str] = set()
        self.pending: List[str] = []

    def read(self, main: str) -> None:
        tree = self._parse(main)
        if tree is not None:
            self._check_class(main, tree)
            self._imports(main, tree)
            self._find_tensors(main, tree)
        while self.pending:
            path = self.pending.pop()
            tree = self._parse(path)
            if tree is not None:
                self._imports(path, tree)
                self._find_tensors(path, tree)

    def _parse(self, path: str) -> Optional[ast.Module]:
        self.seen.add(path)
        try:
            with tokenize.open(path) as file:
                text = file.read()
            tree = ast.parse(text, path)
            compile(tree, path, "exec")
        except SyntaxError as error:
            self._add_problem("syntax", path, error.lineno or 0, error.msg)
        except (OSError, UnicodeDecodeError, ValueError) as error:
            self._add_problem("unreadable-code", path, 0, str(error))
        else:
            return tree
        return None

    def _add_problem(self, code: str, path: str, line: int, message: str) -> None:
        self.problems.append({"code": code, "file": path, "line": line, "message": message})

    # -- the class ------------------------------------------------------------------------------------------------

    def _check_class(self, path: str, tree: ast.Module) -> None:
        classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        model = classes.get(CLASS)
        if model is None:
            if CLASS not in set(bound_names(tree)) and "*" not in set(bound_names(tree)):
                self._add_problem("no-class", path, 0, "it defines no class " + CLASS)
            return
        methods = methods_of(model, classes)
        if methods is None:
            return  # a base class or decorator of another module may define any method
        if "execute" not in methods:
            self._add_problem("no-execute", path, model.lineno, CLASS + " has no method execute(self, requests)")
        for name, wanted in ARGUMENTS.items() if OLDER_DIALECT not in text_of_imports(tree) else ():
            method = methods.get(name)
            if isinstance(method, Function):
                self._check_method(path, method, wanted)

    def _check_method(self, path: str, method: Any, wanted: Tuple[str, ...]) -> None:
        if not method.decorator_list and not accepts_positional(method.args, len(wanted)):
            signature = "%s(%s)" % (method.name, ", ".join(wanted))
            self._add_problem("arguments", path, method.lineno, "%s cannot be called as %s" % (method.name, signature))
        if method.name == "execute" and any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(method)):
            self._add_problem(
                "generator",
                path,
                method.lineno,
                "execute contains yield, so calling it returns a generator and runs nothing",
            )

    # -- tensors --------------------------------------------------------------------------------------------------

    def _find_tensors(self, path: str, tree: ast.Module) -> None:
        """Note the names of tensors that are written as literals: inputs that the code reads, tensors that it makes."""
        in_responses: Set[int] = set()
        for node in ast.walk(tree):
            called = called_name(node)
            if called == REQUEST:
                self.calls_models = True
            elif called == RESPONSE:
                in_responses.update(map(id, ast.walk(node)))
        for scope in scopes_of(tree):
            assigned = single_assignments(scope)
            for node in own_nodes(scope):
                called = called_name(node)
                if called == READS_INPUT:
                    kind, position = "input", 1
                elif called == TENSOR or is_from_dlpack(node):
                    kind, position = "response" if id(node) in in_responses else "tensor", 0
                else:
                    continue
                name = argument(node, position, "name")
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    array = argument(node, 1, "array") if called == TENSOR else None
                    self.tensors.append(
                        {
                            "kind": kind,
                            "name": name.value,
                            "dtype": dtype_of(array, assigned),
                            "file": path,
                            "line": node.lineno,  # type: ignore[attr-defined] # a call has it
                        }
                    )

    # -- imports --------------------------------------------------------------------------------------------------

    def _imports(self, path: str, tree: ast.Module) -> None:
        # The folders are known only when the code runs, so a module that is missing here may be found then.
        changes_path = any(map(is_change_of_path, ast.walk(tree)))
        for node, kind in imports_in(tree, ELSEWHERE if changes_path else REQUIRED):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(path, node.lineno, kind, alias.name, [])
            elif isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names]
                if node.level:
                    self._import_relative(path, node, kind, names)
                else:
                    self._import(path, node.lineno, kind, node.module or "", names)

    def _import_relative(self, path: str, node: ast.ImportFrom, kind: str, names: List[str]) -> None:
        if not self.is_package and os.path.dirname(path) in self.folders:
            text = "a module of a shared backend is not in a package: 'from .%s import' fails" % (node.module or "")
            self._add_problem("relative-import", path, node.lineno, text)
            return
        folder = os.path.dirname(path)
        for _ in range(node.level - 1):
            folder = os.path.dirname(folder)
        for name in [node.module] if node.module else names:
            where = os.path.join(folder, *name.split("."))
            found = [each for each in (where + ".py", os.path.join(where, "__init__.py")) if os.path.isfile(each)]
            if found:
                self._follow(found[0])
            elif node.module and not os.path.isdir(where) and not is_compiled(folder, name):
                self._add_missing(path, node.lineno, kind, "." * node.level + name, where + ".py")

    def _import(self, path: str, line: int, kind: str, module: str, names: List[str]) -> None:
        top = module.partition(".")[0]
        if top in self.known or top in sys.builtin_module_names:
            return
        package = None
        for name, spec in specs_of(module):
            if spec is None:
                # A package may add modules while it is imported, as `six.moves`; a namespace package cannot.
                if package is None:
                    self._add_missing(path, line, kind, module, "")
                elif package.origin is None:
                    self._add_missing(path, line, kind, name, "")
                return
            self._follow(spec.origin)
            package = spec
        if package is not None and package.submodule_search_locations is not None:
            for each in names:
                inner = importlib.machinery.PathFinder.find_spec(
                    module + "." + each, package.submodule_search_locations
                )
                if inner is not None:
                    self._follow(inner.origin)

    def _follow(self, origin: Optional[str]) -> None:
        if origin is None or not origin.endswith(".py") or origin in self.seen:
            return
        if any(os.path.abspath(origin).startswith(folder + os.sep) for folder in self.folders):
            self.seen.add(origin)
            self.pending.append(origin)

    def _add_missing(self, path: str, line: int, kind: str, name: str, wanted: str) -> None:
        top = name.partition(".")[0]
        near = difflib.get_close_matches(top, [each.name for each in pkgutil.iter_modules(sys.path)], n=5, cutoff=0.75)
        near.sort(key=lambda each: each[0] != top[0])  # people rarely mistype the first letter
        self.missing.append(
            {"file": path, "line": line, "kind": kind, "name": name, "wanted": wanted, "near": near[0] if near else ""}
        )


def find_spec(top: str) -> Optional[importlib.machinery.ModuleSpec]:
    """The spec of a top-level module, without importing it; None if it does not exist."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None


def specs_of(module: str) -> Iterator[Tuple[str, Optional[importlib.machinery.ModuleSpec]]]:
    """Name and spec of each package of a module, and of itself, without an import; the last spec is None if missing.

    A module that is not a package is the last: what an attribute of it has cannot be told.
    """
    name, _, rest = module.partition(".")
    spec = find_spec(name)
    yield name, spec
    parts = rest.split(".") if rest else []
    while spec is not None and spec.submodule_search_locations is not None and parts:
        name += "." + parts.pop(0)
        spec = importlib.machinery.PathFinder.find_spec(name, spec.submodule_search_locations)
        yield name, spec


def is_compiled(folder: str, name: str) -> bool:
    """Whether a folder has a compiled module of this name."""
    return any(os.path.isfile(os.path.join(folder, name + end)) for end in importlib.machinery.EXTENSION_SUFFIXES)


def is_change_of_path(node: ast.AST) -> bool:
    """Whether a node changes `sys.path`: a call of one of its methods, or an assignment."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and is_path(node.func.value)
    if isinstance(node, ast.Assign):
        return any(is_path(target.value if isinstance(target, ast.Subscript) else target) for target in node.targets)
    return isinstance(node, ast.AugAssign) and is_path(node.target)


def is_path(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "path"
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    )


def imports_in(node: ast.AST, kind: str) -> Iterator[Tuple[ast.AST, str]]:
    """All imports below a node, each with its kind.

    The kind is REQUIRED if a failure makes the import of the module fail, DEFERRED inside a function, and OPTIONAL
    where the code handles the failure or has an `if` around the import.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, kind
        elif isinstance(child, (*Function, ast.Lambda)):
            yield from imports_in(child, DEFERRED if kind == REQUIRED else kind)
        elif isinstance(child, ast.If):
            if "TYPE_CHECKING" not in ast.dump(child.test):
                yield from imports_in(child, OPTIONAL)
        elif isinstance(child, ast.Try):
            yield from imports_in(child, OPTIONAL if any(map(catches, child.handlers)) else kind)
        elif isinstance(child, ast.With) and any("suppress" in ast.dump(item) for item in child.items):
            yield from imports_in(child, OPTIONAL)
        else:
            yield from imports_in(child, kind)


def catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(name, ast.Name) and name.id in IMPORT_ERRORS for name in names)


def text_of_imports(tree: ast.Module) -> str:
    """The modules that a file imports, each followed by a dot, separated by spaces."""
    return " ".join(
        [node.module + "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        + [alias.name + "." for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    )


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Names that a module binds, other than by classes; `*` for `from x import *`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, Function):
            yield node.name


def methods_of(model: ast.ClassDef, classes: Dict[str, ast.ClassDef]) -> Optional[Dict[str, ast.AST]]:
    """The attributes of a class and its bases, by name; None if the file does not show all of them."""
    if model.decorator_list or model.keywords:
        return None
    found: Dict[str, ast.AST] = {}
    for base in reversed(model.bases):
        if isinstance(base, ast.Name) and base.id == "object":
            continue
        inherited = (
            methods_of(classes[base.id], classes)
            if isinstance(base, ast.Name) and base.id in classes and base.id != model.name
            else None
        )
        if inherited is None:
            return None
        found.update(inherited)
    for node in own_nodes(model):
        if isinstance(node, Function):
            found[node.name] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = node
    return found


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below a node, without those inside nested functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*Function, ast.ClassDef, ast.Lambda)):
            yield from own_nodes(child)


def called_name(node: ast.AST) -> str:
    """The last part of the name of the function that a node calls, such as `Tensor`; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_from_dlpack(node: ast.AST) -> bool:
    """Whether a node calls `Tensor.from_dlpack`."""
    return called_name(node) == "from_dlpack" and TENSOR in ast.dump(node.func)  # type: ignore[attr-defined] # a call


def argument(node: Any, position: int, name: str) -> Optional[ast.AST]:
    """An argument of a call by its position or its name; None if the call does not show it."""
    for each in node.keywords:
        if each.arg == name:
            return each.value  # type: ignore[no-any-return] # an expression
    arguments = node.args[: position + 1]
    if len(arguments) <= position or any(isinstance(each, ast.Starred) for each in arguments):
        return None
    return arguments[position]  # type: ignore[no-any-return] # an expression


def scopes_of(tree: ast.Module) -> Iterator[ast.AST]:
    """The module, and each function and class in it; `own_nodes` has the nodes of each."""
    return (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *Function, ast.ClassDef, ast.Lambda)))


def single_assignments(scope: ast.AST) -> Dict[str, ast.AST]:
    """What the local names of a scope are bound to that are bound there once, by a plain assignment."""
    counts: Dict[str, int] = {}
    found = {}
    for node in own_nodes(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] = counts.get(node.id, 0) + 1
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return {name: value for name, value in found.items() if counts[name] == 1}


def dtype_of(array: Optional[ast.AST], assigned: Dict[str, ast.AST]) -> str:
    """The name of numpy's type of an array whose expression says it; empty for any other."""
    if isinstance(array, ast.Name):
        array = assigned.get(array.id)
    if not isinstance(array, ast.Call) or not isinstance(array.func, ast.Attribute):
        return ""
    method = array.func.attr
    if method == "astype":
        return dtype_name(argument(array, 0, "dtype"))
    is_numpy = isinstance(array.func.value, ast.Name) and array.func.value.id in ("np", "numpy")
    return dtype_name(argument(array, CREATES[method], "dtype")) if is_numpy and method in CREATES else ""


def dtype_name(node: Optional[ast.AST]) -> str:
    """The name of a type that is written as `np.float32`, `"float32"` or `float`; empty for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy"):
        return ALIASES.get(node.attr, node.attr)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ALIASES.get(node.value, node.value)
    return ALIASES.get(node.id, "") if isinstance(node, ast.Name) else ""


def accepts_positional(args: ast.arguments, count: int) -> bool:
    """Whether a function can be called with this number of positional arguments."""
    positional = len(args.posonlyargs) + len(args.args)
    needed_by_name = sum(default is None for default in args.kw_defaults)
    return positional - len(args.defaults) <= count <= (1000 if args.vararg else positional) and not needed_by_name


def main() -> None:
    request = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    # They are imported before the model's folders are known.
    absent = [name for name in request["modules"] if any(spec is None for _, spec in specs_of(name))]
    # Folders that the guest imports from besides; their modules are not examined, since there may be very many.
    sys.path += request["searched"]
    sys.path += request["folders"]  # as the guest does: the environment's own modules come first
    reader = CodeReader(request["folders"], request["known"], is_package=request["is_package"])
    reader.read(request["file"])
    report = {"problems": reader.problems, "missing": reader.missing, "absent": absent}
    # A tensor outside of a response may be an input of a model that this one calls.
    kinds = ("input", "response") if reader.calls_models else ("input", "response", "tensor")
    report["tensors"] = [each for each in reader.tensors if each["kind"] in kinds]
    print(MARK + json.dumps(report))


main()
