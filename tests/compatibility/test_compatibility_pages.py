"""The compatibility pages name everything there is, and tests that exist."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.descriptor import Descriptor

from naiad.config.model import model_config_pb2 as config
from naiad.config.server.options import SERVER_FLAGS
from naiad.frontends.kserve_grpc import service_pb2 as service
from naiad.frontends.kserve_http.routes import Endpoint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TESTS = Path(__file__).parents[1]
REFERENCE = TESTS.parent / "docs" / "reference"
PAGES = sorted(REFERENCE.glob("compatibility-*.md"))
_CITED = re.compile(r"`([\w/]+\.py)(?: -k (\"[^\"]+\"|\w+))?`")


class Row(NamedTuple):
    page: str
    name: str
    verdict: str
    tests: str


def rows() -> list[Row]:
    found = []
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if line.startswith("| ") and not line.endswith("| tests |"):
                assert len(cells) == 3, line
                found.append(Row(page.name, *cells))
    return found


ROWS = rows()


FLAGS = tomllib.loads((TESTS.parent / "docs" / "flags.toml").read_text(encoding="utf-8"))


def cited_by(entry: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [match for text in entry["tests"] for match in _CITED.findall(f"`{text}`")]


def missing_tests(cited: list[tuple[str, str]]) -> list[str]:
    """Files that are missing, and words that no test of their file has."""
    wrong = []
    for file, expression in cited:
        path = TESTS / file
        if not path.is_file():
            wrong.append(file)
            continue
        text = path.read_text(encoding="utf-8")  # a word may be that of a parameter, too
        wrong += [f"{file} -k {word}" for word in words_of(expression) if word not in text]
    return [name for name in wrong if not name.startswith("frontends/")]


def named(page: str) -> str:
    return "\n".join(row.name for row in ROWS if row.page == page)


def fields(messages: list[Descriptor], prefix: str = "") -> Iterator[str]:
    for message in messages:
        if not message.GetOptions().map_entry:
            yield from (f"{prefix}{message.name}.{field.name}" for field in message.fields)
            yield from fields(message.nested_types, f"{prefix}{message.name}.")


def words_of(expression: str) -> list[str]:
    return [word for word in expression.strip('"').split() if word not in {"or", "and", "not"}]


def test_every_flag_and_no_other_has_its_entry():
    assert list(FLAGS) == [flag.name for flag in SERVER_FLAGS]


def test_every_flag_names_tests_that_exist():
    assert [name for name, entry in FLAGS.items() if not entry["tests"]] == []
    assert (
        missing_tests([(cited, expression) for entry in FLAGS.values() for cited, expression in cited_by(entry)]) == []
    )


def test_every_field_is_on_a_line():
    expected = {f"`{name}`" for name in fields(list(config.DESCRIPTOR.message_types_by_name.values()))}
    names = {name for row in ROWS if row.page == "compatibility-config.md" for name in row.name.split(", ")}
    assert expected - names == set()
    assert {name for name in names if re.fullmatch(r"`[A-Z]\w+\.[\w.]+`", name)} == expected


def test_every_call_has_its_line():
    services = service.DESCRIPTOR.services_by_name.values()
    methods = {f"`{method.name}`" for each in services for method in each.methods}
    assert methods - set(named("compatibility-grpc.md").splitlines()) == set()


def test_every_endpoint_has_its_line():
    text = named("compatibility-http.md")
    assert [endpoint.name for endpoint in Endpoint if f"(`{endpoint.name}`)" not in text] == []


def test_every_line_says_something_and_names_a_test():
    assert [row for row in ROWS if not row.verdict or not _CITED.search(row.tests)] == []


@pytest.mark.parametrize("page", [REFERENCE / "compatibility.md", *PAGES], ids=lambda page: page.stem)
def test_tests_that_are_named_exist(page):
    missing = missing_tests(_CITED.findall(page.read_text(encoding="utf-8")))
    # That page names files of the application, too.
    assert [name for name in missing if page.stem != "compatibility" or " -k " in name] == []


def test_every_page_is_linked_from_the_first():
    text = (REFERENCE / "compatibility.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"]({page.name})" not in text] == []
