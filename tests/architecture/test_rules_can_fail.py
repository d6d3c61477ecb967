"""Each rule of this folder fails for a small example that violates it, and passes for one that does not."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from architecture import rules
from architecture.sources import Source

ALLOWED = {"Options": "public API"}


def source(path: str, text: str) -> Source:
    return Source(path, text)


def host(path: str, text: str, package: str = "naiad") -> list[Source]:
    return [source(f"platform/{package}/{path}", text)]


def guest(text: str) -> list[Source]:
    return [source("stubs/naiad_stub/example.py", text)]


# -- rules about sources: a violation, its report, and the same thing done right --------------------------------------

CASES = {
    "errors_tied_to_their_frames": [
        (
            rules.errors_tied_to_their_frames,
            host("engine/example.py", "def f(response):\n    raise response.error"),
            "raise response.error: raise fresh(response.error)",
            host("engine/example.py", "def f(response):\n    raise fresh(response.error)"),
        ),
        (
            rules.errors_tied_to_their_frames,
            host("guests/example.py", "try:\n    f()\nexcept ValueError as error:\n    last = error"),
            "last = error: keep without_frames(error)",
            host("guests/example.py", "try:\n    f()\nexcept ValueError as error:\n    raise error"),
        ),
    ],
    "upward_imports": [
        (
            rules.upward_imports,
            host("config/example.py", "def f():\n    from naiad.engine.engine import Engine"),
            "config (layer 2) imports naiad.engine.engine (layer 9)",
            host("engine/example.py", "from naiad.config.server.options import ServerOptions"),
        ),
        (
            rules.upward_imports,
            host("models/artifacts/example.py", "import naiad.models.resolution.files"),
            "models.artifacts (layer 6) imports naiad.models.resolution.files (layer 6)",
            host("models/artifacts/example.py", "import naiad.models.artifacts.policy"),
        ),
        (
            rules.upward_imports,
            host("server/example.py", "from naiad_llm.extension import EXTENSION"),
            "server (layer 16) imports naiad_llm.extension (layer 19)",
            host("extension.py", "from naiad.server.http_api import ApiServices", "naiad_llm"),
        ),
    ],
    "misplaced_rooms": [
        (
            rules.misplaced_rooms,
            host("models/resolution/example.py", "import naiad.engine.scheduling.fifo"),
            "models imports naiad.engine.scheduling.fifo",
            host("engine/example.py", "import naiad.models.resolution.files"),
        ),
    ],
    "imports_of_the_guests_own_modules": [
        (
            rules.imports_of_the_guests_own_modules,
            host("guests/example.py", "from naiad_stub.execution import Execution"),
            "naiad_stub.execution",
            host("guests/example.py", "from naiad_stub.wire import MessageKind"),
        ),
        (
            rules.imports_of_the_guests_own_modules,
            host("engine/example.py", "from naiad_stub.tensor import Tensor"),
            "naiad_stub.tensor",
            host("inprocess/example.py", "from naiad_stub.tensor import Tensor", "naiad_embedded"),
        ),
    ],
    "frontend_imports_past_the_door": [
        (
            rules.frontend_imports_past_the_door,
            host("frontends/example.py", "from naiad.engine.engine import Engine"),
            "naiad.engine.engine",
            host("frontends/example.py", "from naiad.engine.facade import EngineFacade"),
        ),
        (
            rules.frontend_imports_past_the_door,
            host("frontends/http1/example.py", "import naiad.guests.launch"),
            "naiad.guests.launch",
            host("engine/example.py", "import naiad.guests.launch"),
        ),
    ],
    "impure_decisions": [
        (
            rules.impure_decisions,
            host("engine/scheduling/dynamic/example.py", "import time"),
            "time",
            host("guests/example.py", "import time"),
        ),
        (
            rules.impure_decisions,
            host("engine/lifecycle/example.py", "from asyncio import sleep"),
            "asyncio",
            host("engine/lifecycle/example.py", "from enum import Enum"),
        ),
    ],
    "foreign_imports_of_the_guest": [
        (
            rules.foreign_imports_of_the_guest,
            guest("import orjson"),
            "orjson",
            guest("import numpy.linalg\nfrom naiad_stub import wire\nimport json"),
        ),
        (rules.foreign_imports_of_the_guest, guest("import tomllib"), "tomllib", guest("import ast")),
        (
            rules.foreign_imports_of_the_guest,
            guest("from naiad.core.errors import NaiadError"),
            "naiad.core.errors",
            guest("from naiad_stub.exceptions import TritonError"),
        ),
    ],
    "functions_without_return_type": [
        (
            rules.functions_without_return_type,
            host("example.py", "def run():\n    def inner() -> int: ..."),
            "platform/naiad/example.py:1: run",
            host("example.py", "def run() -> None: ..."),
        ),
    ],
    "newer_syntax_than": [
        (
            lambda sources: rules.newer_syntax_than((3, 8), sources),
            guest("match x:\n    case 1: ..."),
            "stubs/naiad_stub/example.py:2: Pattern matching is only supported in Python 3.10",
            guest("if (x := 1): ..."),
        ),
    ],
    "unexplained_suppressions": [
        (
            rules.unexplained_suppressions,
            host("example.py", "import os  # noqa: F401"),
            "platform/naiad/example.py:1",
            host("example.py", "import os  # noqa: F401 - imported by callers"),
        ),
        (
            rules.unexplained_suppressions,
            host("example.py", "x = 1  # type: ignore[assignment]"),
            "platform/naiad/example.py:1",
            host("example.py", "x = 1  # type: ignore[assignment]  # the library has no types"),
        ),
        (
            rules.unexplained_suppressions,
            host("example.py", "# ruff: noqa: T201, PTH100\nimport os"),
            "platform/naiad/example.py:1",
            host("example.py", "# ruff: noqa: T201, PTH100\n# The script reports by printing.\nimport os"),
        ),
        (
            rules.unexplained_suppressions,
            host("example.py", "f(\n    a,  # noqa\n)"),
            "platform/naiad/example.py:2",
            host("example.py", 'text = "# noqa: F401"'),
        ),
    ],
    "repeated_class_names": [
        (
            lambda sources: rules.repeated_class_names(sources, ALLOWED),
            [*host("a.py", "class Answer: ..."), *host("b.py", "def f():\n    class Answer: ...")],
            "Answer: platform/naiad/a.py:1, platform/naiad/b.py:2",
            [*host("a.py", "class Options: ..."), *host("b.py", "class Options: ...\nclass Answer: ...")],
        ),
    ],
    "inherited_classes": [
        (
            lambda sources: rules.inherited_classes(sources, ()),
            [*host("a.py", "class Call(ABC, Generic[T]): ..."), *host("b.py", "class UnaryCall(a.Call[int]): ...")],
            "platform/naiad/b.py:1: UnaryCall inherits from Call",
            host(
                "a.py",
                "class Method(Protocol): ...\nclass Streaming(Method, Protocol): ...\n"
                "class OwnError(Exception): ...\nclass OtherError(OwnError): ...\n"
                "class Head(NamedTuple): ...\nclass Connection(asyncio.Protocol): ...",
            ),
        ),
    ],
    "unneeded_permissions": [
        (
            lambda sources: rules.unneeded_permissions(sources, ALLOWED),
            host("a.py", "class Options: ..."),
            "Options",
            [*host("a.py", "class Options: ..."), *host("b.py", "class Options: ...")],
        ),
    ],
    "unused_dependencies": [
        (
            lambda sources: rules.unused_dependencies(["protobuf", "python-discovery"], sources),
            host("a.py", "import google.protobuf.message"),
            "python-discovery",
            host("a.py", "from google.protobuf import text_format\nimport python_discovery"),
        ),
    ],
}


@pytest.mark.parametrize(
    ("rule", "violation", "report", "conforming"),
    [pytest.param(*case, id=f"{name}{number}") for name, cases in CASES.items() for number, case in enumerate(cases)],
)
def test_a_rule_about_sources_reports_a_violation_and_accepts_the_right_way(
    rule, violation, report, conforming
) -> None:
    found = rule(violation)

    assert found, "the rule does not see the violation"
    assert report in found[0]
    assert rule(conforming) == []


def test_a_relative_import_is_an_error_of_every_rule_about_imports() -> None:
    with pytest.raises(AssertionError, match="a relative import hides where it leads"):
        rules.upward_imports(host("engine/example.py", "from . import facade"))


def test_an_import_cycle_is_found_through_a_function_and_over_several_modules() -> None:
    modules = {
        "engine/a.py": "def f() -> None:\n    from naiad.engine.b import x",
        "engine/b.py": "from naiad.engine import c",
        "engine/c.py": "import naiad.engine.a",
        "engine/d.py": "import json",
    }
    cycle = [each for path, text in modules.items() for each in host(path, text)]

    assert rules.import_cycles(cycle) == {
        "naiad.engine.a": ["naiad.engine.b"],
        "naiad.engine.b": ["naiad.engine.c"],
        "naiad.engine.c": ["naiad.engine.a"],
    }
    assert rules.import_cycles(cycle[:2] + cycle[3:]) == {}


def test_folders_that_import_each_other_are_found_without_a_cycle_of_modules() -> None:
    modules = {
        "engine/loading/__init__.py": "",
        "engine/serving/__init__.py": "",
        "engine/calls/__init__.py": "",
        "guests/memory/__init__.py": "",
        "engine/loading/a.py": "from naiad.engine.serving.b import x",
        "engine/loading/c.py": "import json",
        "engine/serving/b.py": "from naiad.engine.calls.d import y\nfrom naiad.guests.memory.e import z",
        "engine/calls/d.py": "def f() -> None:\n    from naiad.engine.loading.c import w",
        "guests/memory/e.py": "import naiad.engine.facade",
    }
    sources = [each for path, text in modules.items() for each in host(path, text)]

    assert rules.import_cycles(sources) == {}
    assert rules.folders_in_cycles(sources) == [
        f"platform/naiad/engine/{path}: naiad.engine.{here} imports naiad.engine.{name}"
        for path, here, names in (
            ("loading/a.py:1", "loading", ("serving.b", "serving.b.x")),
            ("serving/b.py:1", "serving", ("calls.d", "calls.d.y")),
            ("calls/d.py:2", "calls", ("loading.c", "loading.c.w")),
        )
        for name in names
    ]
    assert rules.folders_in_cycles([each for each in sources if not each.path.endswith("calls/d.py")]) == []


# -- rules about pages and files --------------------------------------------------------------------------------------

PAGE = """# How it is built

