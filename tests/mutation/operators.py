"""The mutants of a source file: each differs from it in one place inside a function.

Constants and tables of modules and classes are left out: modules that import them have them before a mutant is made.
So are annotations, texts of errors, log lines, assertions and `__repr__`: tests rightly do not depend on them.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

CodeKey = tuple[str, str, int]
"""A function's file, name and first line, which its code object has, too."""


class Source:
    """A source file, parsed.

    Attributes:
        path: Where it is.
        name: Its path for people.
    """

    def __init__(self, path: Path, name: str, text: str) -> None:
        self.path = path
        self.name = name
        self._tree = ast.parse(text)
        self._parents = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def functions(self) -> dict[CodeKey, CodeType]:
        """The code of all its functions."""
        return _functions_in(self.compiled(self._tree))

    def mutants(self) -> list[Mutant]:
        """All mutants, in the order of the file."""
        found = []
        for index, node in enumerate(ast.walk(self._tree)):
            functions = [each for each in self._above(node) if isinstance(each, _FUNCTIONS)]
            change = _change_of(node) if functions and not self._is_left_out(node) else None
            if change is not None:
                named = [each for each in self._above(node) if isinstance(each, (*_FUNCTIONS, ast.ClassDef))]
                name = ".".join(each.name for each in reversed(named))
                keys = tuple(self._key(each) for each in functions)
                before, after = self._shown(node)
                line: int = node.lineno  # type: ignore[attr-defined] # statements and expressions have one
                found.append(Mutant(self, index, name, keys, line, before, after))
        return sorted(found, key=lambda each: (each.line, each.index))

    def code_of(self, mutant: Mutant) -> dict[CodeKey, CodeType]:
        """The code of the functions that a mutant changes: the one it is in, and those around it."""
        made = self._mutated(mutant, {})
        # A function's code can replace another's only if both refer to the same variables of functions around them.
        lost = {
            key: tuple(sorted(set(self.functions[key].co_freevars) - set(made[key].co_freevars)))
            for key in mutant.functions
        }
        if any(lost.values()):
            made = self._mutated(mutant, lost)
        return {key: made[key] for key in mutant.functions}

    def _shown(self, node: ast.AST) -> tuple[str, str]:
        """A changed node's source, before and after; of a constant the expression around it, which says more."""
        around = self._parents[node] if isinstance(node, ast.Constant) else node
        index = list(ast.walk(around)).index(node)
        changed = ast.Module([copy.deepcopy(around)], [])  # type: ignore[list-item] # replaced like a statement
        found = list(ast.walk(changed))[index + 1]
        change = _change_of(found)
        assert change is not None
        _replace(changed, found, change(found))
        return _short(around), _short(changed.body[0])

    def compiled(self, tree: ast.Module) -> CodeType:
        """The code of the module."""
        return compile(tree, str(self.path), "exec", dont_inherit=True)

    def _mutated(self, mutant: Mutant, mentioned: dict[CodeKey, tuple[str, ...]]) -> dict[CodeKey, CodeType]:
        """The functions' code, with names *mentioned* by functions in code that never runs."""
        tree = copy.deepcopy(self._tree)
        nodes = list(ast.walk(tree))
        node = nodes[mutant.index]
        change = _change_of(node)
        assert change is not None
        _replace(tree, node, change(node))
        for each in nodes:
            names = mentioned.get(self._key(each), ()) if isinstance(each, _FUNCTIONS) else ()
            if names:
                each.body.append(ast.parse(f"if 0: {', '.join(names)}").body[0])  # type: ignore[attr-defined] # a function
        return _functions_in(self.compiled(ast.fix_missing_locations(tree)))

    def _key(self, function: ast.AST) -> CodeKey:
        assert isinstance(function, _FUNCTIONS)
        first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        return str(self.path), function.name, first

    def _above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self._parents:
            node = self._parents[node]
            yield node

    def _is_left_out(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Assert) or _is_logged(node):
            return True
        below = node
        for above in self._above(node):
            if isinstance(above, _FUNCTIONS) and (above.name == "__repr__" or below not in above.body):
                return True
            if isinstance(above, ast.AnnAssign) and below is above.annotation:
                return True
            if isinstance(above, ast.keyword) and above.arg == "strict":  # of `zip`: an assertion
                return True
            if isinstance(above, (ast.Assert, ast.JoinedStr)) or _is_logged(above):
                return True
            below = above
        return False


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        source: The file.
        index: The changed node's position among all of the tree.
        function: The qualified name of the function that it is in.
        functions: That function and those around it.
        line: Its line.
        before: What is there.
        after: What the mutant has instead.
    """

    source: Source
    index: int
    function: str
    functions: tuple[CodeKey, ...]
    line: int
    before: str
    after: str

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What tells it from other mutants while lines move: file, function, before and after."""
        return self.source.name, self.function, self.before, self.after

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line} {self.function}: {self.before}  ->  {self.after}"


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """*count* of the mutants, all for 0, in their order; the same ones for the same seed."""
    if not 0 < count < len(mutants):
        return list(mutants)
    return [mutants[index] for index in sorted(random.Random(seed).sample(range(len(mutants)), count))]


