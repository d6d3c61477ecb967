"""The rules of the project's structure, as functions: each maps sources or texts to its violations, `place: what`.

The tests of this folder apply them to the tree and expect no violation. `test_rules_can_fail.py` applies each to a small
example that violates it: a rule that cannot fail protects nothing.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import StringIO
from itertools import pairwise
from pathlib import Path

from architecture.sources import Function, Source

# -- layers -----------------------------------------------------------------------------------------------------------

ALIASES = ("tritonfrontend", "tritonserver")
"""Modules beside the package, which give its in-process API the names of Triton's packages."""

EXTENSIONS = ("naiad_building", "naiad_embedded", "naiad_llm", "naiad_operations")
"""Packages beside `naiad`, which a server does not need."""

PUBLIC_NAMES = ("testing", "ray", "_api", "_c")
"""Modules of `naiad` that give what is in such a package its public name."""

ROOMS = (
    "core",
    "protocol",
    "config",
    "sources",
    "environments",
    "models",
    "guests",
    "engine",
    "frontends",
    "server",
    "cli",
)
"""The packages in `naiad`, each of which imports only those before it."""

LAYERS = (
    # Every layer may import these. `naiad` itself has the version.
    {"naiad", "core"},
    # Below `config`: tensors of a configuration have datatypes of the protocol.
    {"protocol"},
    {"config"},
    {"engine.scheduling", "engine.lifecycle", "models.polling"},
    # Repositories and environments may be remote, and both run interpreters.
    {"sources.storage", "sources.interpreters", "sources.registry"},
    {"environments", "guests.memory"},
    # Layers of artifacts are unpacked as environments are. What was resolved is explained with its environment.
    {"models.resolution", "models.artifacts"},
    {"models.repository"},
    {"guests"},
    {"engine"},
    {"frontends"},
    {"server.http_api"},
    {"server.processes", "server.console_source"},
    {"server.listeners"},
    {"server.further_process"},
    {"server.coordinator"},
    {"server"},
    {"cli"},
    {"naiad_building"},
    {"naiad_embedded", "naiad_llm", "naiad_operations"},
    {*PUBLIC_NAMES, *ALIASES},
    {"__main__"},
)
"""Parts of the host from the lowest layer to the highest: rooms of `naiad`, parts of rooms, packages beside it."""

LEVELS = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}

SHARED_WITH_GUEST = {
    "naiad_stub",
    "naiad_stub.busy_poll",
    "naiad_stub.later_module",
    "naiad_stub.layout",
    "naiad_stub.load_spec",
    "naiad_stub.memo",
    "naiad_stub.messages",
    "naiad_stub.native.elf",
    "naiad_stub.native.signatures",
    "naiad_stub.process_limits",
    "naiad_stub.process_title",
    "naiad_stub.segment",
    "naiad_stub.template_rules",
    "naiad_stub.wire",
}
"""What the host may import of the guest. `naiad_stub` alone: to find where it is installed."""

SHARED_WITH_INPROCESS = {"naiad_stub.dlpack", "naiad_stub.exceptions", "naiad_stub.tensor"}
"""What `naiad_embedded.inprocess` may import in addition: it converts tensors of its callers as the guest converts a model's."""

FRONTENDS_MAY_IMPORT = {
    "naiad.frontends",
    "naiad.engine.facade",
    "naiad.protocol",
    "naiad.core.child_processes",
    "naiad.core.errors",
    "naiad.core.extras",
    "naiad.core.heap",
    "naiad.core.logs",
    "naiad.core.quantities",
    "naiad.core.turns",
    # Values of flags, parsed before a frontend exists.
    "naiad.config.server.access",
    "naiad.config.server.trace_options",
    # The gRPC messages contain Triton's ModelConfig message.
    "naiad.config.model.model_config_pb2",
    "naiad_stub.memo",
    # How many threads decompress.
    "naiad_stub.process_limits",
}
"""Everything of ours that `naiad.frontends` may import. The engine's implementation and all layers below are missing."""

IMPURE = {"asyncio", "os", "socket", "subprocess", "threading", "time"}
"""Modules that decisions (`engine/scheduling`, `engine/lifecycle`, `models/polling`) must not import: their tests need neither a system nor a clock."""

