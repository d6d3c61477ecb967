"""A server in this process: the API of the packages `tritonserver` and `tritonfrontend`, also as `import naiad`."""

from naiad.inprocess.enums import (
    DataType,
    DLDeviceType,
    InstanceGroupKind,
    LogFormat,
    MemoryType,
    MetricFormat,
    MetricKind,
    ModelBatchFlag,
    ModelControlMode,
    ModelTxnPropertyFlag,
    RateLimitMode,
)
from naiad.inprocess.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from naiad.inprocess.memory import MemoryBuffer
from naiad.inprocess.metrics import Metric, MetricFamily
from naiad.inprocess.model import Model, ModelDictionary
from naiad.inprocess.options import ModelLoadDeviceLimit, Options, RateLimiterResource
from naiad.inprocess.request import InferenceRequest
from naiad.inprocess.response import AsyncResponseIterator, InferenceResponse, ResponseIterator
from naiad.inprocess.server import Server
from naiad.inprocess.services import KServeGrpc, KServeHttp, Metrics
from naiad.inprocess.tensor import Tensor

__all__ = [
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
]
