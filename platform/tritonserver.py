"""naiad's in-process API under the name of Triton's package `tritonserver`.

A module and not a package, because an import prefers the package of the same folder: where both are installed, the
real one is imported, and neither overwrites a file of the other. It is also preferred in a later folder of `sys.path`.
"""

from naiad_stub.later_module import import_later_module


def _take_the_name() -> None:
    """Set the package's names onto this module and make its private modules importable."""
    import sys

    import naiad
    from naiad_embedded import _api, _c, inprocess
    from naiad_embedded.private_names import define_private_modules

    module = sys.modules[__name__]
    for name in inprocess.__all__:
        setattr(module, name, getattr(inprocess, name))
    module.__dict__.update(__version__=naiad.__version__, __all__=[*inprocess.__all__], __path__=[], _api=_api, _c=_c)
    define_private_modules(__name__)


if not import_later_module(__name__, __file__):
    _take_the_name()
