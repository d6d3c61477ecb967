"""The compatibility pages name everything there is, and tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.descriptor import Descriptor

from naiad.config.model import model_config_pb2 as config
from naiad.config.server.options import SERVER_FLAGS
from naiad.frontends.kserve_grpc import service_pb2 as service
from naiad.frontends.kserve_http.routes import Endpoint

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


def named(page: str) -> str:
    return "\n".join(row.name for row in ROWS if row.page == page)


def fields(messages: list[Descriptor], prefix: str = "") -> Iterator[str]:
    for message in messages:
        if not message.GetOptions().map_entry:
            yield from (f"{prefix}{message.name}.{field.name}" for field in message.fields)
            yield from fields(message.nested_types, f"{prefix}{message.name}.")


def words_of(expression: str) -> list[str]:
    return [word for word in expression.strip('"').split() if word not in {"or", "and", "not"}]


@pytest.mark.parametrize("name", [flag.name for flag in SERVER_FLAGS])
def test_flag_has_its_line(name):
    assert f"`--{name}`" in named("compatibility-flags.md").splitlines()


def test_every_field_has_its_line():
    expected = {f"`{name}`" for name in fields(list(config.DESCRIPTOR.message_types_by_name.values()))}
    lines = {row.name for row in ROWS if row.page == "compatibility-config.md" and "." in row.name}
    assert expected - lines == set()
    assert {line for line in lines if re.fullmatch(r"`[A-Z]\w+\.[\w.]+`", line)} == expected


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
    wrong = []
    for file, expression in _CITED.findall(page.read_text(encoding="utf-8")):
        path = TESTS / file
        if not path.is_file():
            if page.stem != "compatibility":  # which names files of the application, too
                wrong.append(file)
            continue
        text = path.read_text(encoding="utf-8")  # a word may be that of a parameter, too
        wrong += [f"{file} -k {word}" for word in words_of(expression) if word not in text]
    assert [name for name in wrong if not name.startswith("frontends/")] == []


def test_every_page_is_linked_from_the_first():
    text = (REFERENCE / "compatibility.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"]({page.name})" not in text] == []