## Layers

| folder | |
|---|---|
| `cli` | `commands` |
| `engine` | |
| `engine/loading` | |
| `core` | |

| module of `stubs/naiad_stub/` | |
|---|---|
| `wire` | |

## Another section

| `config` | |
"""


def test_the_map_of_a_page_is_its_first_table_and_nothing_else() -> None:
    assert rules.map_of(PAGE) == ["cli", "engine", "engine/loading", "core"]


@pytest.mark.parametrize(
    ("folders", "differences"),
    [
        (["cli", "core", "engine", "engine/loading"], []),
        (["cli", "core", "engine", "engine/loading", "workers"], ["workers: not in the table"]),
        (["cli", "core", "engine"], ["engine/loading: no such folder"]),
    ],
)
def test_a_folder_without_a_row_and_a_row_without_a_folder_are_reported(folders, differences) -> None:
    assert rules.differences_of_map(PAGE, folders) == differences


@pytest.mark.parametrize(
    ("row", "report"),
    [
        ("| `frontends` | |", ["frontends: a higher layer than engine"]),
        ("| `config/model` | |", ["config/model: not below config", "engine/loading: not below engine"]),
        ("| `engine/calls` | |", []),
    ],
)
def test_a_row_above_a_row_of_a_higher_layer_is_reported(row: str, report: list[str]) -> None:
    page = PAGE.replace("| `engine/loading`", f"{row}\n| `engine/loading`")

    assert [line for line in rules.map_rows_out_of_order(page) if line in report] == report
    assert bool(rules.map_rows_out_of_order(page)) is bool(report)


def test_folders_are_packages_of_two_levels(tmp_path: Path) -> None:
    for name in ("a", "a/b", "a/b/c", "empty"):
        (tmp_path / name).mkdir()
    for name in ("a", "a/b", "a/b/c"):
        (tmp_path / name / "__init__.py").touch()

    assert rules.folders_of(tmp_path) == ["a", "a/b"]


def test_broken_links_and_unlisted_pages_are_reported(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("README.md", "second.md", "third.md"))
    first.write_text("[a](second.md) [b](second.md#the-heading) [c](https://example.com/x.md) `[d](code.md)`")
    second.write_text("# The heading\n[a](nothing.md) [b](README.md#nothing) [c](#the-heading)")
    third.touch()
    folder = tmp_path / "pages"
    folder.mkdir()
    for name, text in (("README.md", "[a](listed.md)"), ("listed.md", ""), ("unlisted.md", "")):
        (folder / name).write_text(text)

    assert rules.broken_links(first) == []
    assert rules.broken_links(second) == ["second.md: nothing.md", "second.md: README.md#nothing"]
    assert rules.unlisted_pages(first, [second, third]) == ["third.md"]
    assert rules.unlisted_pages(first, [folder / "listed.md"]) == ["pages/listed.md"]
    first.write_text("[a](pages/README.md)")
    assert rules.unlisted_pages(first, folder.iterdir()) == ["pages/unlisted.md"]


def test_a_diagram_that_lacks_a_transition_differs_from_the_table() -> None:
    transitions = {"LOADING": ["READY", "UNAVAILABLE"], "READY": ["UNAVAILABLE"]}
    page = f"```mermaid\n{rules.state_diagram(transitions, 'LOADING')}```\n"

    assert rules.diagrams_of(page) == [rules.state_diagram(transitions, "LOADING")]
    assert rules.diagrams_of(page.replace("    READY --> UNAVAILABLE\n", "")) != [
        rules.state_diagram(transitions, "LOADING")
    ]


def test_a_dependency_without_a_comment_is_reported() -> None:
    project = 'dependencies = [\n  "click>=8.1",  # commands\n  "numpy>=1.22",\n]\n'

    assert rules.unexplained_dependencies(project) == ["numpy"]


def test_a_path_of_a_machine_is_reported_with_its_line() -> None:
    root = "home"  # apart from the slashes, or this file would be a violation
    path = f"/{root}/somebody/naiad"

    assert list(rules.machine_paths("a.md", f"fine: ~/work/x\ncd {path}\n")) == [f"a.md:2: cd {path}"]
    assert list(rules.machine_paths("a.md", "cd /home/$USER/naiad, ${HOME}/work/x")) == []


def test_every_rule_is_shown_to_fail_here() -> None:
    """A rule added to `rules` needs an example in this file."""
    here = Path(__file__).read_text(encoding="utf-8")
    own = [
        name
        for name, value in vars(rules).items()
        if inspect.isfunction(value) and value.__module__ == rules.__name__ and not name.startswith("_")
    ]

    assert [name for name in own if f"rules.{name}(" not in here and f"rules.{name}," not in here] == ["part_of"]
