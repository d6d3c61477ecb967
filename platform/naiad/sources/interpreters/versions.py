"""Matching Python versions as users write them: `==3.10` matches any 3.10, `<=3.12` includes 3.12.4."""

from __future__ import annotations

import sysconfig

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

PythonVersion = tuple[int, int, int]

# The ABI of the Python of this process, `cpython-311-x86_64-linux-gnu`. Read when this is imported, before models are
# loaded: up to Python 3.11, a thread that asks while another one reads the variables for the first time finds none. An
# environment was built twice then, under two keys.
OWN_ABI = str(sysconfig.get_config_var("SOABI") or "")

# PEP 440 compares `3.10` as 3.10.0, so `==3.10` would reject 3.10.4. For these operators the version is truncated to
# as many numbers as the specifier has. `>=` and `<` give the same result either way. `~=` and `===` have rules of
# their own.
_TRUNCATING_OPERATORS = frozenset({"==", "!=", "<=", ">"})


def version_text(version: PythonVersion) -> str:
    """The version as text, `3.10.4`."""
    return ".".join(map(str, version))


def matches(required: SpecifierSet | None, version: PythonVersion) -> bool:
    """Whether a version satisfies a specifier; None accepts any."""
    return required is None or all(_matches_one(specifier, version) for specifier in required)


def _matches_one(specifier: Specifier, version: PythonVersion) -> bool:
    compared = version_text(version)
    if specifier.operator in _TRUNCATING_OPERATORS and not specifier.version.endswith(".*"):
        numbers = len(Version(specifier.version).release)
        compared = ".".join(map(str, version[:numbers]))
    return specifier.contains(compared, prereleases=True)
