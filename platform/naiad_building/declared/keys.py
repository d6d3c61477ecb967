"""What declared environments and resolutions in a store are named by: digests of everything that determines them.

Indexes are not part of an environment's: the digests of its packages are. They are of a resolution's, as far as the
text of a declaration does not say which they are: folders are relative to it.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterable
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from naiad_building.declared.declaration import Declaration
from naiad_building.declared.interpreter import ChosenPython
from naiad_building.lockfiles import Pin

if TYPE_CHECKING:
    from naiad_building.declared.conda import CondaDeclaration, CondaPackages

__all__ = ["conda_key", "conda_resolution_key", "resolution_key", "venv_key"]

_FORMAT = 1
"""Of what is built; another one when the same packages give other files."""


def venv_key(python: ChosenPython, pins: Iterable[Pin]) -> str:
    """The digest of a virtual environment: its interpreter, and its packages in any order, with their digests."""
    packages = [[pin.name.lower(), pin.version, sorted(pin.digests)] for pin in pins]
    return _digest([_FORMAT, python.version, python.abi, str(python.prefix), sorted(packages)])


def conda_key(declaration: CondaDeclaration, packages: CondaPackages) -> str:
    """The digest of an environment of conda packages, which have a platform, and the declaration's variables."""
    return _digest([_FORMAT, "conda", packages.identity, sorted(declaration.variables.items())])


def resolution_key(declaration: Declaration, python: ChosenPython) -> str:
    """The digest of what packages of PyPI are resolved from."""
    return _digest([_FORMAT, declaration.text, python.version, python.abi, *declaration.indexes.places])


def conda_resolution_key(declaration: CondaDeclaration, python: SpecifierSet | None) -> str:
    """The digest of what conda packages are resolved from, for the platform of this process."""
    required = sorted(map(str, python or ()))
    return _digest([_FORMAT, "conda", declaration.text, required, sysconfig.get_platform(), *declaration.places])


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