NEWER_THAN_GUEST = {"annotationlib", "compression", "graphlib", "tomllib", "zoneinfo"}
"""Modules of the standard library that Python 3.8 does not have."""


def part_of(module: str) -> str:
    """The part that a module of the host belongs to: `config` for `naiad.config.server.options`."""
    parts = module.removeprefix("naiad.").split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in LEVELS), "naiad")


def _top(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def upward_imports(host: Iterable[Source]) -> list[str]:
    """Imports of a module that is in a higher layer, or in another folder of the same layer."""
    return [
        f"{source.path}:{line}: {here} (layer {LEVELS[here]}) imports {name} (layer {LEVELS[there]})"
        for source in host
        for line, name in source.imports()
        if _top(name) in ("naiad", *EXTENSIONS)
        for here, there in [(part_of(source.module), part_of(name))]
        if here != there and LEVELS[there] >= LEVELS[here]
    ]


def import_cycles(sources: Collection[Source]) -> dict[str, list[str]]:
    """Modules on or above an import cycle, with those of their imports that are, too; imports in functions count."""
    names = {source.module for source in sources}
    graph = {
        source.module: {name for _, name in source.imports() if name in names and name != source.module}
        # A package's own __init__ is imported with each of its modules; all of them are empty but naiad's.
        - {source.module.rpartition(".")[0]}
        for source in sources
    }
    return _cycles(graph)


def folders_in_cycles(sources: Collection[Source]) -> list[str]:
    """Imports between folders of one room or package that import each other, also by way of others.

    The modules may have no cycle and the folders one: then neither can be read, tested or replaced before the other.
    """
    folders = {source.module for source in sources if source.path.endswith("/__init__.py")}
    arrows = [
        (here, there, f"{source.path}:{line}: {here} imports {name}")
        for source in sources
        for line, name in source.imports()
        for here, there in [(_folder_of(source.module, folders), _folder_of(name, folders))]
        if here and there and here != there and here.rpartition(".")[0] == there.rpartition(".")[0]
    ]
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for here, there, _ in arrows:
        graph[here].add(there)
        graph[there].update()
    remaining = _cycles(graph)
    return [text for here, there, text in arrows if there in remaining.get(here, ())]


def _folder_of(module: str, folders: Collection[str]) -> str:
    """The folder of a room (`naiad.engine.loading`) or of a package beside `naiad` that a module is in; else empty."""
    parts = module.split(".")
    folder = ".".join(parts[: 3 if parts[0] == "naiad" else 2])
    return folder if folder in folders and folder.count(".") == (2 if parts[0] == "naiad" else 1) else ""


def _cycles(graph: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """The nodes on or above a cycle, with those they lead to that are, too."""
    # Remove nodes that lead to none of the remaining ones, until there is no such node. A cycle always remains.
    while removable := {node for node, others in graph.items() if not others & set(graph)}:
        graph = {node: others for node, others in graph.items() if node not in removable}
    return {node: sorted(others & set(graph)) for node, others in graph.items()}


def imports_of_the_guests_own_modules(host: Iterable[Source]) -> list[str]:
    """Imports by the host of modules of the guest that the two do not share."""
    return [
        f"{source.path}:{line}: {name}"
        for source in host
        # `naiad.testing` runs the guest's code in the test's process, so it may import all of it.
        if not source.module.startswith("naiad_embedded.testing")
        for shared in [
            SHARED_WITH_GUEST | SHARED_WITH_INPROCESS
            if source.module.startswith("naiad_embedded.inprocess")
            else SHARED_WITH_GUEST
        ]
        for line, name in source.imports()
        # An imported name counts with its module: `naiad_stub.wire.Kind` with `naiad_stub.wire`.
        if _top(name) == "naiad_stub" and not {name, name.rpartition(".")[0]} & shared
    ]


def frontend_imports_past_the_door(host: Iterable[Source]) -> list[str]:
    """Imports by frontends of anything but the engine's facade and values."""
    return [
        f"{source.path}:{line}: {name}"
        for source in host
        if part_of(source.module) == "frontends"
        for line, name in source.imports()
        if _top(name) in {"naiad", "naiad_stub"}
        # An imported name counts with its module: `naiad.engine.facade.EngineFacade` with `naiad.engine.facade`.
        if not any(f"{name}.".startswith(f"{allowed}.") for allowed in FRONTENDS_MAY_IMPORT)
        # `from naiad.config.model import model_config_pb2` names the package, too; its modules are checked.
        if not any(allowed.startswith(f"{name}.") for allowed in FRONTENDS_MAY_IMPORT)
    ]


def impure_decisions(host: Iterable[Source]) -> list[str]:
    """Imports of modules with effects by folders that only decide."""
    return [
        f"{source.path}:{line}: {name}"
        for source in host
        if part_of(source.module) in {"engine.scheduling", "engine.lifecycle", "models.polling"}
        for line, name in source.imports()
        if _top(name) in IMPURE
    ]


_SERVING = (
    *("naiad.engine", "naiad.frontends", "naiad.guests", "naiad.protocol", "naiad.server.processes"),
    *("naiad_embedded.inprocess", "naiad_llm"),
)


def errors_tied_to_their_frames(host: Iterable[Source]) -> list[str]:
    """Errors that a variable refers to and that are raised or kept as they are; see `naiad.core.errors.fresh`.

    Only where requests are served: elsewhere the collector has time to free what such a cycle holds.
    """
    found = []
    for source in host:
        if f"{source.module}.".startswith(tuple(f"{package}." for package in _SERVING)):
            found += [f"{source.path}:{line}: {what}" for line, what in _tied_errors(source.tree, frozenset())]
    return found


def _tied_errors(node: ast.AST, caught: frozenset[str]) -> Iterator[tuple[int, str]]:
    for child in ast.iter_child_nodes(node):
        bound = caught
        if isinstance(child, ast.ExceptHandler) and child.name is not None:
            bound = caught | {child.name}
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Name | ast.Attribute):
            name = ast.unparse(child.exc)
            if name not in caught and not name.rpartition(".")[2][0].isupper():
                yield child.lineno, f"raise {name}: raise fresh({name})"
        if (
            isinstance(child, ast.Assign | ast.Return)
            and isinstance(child.value, ast.Name)
            and child.value.id in caught
        ):
            yield child.lineno, f"{ast.unparse(child)}: keep without_frames({child.value.id})"
        yield from _tied_errors(child, bound)


def foreign_imports_of_the_guest(guest: Iterable[Source]) -> list[str]:
    """Imports by the guest of anything but the standard library of Python 3.8, numpy and itself."""
    allowed = (sys.stdlib_module_names - NEWER_THAN_GUEST) | {"numpy", "naiad_stub", "triton_python_backend_utils"}
    return [
        f"{source.path}:{line}: {name}"
        for source in guest
        for line, name in source.imports()
        if _top(name) not in allowed
    ]


# -- documentation in the code ----------------------------------------------------------------------------------------


def _place(source: Source, function: Function) -> str:
    return f"{source.path}:{function.lineno}: {function.name}"


def functions_without_return_type(sources: Iterable[Source]) -> list[str]:
    """Functions and methods, private ones included, without a return annotation."""
    return [
        _place(source, function) for source in sources for function, _ in source.functions() if function.returns is None
    ]


def newer_syntax_than(version: tuple[int, int], sources: Iterable[Source]) -> list[str]:
    """Files that a Python of this version cannot parse."""
    found: list[str] = []
    for source in sources:
        try:
            ast.parse(source.text, source.path, feature_version=version)
        except SyntaxError as error:
            found.append(f"{source.path}:{error.lineno}: {error.msg}")
    return found


_SUPPRESSION = re.compile(
    r"#\s*(?:ruff:\s*noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?"
    r"|type:\s*ignore(?:\[[\w,\s-]+\])?)"
)
_WORDS = re.compile(r"[A-Za-z]{2,}")


def unexplained_suppressions(sources: Iterable[Source]) -> list[str]:
    """`# noqa` and `# type: ignore` without a reason in words: in the same comment, or for a whole file on the next line.

    Only comments count, found by the tokenizer: a text that mentions `# noqa` suppresses nothing.
    """
    found: list[str] = []
    for source in sources:
        if not _SUPPRESSION.search(source.text):
            continue
        comments = {
            token.start[0]: token.string
            for token in tokenize.generate_tokens(StringIO(source.text).readline)
            if token.type == tokenize.COMMENT
        }
        for line, comment in comments.items():
            if not _SUPPRESSION.search(comment):
                continue
            reason = _SUPPRESSION.sub(" ", comment)
            if comment.lstrip("# ").startswith("ruff:"):
                reason += comments.get(line + 1, "")
            if not _WORDS.search(reason):
                found.append(f"{source.path}:{line}: {comment}")
    return found


def repeated_class_names(sources: Iterable[Source], allowed: Mapping[str, str]) -> list[str]:
    """Names of classes that several modules define, unless *allowed* has the name with a reason.

    Classes inside classes and functions count: a reader searches for all of them by name.
    """
    places: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.nodes_of(ast.ClassDef):
            places[node.name].append(f"{source.path}:{node.lineno}")
    return [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1 and name not in allowed]


def inherited_classes(host: Iterable[Source], allowed: Collection[str]) -> list[str]:
    """Classes that inherit from a class of the host, unless *allowed* has the path of their module.

    Errors, enumerations and protocols may: they have no state. A base is found by its name.
    """
    classes = [
        (source, node, [ast.unparse(base).partition("[")[0] for base in node.bases])
        for source in host
        for node in source.nodes_of(ast.ClassDef)
    ]
    bases_of = {node.name: bases for _, node, bases in classes}

    def is_stateless(name: str) -> bool:
        is_root = name == "Protocol" or name.endswith(("Error", "Exception", "Enum"))
        return is_root or any(map(is_stateless, bases_of.get(name, ())))

    return [
        f"{source.path}:{node.lineno}: {node.name} inherits from {base}"
        for source, node, bases in classes
        if source.path not in allowed
        for base in (each.rpartition(".")[2] for each in bases)
        if base in bases_of and not is_stateless(base)
    ]


def unneeded_permissions(sources: Iterable[Source], allowed: Mapping[str, str]) -> list[str]:
    """Names in *allowed* that only one module defines, or none."""
    repeated = {line.partition(":")[0] for line in repeated_class_names(sources, {})}
    return sorted(set(allowed) - repeated)


# -- pages ------------------------------------------------------------------------------------------------------------

_MAP_ROW = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)
_CODE_WORD = re.compile(r"`([^`]+)`")


