"""The private modules of the package `tritonserver`, under the names of other packages."""

import sys

from naiad_embedded import _api, _c


def define_private_modules(package: str) -> None:
    """Make `_api`, `_c` and their modules importable below *package*: the same modules, under further names."""
    for private, modules in ((_api, _api.MODULES), (_c, ("triton_bindings",))):
        alias = f"{package}.{private.__name__.rpartition('.')[2]}"
        sys.modules[alias] = private
        for name in modules:
            sys.modules[f"{alias}.{name}"] = getattr(private, name)
