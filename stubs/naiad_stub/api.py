"""Sets the API's names on `triton_python_backend_utils`, and makes `c_python_backend_utils` importable.

The utils module may be a backend's own, so nothing is assumed about its content.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any, Dict

from naiad_stub import runtime
from naiad_stub.calls import ResponseIterator
from naiad_stub.control import is_model_ready, load_model, unload_model
from naiad_stub.exceptions import API_MODULE, ModelLoadError, TritonError, TritonModelException
from naiad_stub.logger import Logger
from naiad_stub.metrics import Metric, MetricFamily, MetricKind
from naiad_stub.request import InferenceRequest, InferenceTrace, MemoryType, PreferredMemory
from naiad_stub.response import InferenceResponse
from naiad_stub.sender import InferenceResponseSender
from naiad_stub.tensor import Tensor

UTILS_NAME = "triton_python_backend_utils"

_is_preparing = False
"""Whether a guest imports its utils module at the moment."""


def get_model_dir() -> str:
    """The folder of the model's version, as written in the server's model repository."""
    return runtime.current().model_dir


def get_backend_config() -> Dict[str, str]:
    """The settings of the model's backend, as `--backend-config=<backend>,<setting>=<value>` gives them.

    Settings for all backends are among them. Not part of the reference's API, where a backend in Python has none.
    """
    return dict(runtime.current().backend_config)


class _WithoutConstructor:
    """A class without constructor: only the server makes its objects."""

    __slots__ = ()
    __module__ = API_MODULE

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}: No constructor defined!")


class SharedMemory(_WithoutConstructor):
    """Defined because the reference has this name; it is never instantiated."""

    __slots__ = ()
    __module__ = API_MODULE


_UTILS: Dict[str, Any] = {
    "TritonError": TritonError,
    "TritonModelException": TritonModelException,
    "ModelLoadError": ModelLoadError,
    "TritonInferenceException": TritonModelException,  # some models catch it by this name
    "Tensor": Tensor,
    "InferenceRequest": InferenceRequest,
    "InferenceResponse": InferenceResponse,
    "Logger": Logger,
    "PreferredMemory": PreferredMemory,
    "MetricFamily": MetricFamily,
    "load_model": load_model,
    "unload_model": unload_model,
    "is_model_ready": is_model_ready,
    "get_model_dir": get_model_dir,
    "get_backend_config": get_backend_config,
    "TRITONSERVER_MEMORY_GPU": MemoryType.TRITONSERVER_MEMORY_GPU,
    "TRITONSERVER_MEMORY_CPU": MemoryType.TRITONSERVER_MEMORY_CPU,
}
"""Names that are set on the utils module."""

_EXTENSION: Dict[str, Any] = {
    "Metric": Metric,
    "MetricKind": MetricKind,
    "COUNTER": MetricKind.COUNTER,
    "GAUGE": MetricKind.GAUGE,
    "HISTOGRAM": MetricKind.HISTOGRAM,
    "InferenceResponseSender": InferenceResponseSender,
    "InferenceTrace": InferenceTrace,
    "MemoryType": MemoryType,
    "ResponseIterator": ResponseIterator,
    "SharedMemory": SharedMemory,
}
"""Names of `c_python_backend_utils` beyond those of the utils module."""


def prepare(utils_dir: str) -> None:
    """Import the utils module of *utils_dir*, and set the API's names on it.

    It is imported by its path, because utils and stub belong together. By its name, a copy beside the model or in the
    environment could be found instead; people keep such copies for their editors.
    """
    global _is_preparing  # noqa: PLW0603 - read by the module that is imported below
    path = os.path.join(utils_dir, UTILS_NAME + ".py")
    if getattr(sys.modules.get(UTILS_NAME), "__file__", None) == path:
        return
    if not os.path.isfile(path):
        raise TritonModelException(f"{UTILS_NAME}.py not found in '{utils_dir}'")
    loader = SourceFileLoader(UTILS_NAME, path)
    module = ModuleType(UTILS_NAME)
    module.__file__ = path
    module.__loader__ = loader
    module.__spec__ = ModuleSpec(UTILS_NAME, loader, origin=path)
    sys.modules[UTILS_NAME] = module
    _is_preparing = True
    try:
        loader.exec_module(module)
    finally:
        _is_preparing = False
    install(module)


def install_outside(name: str) -> None:
    """Set the API's names on the utils module that is imported as *name*, unless a guest does that itself."""
    module = sys.modules.get(name)
    if name == UTILS_NAME and module is not None and not _is_preparing:
        install(module)


def install(utils_module: ModuleType) -> None:
    """Set the API's names onto *utils_module* and make `c_python_backend_utils` importable."""
    for name, value in _UTILS.items():
        setattr(utils_module, name, value)
    extension = ModuleType(API_MODULE, "The names of the reference's extension module.")
    for names in (_UTILS, _EXTENSION):
        for name, value in names.items():
            setattr(extension, name, value)
    sys.modules[API_MODULE] = extension