def folders_of(root: Path) -> list[str]:
    """The packages below a source root, two levels deep: `engine` and `engine/loading` in `naiad`, else with its name."""
    return sorted(
        name
        for pattern in ("*/__init__.py", "*/*/__init__.py", "naiad/*/*/__init__.py")
        for path in root.glob(pattern)
        for name in [path.parent.relative_to(root).as_posix().removeprefix("naiad/")]
        if name != "naiad"
    )


def misplaced_rooms(host: Iterable[Source]) -> list[str]:
    """Imports of a room that comes later in `ROOMS`, whatever the parts of both."""
    return [
        f"{source.path}:{line}: {here} imports {name}"
        for source in host
        for line, name in source.imports()
        for here, there in [(_room_of(source.module), _room_of(name))]
        if here and there and ROOMS.index(there) > ROOMS.index(here)
    ]


def _room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "naiad" and parts[1] in ROOMS else ""


def map_of(page: str) -> list[str]:
    """The folders and modules in the first column of the first table of the section "Layers", in order."""
    section = page.partition("\n## Layers\n")[2].partition("\n## ")[0].partition("| module of `stubs")[0]
    return [word for row in _MAP_ROW.findall(section) for word in _CODE_WORD.findall(row)]


def differences_of_map(page: str, folders: Collection[str]) -> list[str]:
    """Folders that the page does not name, and folders that it names and that do not exist."""
    named = [name for name in map_of(page) if not name.endswith(".py")]
    missing = [f"{folder}: not in the table" for folder in sorted(set(folders) - set(named))]
    return missing + [f"{name}: no such folder" for name in sorted(set(named) - set(folders))]


