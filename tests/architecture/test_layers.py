"""Folders are layers: imports lead downward, the two sides of the pipe meet in a few modules only."""

from __future__ import annotations

import sys

import pytest
from architecture.sources import GUEST, HOST, Source, python_files

LAYERS = (
    # `naiad` itself is the version; `logs` is below everything as `errors` is, since everything logs.
    {"naiad", "errors", "logs", "json_cache"},
    # One layer of values in the design, in this order: tensors of a configuration have datatypes of the protocol.
    {"protocol"},
    {"config"},
    {"scheduling", "lifecycle"},
    # Both repositories and environments may lie elsewhere.
    {"storage", "interpreters"},
    {"repository", "resolution", "environments", "memory"},
    {"workers"},
    {"engine"},
    {"frontends"},
    {"listeners"},
    {"app", "doctor", "scaffold", "bundle", "deploy"},
    {"cli", "testing", "inprocess"},
    {"__main__"},
)
LEVELS = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}

SHARED_WITH_GUEST = {
    "naiad_stub",
    "naiad_stub.busy_poll",
    "naiad_stub.layout",
    "naiad_stub.memo",
    "naiad_stub.messages",
    "naiad_stub.segment",
    "naiad_stub.wire",
}
"""What the host may import of the guest. `naiad_stub` alone: to find where it is installed."""

LENT_TO_THE_API = {"naiad_stub.dlpack", "naiad_stub.exceptions", "naiad_stub.tensor"}
"""What `naiad.inprocess` may import beside that: tensors of its callers are made and read as those of models are."""

FRONTENDS_MAY_IMPORT = {
    "naiad.frontends",
    "naiad.engine.door",
    "naiad.protocol",
    "naiad.errors",
    "naiad.logs",
    # Values of flags, parsed before a frontend exists.
    "naiad.config.server.access",
    "naiad.config.server.trace_options",
    # The gRPC messages contain Triton's ModelConfig message.
    "naiad.config.model.model_config_pb2",
    "naiad_stub.memo",
}
"""Everything of ours that `naiad.frontends` may import. The engine's implementation and all layers below are missing."""

NEWER_THAN_GUEST = {"annotationlib", "compression", "graphlib", "tomllib", "zoneinfo"}
"""Modules of the standard library that Python 3.8 does not have."""


def _part(module: str) -> str:
    """The layer's folder of a module of the host: `config` for `naiad.config.server.options`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVELS else "naiad"


def _lent_to(part: str) -> set[str]:
    return SHARED_WITH_GUEST | LENT_TO_THE_API if part == "inprocess" else SHARED_WITH_GUEST


def _host() -> tuple[Source, ...]:
    return python_files(HOST)


def _guest() -> tuple[Source, ...]:
    return python_files(GUEST)


def _imports_of_host(source: Source) -> list[tuple[int, str]]:
    return [(line, name) for line, name in source.imports() if name.split(".")[0] == "naiad"]


def test_every_folder_of_the_host_has_its_layer() -> None:
    parts = {path.name.removesuffix(".py") for path in (HOST / "naiad").iterdir() if not path.name.startswith("_")}

    assert parts - {"py.typed"} <= set(LEVELS)


def test_imports_lead_downward_and_not_to_a_sibling() -> None:
    wrong = [
        f"{source.path}:{line}: {here} (layer {LEVELS[here]}) imports {name} (layer {LEVELS[there]})"
        for source in _host()
        for line, name in _imports_of_host(source)
        for here, there in [(_part(source.module), _part(name))]
        if here != there and LEVELS[there] >= LEVELS[here]
    ]

    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {source.module for source in (*_host(), *_guest())}
    graph = {
        source.module: {name for _, name in source.imports() if name in names and name != source.module}
        # A package's own __init__ is imported with each of its modules; all of them are empty but naiad's.
        - {source.module.rpartition(".")[0]}
        for source in (*_host(), *_guest())
    }
    # Peel off whatever imports nothing that is left; a circle never becomes peelable.
    while peelable := {module for module, imported in graph.items() if not imported & set(graph)}:
        graph = {module: imported for module, imported in graph.items() if module not in peelable}
    on_circles = {module: sorted(imported & set(graph)) for module, imported in graph.items()}

    assert on_circles == {}


def test_the_host_shares_with_the_guest_what_describes_their_exchange_and_nothing_else() -> None:
    wrong = [
        f"{source.path}:{line}: {name}"
        for source in _host()
        for line, name in source.imports()
        # `naiad.testing` runs the guest's own code in the test's process: that is what it is for.
        if _part(source.module) != "testing"
        if name.split(".")[0] == "naiad_stub" and not {name, name.rpartition(".")[0]} & _lent_to(_part(source.module))
    ]

    assert wrong == []


def test_frontends_know_the_engines_door_alone() -> None:
    wrong = [
        f"{source.path}:{line}: {name}"
        for source in _host()
        if _part(source.module) == "frontends"
        for line, name in source.imports()
        if name.split(".")[0] in {"naiad", "naiad_stub"}
        # An imported name counts with its module: `naiad.engine.door.EngineDoor` with `naiad.engine.door`.
        if not any(f"{name}.".startswith(f"{allowed}.") for allowed in FRONTENDS_MAY_IMPORT)
        # `from naiad.config.model import model_config_pb2` names the package, too; its modules are checked.
        if not any(allowed.startswith(f"{name}.") for allowed in FRONTENDS_MAY_IMPORT)
    ]

    assert wrong == []


@pytest.mark.parametrize("forbidden", ["asyncio", "os", "socket", "subprocess", "threading", "time"])
def test_decisions_need_neither_a_system_nor_a_clock(forbidden: str) -> None:
    wrong = [
        f"{source.path}:{line}"
        for source in _host()
        if _part(source.module) in {"scheduling", "lifecycle"}
        for line, name in source.imports()
        if name.split(".")[0] == forbidden
    ]

    assert wrong == []


def test_the_guest_imports_the_standard_library_numpy_and_itself() -> None:
    allowed = (sys.stdlib_module_names - NEWER_THAN_GUEST) | {"numpy", "naiad_stub", "triton_python_backend_utils"}
    wrong = [
        f"{source.path}:{line}: {name}"
        for source in _guest()
        for line, name in source.imports()
        if name.split(".")[0] not in allowed
    ]

    assert wrong == []


@pytest.mark.parametrize("module", sorted(SHARED_WITH_GUEST - {"naiad_stub"}))
def test_what_both_sides_share_stands_on_nothing_of_the_host(module: str) -> None:
    (source,) = (source for source in _guest() if source.module == module)

    assert _imports_of_host(source) == []
