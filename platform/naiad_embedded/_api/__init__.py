"""The modules of `tritonserver._api`, which NVIDIA's OpenAI frontend and others use although they are private there.

Each has the public names of the package's module. What they are is in `naiad_embedded.inprocess`.
"""

import sys
from types import ModuleType

from naiad_embedded import inprocess
from naiad_embedded._api import _datautils, _logging
from naiad_embedded.inprocess.memory import DeviceOrMemoryType

_NAMES = {
    "_dlpack": ("DLDeviceType",),
    "_memorybuffer": ("DLDeviceType", "DeviceOrMemoryType", "MemoryBuffer", "MemoryType"),
    "_model": ("Model", "ModelBatchFlag", "ModelTxnPropertyFlag"),
    "_request": ("DataType", "InferenceRequest", "MemoryType"),
    "_response": ("AsyncResponseIterator", "InferenceResponse", "ResponseIterator"),
    "_server": (
        *("InstanceGroupKind", "LogFormat", "Metric", "MetricFamily", "MetricFormat", "MetricKind", "ModelControlMode"),
        *("ModelDictionary", "ModelLoadDeviceLimit", "Options", "RateLimitMode", "RateLimiterResource", "Server"),
    ),
    "_tensor": ("DataType", "DeviceOrMemoryType", "MemoryBuffer", "MemoryType", "Tensor"),
}
"""The names of the modules that have nothing else."""
MODULES = ("_datautils", "_logging", *_NAMES)

__all__ = ["MODULES", "_datautils", "_logging"]


def _define(module: str) -> ModuleType:
    defined = ModuleType(f"{__name__}.{module}", f"`tritonserver._api.{module}`.")
    names = {**vars(inprocess), "DeviceOrMemoryType": DeviceOrMemoryType}
    defined.__dict__.update({name: names[name] for name in _NAMES[module]}, __all__=[*_NAMES[module]])
    sys.modules[defined.__name__] = defined
    return defined


globals().update({module: _define(module) for module in _NAMES})
