"""naiad's services under the name of Triton's package `tritonfrontend`; yields to it as `tritonserver` does."""

from naiad_stub.later_module import import_later_module

_SERVICES = {"_kservegrpc": "KServeGrpc", "_kservehttp": "KServeHttp", "_metrics": "Metrics"}
"""The class of each private module."""
_ERRORS = (
    "AlreadyExistsError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
)


def _take_the_name() -> None:
    """Set the package's names onto this module and make its private modules importable."""
    import sys
    from types import ModuleType

    import naiad
    from naiad_embedded import inprocess

    module = sys.modules[__name__]

    def define(place: str, *names: str) -> None:
        """A module below this one, with names of the in-process API; a package, as modules may be below it."""
        defined = ModuleType(f"{__name__}.{place}", "Names of naiad's in-process API.")
        defined.__dict__.update({name: getattr(inprocess, name) for name in names}, __all__=[*names], __path__=[])
        sys.modules[defined.__name__] = defined
        parent, _, name = defined.__name__.rpartition(".")
        setattr(sys.modules[parent], name, defined)

    for name in (*_SERVICES.values(), *_ERRORS):
        setattr(module, name, getattr(inprocess, name))
    names = [*_SERVICES.values(), *_ERRORS]
    module.__dict__.update(__version__=naiad.__version__, __all__=names, __path__=[])
    define("_api", *_SERVICES.values())
    for private, service in _SERVICES.items():
        define(f"_api.{private}", service)
    define("_c", *_ERRORS)
    define("_c.tritonfrontend_bindings", *_ERRORS)


if not import_later_module(__name__, __file__):
    _take_the_name()
