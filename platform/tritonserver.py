"""naiad's in-process API under the name of Triton's package `tritonserver`.

A module and not a package, because an import prefers the package of the same folder: where both are installed, the
real one is imported, and neither overwrites a file of the other. It is also preferred in a later folder of `sys.path`.
"""

from naiad_stub.later_module import import_later_module


def _take_the_name() -> None:
    """Set the package's names onto this module and make its private modules importable."""
    import sys
    from importlib import import_module
    from pkgutil import iter_modules

    import naiad
    from naiad_embedded import _api, _c, inprocess

    module = sys.modules[__name__]
    for name in inprocess.__all__:
        setattr(module, name, getattr(inprocess, name))
    module.__dict__.update(__version__=naiad.__version__, __all__=[*inprocess.__all__], __path__=[], _api=_api, _c=_c)
    for private in (_api, _c):
        alias = private.__name__.replace("naiad", __name__, 1)
        sys.modules[alias] = private
        for each in iter_modules(private.__path__):
            sys.modules[f"{alias}.{each.name}"] = import_module(f"{private.__name__}.{each.name}")


if not import_later_module(__name__, __file__):
    _take_the_name()
