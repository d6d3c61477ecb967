"""The table of folders in docs/explanation/architecture.md is the tree as it is."""

from __future__ import annotations

from architecture import rules
from architecture.sources import HOST, ROOT

PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")


def test_the_page_names_every_folder_of_the_host_and_no_other() -> None:
    assert rules.differences_of_map(PAGE, rules.folders_of(HOST)) == []


def test_the_page_names_the_modules_beside_the_folders() -> None:
    modules = {path.name for path in (HOST / "naiad").glob("*.py") if not path.name.startswith("_")}

    assert {name for name in rules.map_of(PAGE) if name.endswith(".py")} == modules


def test_the_page_lists_higher_layers_first() -> None:
    assert rules.map_rows_out_of_order(PAGE) == []
