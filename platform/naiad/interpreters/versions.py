"""Comparing Python versions the way people write them: `==3.10` means any 3.10, `<=3.12` includes 3.12.4."""

from __future__ import annotations

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

PythonVersion = tuple[int, int, int]

# PEP 440 compares `3.10` as 3.10.0. For these operators that surprises everyone who names a Python by its first
# two numbers, so the version is cut to as many numbers as the specifier has. `>=` and `<` mean the same either
# way; `~=` and `===` have their own rules.
_CUT_OPERATORS = frozenset({"==", "!=", "<=", ">"})


def version_text(version: PythonVersion) -> str:
    """The version as people write it."""
    return ".".join(map(str, version))


def matches(required: SpecifierSet | None, version: PythonVersion) -> bool:
    """Whether a Python of this version is one of those asked for (None: any is)."""
    return required is None or all(_matches_one(specifier, version) for specifier in required)


def _matches_one(specifier: Specifier, version: PythonVersion) -> bool:
    compared = version_text(version)
    if specifier.operator in _CUT_OPERATORS and not specifier.version.endswith(".*"):
        numbers = len(Version(specifier.version).release)
        compared = ".".join(map(str, version[:numbers]))
    return specifier.contains(compared, prereleases=True)