def _height(top: str) -> int:
    """How high a room, a package beside `naiad` or a module of either is."""
    return ROOMS.index(top) if top in ROOMS else len(ROOMS) + LEVELS[top]


def map_rows_out_of_order(page: str) -> list[str]:
    """Rows of the page's table that are above a row of a higher layer, or apart from the row of their parent folder."""
    rows = [name.removesuffix(".py") for name in map_of(page)]
    wrong: list[str] = []
    for above, below in pairwise(rows):
        top_above, top_below = above.split("/")[0], below.split("/")[0]
        if "/" in below and top_above != top_below:
            wrong.append(f"{below}: not below {top_below}")
        elif _height(top_below) > _height(top_above):
            wrong.append(f"{below}: a higher layer than {above}")
    return wrong


_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def _links_of(text: str) -> list[tuple[str, str]]:
    """Path and anchor of each link of a page to another file, or to a place in the page itself."""
    targets = [
        target
        for target in _LINK.findall(_CODE.sub("", text))
        if "://" not in target and not target.startswith("mailto:")
    ]
    return [(path, anchor) for path, _, anchor in (target.partition("#") for target in targets)]


def broken_links(page: Path, folder: Path | None = None) -> list[str]:
    """Links of a page to files or headings that do not exist.

    Args:
        page: The page.
        folder: The folder that its links are relative to; the page's own by default.
    """
    folder = folder or page.parent
    return [
        f"{page.name}: {target}{'#' if anchor else ''}{anchor}"
        for target, anchor in _links_of(page.read_text(encoding="utf-8"))
        if not _has_target((folder / target) if target else page, anchor)
    ]