def _change_of(node: ast.AST):
    """What changes a node into that of a mutant; None if nothing does."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        return _compare_otherwise
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _ARITHMETIC and not _is_text(node):
        return _calculate_otherwise
    if isinstance(node, ast.BoolOp):
        return _swap_and_or
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return lambda found: found.operand
    if isinstance(node, ast.Constant) and type(node.value) in {int, float, bool}:
        return _next_constant
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        return _call_otherwise
    if isinstance(node, (ast.If, ast.IfExp, ast.While)) and isinstance(
        node.test, (ast.Name, ast.Attribute, ast.Call, ast.NamedExpr, ast.Subscript, ast.Await)
    ):
        return _negate_condition
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        return _return_none
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        return _drop
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript)):
        return _drop
    if isinstance(node, ast.Delete):
        return _drop
    return None


def _compare_otherwise(node: ast.Compare) -> ast.AST:
    node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    return node


def _calculate_otherwise(node: ast.BinOp | ast.AugAssign) -> ast.AST:
    node.op = _ARITHMETIC[type(node.op)]()
    return node


def _swap_and_or(node: ast.BoolOp) -> ast.AST:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return node


def _next_constant(node: ast.Constant) -> ast.AST:
    assert isinstance(node.value, (int, float))
    node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    return node


def _call_otherwise(node: ast.Call) -> ast.AST:
    assert isinstance(node.func, ast.Name)
    node.func.id = _CALLS[node.func.id]
    return node


def _negate_condition(node: ast.If | ast.IfExp | ast.While) -> ast.AST:
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return node


def _return_none(node: ast.Return) -> ast.AST:
    node.value = ast.Constant(None)
    return node


def _drop(node: ast.stmt) -> ast.AST:
    return ast.copy_location(ast.Pass(), node)


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether this joins or formats a text: such a mutant fails wherever it runs."""
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, (str, bytes)))
        for part in parts
    )


def _is_logged(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in {"logger", "_logger"}
    )


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    if old is new:
        return
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if value is old:
                setattr(node, field, new)
            elif isinstance(value, list):
                value[:] = [new if each is old else each for each in value]


def _short(node: ast.AST) -> str:
    """The first line of a node's source, no longer than a line of a terminal."""
    return ast.unparse(node).splitlines()[0][:110]


def _functions_in(code: CodeType) -> dict[CodeKey, CodeType]:
    found = {}
    waiting = [code]
    while waiting:
        for each in waiting.pop().co_consts:
            if isinstance(each, CodeType):
                waiting.append(each)
                found[each.co_filename, each.co_name, each.co_firstlineno] = each
    return found
