"""naiad serves models written in Python, each in its own Python.

The folders of this package are layers, which import only lower ones; `docs/explanation/architecture.md` lists them.
"""

import sys
from importlib import import_module

__all__ = (
    "AlreadyExistsError",
    "AsyncResponseIterator",
    "DLDeviceType",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "KServeGrpc",
    "KServeHttp",
    "LogFormat",
    "MemoryBuffer",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "Metrics",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "ResponseIterator",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    "__version__",
)
"""The names of the `tritonserver` package; `__getattr__` imports the server's code when one of them is used."""


_PRIVATE = ("_api", "_c")
"""Private modules of that package, which programs use all the same."""


def __getattr__(name: str) -> object:
    if name in _PRIVATE:
        return import_module(f"naiad_embedded.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'naiad' has no attribute '{name}'")
    found = _version() if name == "__version__" else getattr(import_module("naiad_embedded.inprocess"), name)
    globals()[name] = found
    return found


def _version() -> str:
    # In the name of our `.dist-info`: importlib.metadata takes longer to import than all else that a command needs.
    from pathlib import Path

    for folder in sys.path:
        for found in Path(folder).glob("naiad-*.dist-info"):
            return found.stem.removeprefix("naiad-")
    return "0.0.0"  # run from a source tree that was never installed


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
