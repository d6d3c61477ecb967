"""Versions are compared as people mean them."""

import pytest
from packaging.specifiers import SpecifierSet

from naiad.sources.interpreters.versions import matches, version_text


@pytest.mark.parametrize(
    ("required", "version", "expected"),
    [
        ("==3.10", (3, 10, 13), True),
        ("==3.10", (3, 11, 0), False),
        ("==3.10.13", (3, 10, 13), True),
        ("==3.10.13", (3, 10, 12), False),
        ("==3.10.*", (3, 10, 4), True),
        ("!=3.11", (3, 11, 7), False),
        ("!=3.11", (3, 12, 0), True),
        ("<=3.12", (3, 12, 4), True),
        ("<=3.12", (3, 13, 0), False),
        (">3.10", (3, 10, 13), False),
        (">3.10", (3, 11, 0), True),
        (">=3.9,<3.13", (3, 12, 1), True),
        (">=3.9,<3.13", (3, 13, 0), False),
        ("~=3.10", (3, 12, 0), True),
        ("", (3, 8, 0), True),
    ],
)
def test_a_version_meets_a_specifier_as_its_author_meant_it(required, version, expected):
    assert matches(SpecifierSet(required), version) is expected


def test_any_version_is_accepted_if_none_is_required():
    assert matches(None, (3, 8, 18))


def test_a_version_is_written_with_dots():
    assert version_text((3, 12, 1)) == "3.12.1"
