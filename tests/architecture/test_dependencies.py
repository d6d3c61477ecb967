"""The host imports what it depends on, and the record of dependencies gives a reason for each."""

from __future__ import annotations

import sys

import pytest
from architecture import rules
from architecture.sources import HOST, ROOT, python_files
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OF_HOST = [Requirement(text).name for text in PROJECT["project"]["dependencies"]]
OF_DEVELOPERS = [
    Requirement(text).name for group in PROJECT["dependency-groups"].values() for text in group if isinstance(text, str)
]
RECORD = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text(encoding="utf-8")


def test_the_host_imports_what_it_depends_on() -> None:
    assert rules.unused_dependencies(OF_HOST, python_files(HOST)) == []


def test_the_record_has_a_row_for_each_dependency_of_the_host_and_no_other() -> None:
    assert rules.rows_of_dependencies(RECORD) == ["package", *OF_HOST]


@pytest.mark.parametrize("package", OF_DEVELOPERS)
def test_the_record_names_what_developers_need(package: str) -> None:
    assert package in RECORD.split("## Choice: developers")[1]


def test_nothing_of_the_server_needs_grpcio() -> None:
    """grpcio is a dependency of clients, such as `naiad bench`, and of tests alone."""
    host = HOST / "naiad"
    parts = [each for each in host.iterdir() if each.is_dir() and each.name != "cli"]
    assert host / "frontends" in parts
    imported = {(source.path, name) for source in python_files(*parts) for _, name in source.imports()}
    assert {(path, name) for path, name in imported if name.split(".")[0] == "grpc"} == set()