def _has_target(path: Path, anchor: str) -> bool:
    if not path.exists():
        return False
    return not anchor or anchor in {_anchor(heading) for heading in _HEADING.findall(path.read_text(encoding="utf-8"))}


def _anchor(heading: str) -> str:
    """The anchor that a heading of Markdown gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def unlisted_pages(first: Path, pages: Iterable[Path]) -> list[str]:
    """Pages to which the first page has no link, nor the README of their folder, if the first page links to that."""
    listed = _linked_from(first)
    return sorted(
        str(page.relative_to(first.parent))
        for page in pages
        if page.resolve() not in listed
        and not ((readme := page.with_name("README.md").resolve()) in listed and page.resolve() in _linked_from(readme))
    )


def _linked_from(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target, _ in _links_of(page.read_text(encoding="utf-8"))}


def state_diagram(transitions: Mapping[str, Iterable[str]], first: str) -> str:
    """The transitions between states as a diagram of Mermaid."""
    arrows = [f"    {state} --> {following}" for state, followers in transitions.items() for following in followers]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first}", *arrows, ""])


def diagrams_of(page: str) -> list[str]:
    """The state diagrams of a page."""
    return re.findall(r"```mermaid\n(stateDiagram.*?)```", page, re.DOTALL)


# -- dependencies and the tree ----------------------------------------------------------------------------------------

_MODULES = {"protobuf": "google.protobuf"}
"""Modules whose name is not the package's."""


def unused_dependencies(packages: Iterable[str], host: Iterable[Source]) -> list[str]:
    """Packages that the host depends on and neither imports nor runs as a program (`-m`)."""
    sources = list(host)
    imported = {name for source in sources for _, name in source.imports()}
    return [
        package
        for package in packages
        for module in [_MODULES.get(package, package.replace("-", "_"))]
        if not any(name == module or name.startswith(module + ".") for name in imported)
        and not any(f'"-m", "{module}"' in source.text for source in sources)
    ]


def unexplained_dependencies(project: str) -> list[str]:
    """Packages, each on a line of its own, without a comment that says what they do here."""
    lines = re.findall(r'^  "([\w.-]+)(?:\[[^]]*\])?>=[^"]*",(.*)$', project, re.MULTILINE)
    return [package for package, rest in lines if not rest.startswith("  # ")]


# In pieces, or this file would be the first violation.
_MACHINE_PATH = re.compile("|".join(rf"(?<![\w.~$}}-])/{name}/" for name in ("work", "root", r"home/[a-z]\w*")))


def machine_paths(name: str, text: str) -> Iterator[str]:
    """Lines of a file with a path that exists on its author's machine only."""
    for number, line in enumerate(text.splitlines(), 1):
        if _MACHINE_PATH.search(line):
            yield f"{name}:{number}: {line.strip()[:100]}"
