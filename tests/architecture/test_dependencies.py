"""What the project depends on is used, and the record of dependencies says what for."""

from __future__ import annotations

import re
import sys

import pytest
from architecture.sources import HOST, ROOT, python_files
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODULES = {"protobuf": "google.protobuf"}
"""Modules whose name is not the package's."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OF_HOST = [Requirement(text).name for text in PROJECT["project"]["dependencies"]]
OF_DEVELOPERS = [
    Requirement(text).name for group in PROJECT["dependency-groups"].values() for text in group if isinstance(text, str)
]
RECORD = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", OF_HOST)
def test_the_host_imports_what_it_depends_on(package: str) -> None:
    module = MODULES.get(package, package.replace("-", "_"))
    imported = {name for source in python_files(HOST) for _, name in source.imports()}

    assert any(name == module or name.startswith(module + ".") for name in imported)


def test_the_record_has_a_row_for_each_dependency_of_the_host_and_no_other() -> None:
    assert re.findall(r"^\| ([a-z-]+) \|", RECORD, re.MULTILINE) == ["package", *OF_HOST]


@pytest.mark.parametrize("package", OF_DEVELOPERS)
def test_the_record_names_what_developers_need(package: str) -> None:
    assert package in RECORD.split("## Choice: of developers")[1]
