"""Folders are layers: imports lead downward, and host and guest share a few modules only."""

from __future__ import annotations

import pytest
from architecture import rules
from architecture.sources import GUEST, HOST, python_files


def test_the_host_has_the_rooms_and_packages_that_the_rules_know() -> None:
    entries = {path.name.removesuffix(".py") for path in (HOST / "naiad").iterdir() if path.suffix in {"", ".py"}}
    packages = {path.name.removesuffix(".py") for path in HOST.iterdir() if path.suffix in {"", ".py"}}

    assert {name for name in entries if not name.startswith("__")} == {*rules.ROOMS, *rules.PUBLIC_NAMES}
    assert {name for name in packages if not name.startswith("_")} == {"naiad", *rules.EXTENSIONS, *rules.ALIASES}


def test_each_room_imports_only_rooms_before_it() -> None:
    assert rules.misplaced_rooms(python_files(HOST)) == []


def test_imports_lead_downward_and_not_to_a_sibling() -> None:
    assert rules.upward_imports(python_files(HOST)) == []


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert rules.import_cycles((*python_files(HOST), *python_files(GUEST))) == {}


def test_folders_of_a_room_do_not_import_each_other() -> None:
    assert rules.folders_in_cycles(python_files(HOST)) == []


def test_the_host_shares_with_the_guest_what_describes_their_exchange_and_nothing_else() -> None:
    assert rules.imports_of_the_guests_own_modules(python_files(HOST)) == []


def test_frontends_know_the_engines_door_alone() -> None:
    assert rules.frontend_imports_past_the_door(python_files(HOST)) == []


def test_decisions_need_neither_a_system_nor_a_clock() -> None:
    assert rules.impure_decisions(python_files(HOST)) == []


def test_no_error_that_is_raised_or_kept_refers_to_frames_that_refer_to_it() -> None:
    assert rules.errors_tied_to_their_frames(python_files(HOST)) == []


def test_the_guest_imports_the_standard_library_numpy_and_itself() -> None:
    assert rules.foreign_imports_of_the_guest(python_files(GUEST)) == []


@pytest.mark.parametrize("module", sorted(rules.SHARED_WITH_GUEST - {"naiad_stub"}))
def test_a_shared_module_exists_and_imports_nothing_of_the_host(module: str) -> None:
    (source,) = (source for source in python_files(GUEST) if source.module == module)

    assert [name for _, name in source.imports() if name.split(".")[0] == "naiad"] == []
