"""The private modules of the package `tritonserver`, under the names of other packages."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

from naiad_embedded import _api, _c


def define_private_modules(package: str) -> None:
    """Make `_api`, `_c` and their modules importable below *package*: the same modules, under further names."""
    for private in (_api, _c):
        alias = f"{package}.{private.__name__.rpartition('.')[2]}"
        sys.modules[alias] = private
        for each in iter_modules(private.__path__):
            sys.modules[f"{alias}.{each.name}"] = import_module(f"{private.__name__}.{each.name}")
