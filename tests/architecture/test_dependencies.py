"""The host imports what it depends on, and the project says what each does here."""

from __future__ import annotations

import sys

from architecture import rules
from architecture.sources import HOST, ROOT, python_files
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(TEXT)
OF_HOST = [Requirement(text).name for text in PROJECT["project"]["dependencies"]]


def test_the_host_imports_what_it_depends_on() -> None:
    assert rules.unused_dependencies(OF_HOST, python_files(HOST)) == []


def test_each_dependency_has_a_comment_that_says_what_it_does_here() -> None:
    assert rules.unexplained_dependencies(TEXT) == []


def test_nothing_of_the_server_needs_grpcio() -> None:
    """grpcio is a dependency of clients, such as `naiad bench`, and of tests alone."""
    host = HOST / "naiad"
    parts = [each for each in host.iterdir() if each.is_dir() and each.name != "cli"]
    assert host / "frontends" in parts
    imported = {(source.path, name) for source in python_files(*parts) for _, name in source.imports()}
    assert {(path, name) for path, name in imported if name.split(".")[0] == "grpc"} == set()
