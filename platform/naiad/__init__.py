"""naiad serves models written in Python, each in its own Python.

The folders of this package are the stages of the job and import only downward; `docs/explanation/architecture.md`
lists them with one line of purpose each.
"""

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
"""What `import naiad` offers as `import tritonserver` does; loaded when asked for, as the server's code is large."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'naiad' has no attribute '{name}'")
    found = _version() if name == "__version__" else getattr(import_module("naiad.inprocess"), name)
    globals()[name] = found
    return found


def _version() -> str:
    # When asked for, not at each start of a program: what reads it takes longer to import than the rest of Python.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("naiad")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0.0.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
