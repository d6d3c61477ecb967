"""A server in this process: the API of the packages `tritonserver` and `tritonfrontend`, also as `import naiad`."""

from naiad.protocol.datatypes import Datatype as DataType
from naiad_embedded.inprocess.enums import (
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
from naiad_embedded.inprocess.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from naiad_embedded.inprocess.memory import MemoryBuffer
from naiad_embedded.inprocess.metrics import Metric, MetricFamily
from naiad_embedded.inprocess.model import Model, ModelDictionary
from naiad_embedded.inprocess.options import ModelLoadDeviceLimit, Options, RateLimiterResource
from naiad_embedded.inprocess.request import InferenceRequest
from naiad_embedded.inprocess.response import AsyncResponseIterator, InferenceResponse, ResponseIterator
from naiad_embedded.inprocess.server import Server
from naiad_embedded.inprocess.services import KServeGrpc, KServeHttp, Metrics
from naiad_embedded.inprocess.tensor import Tensor

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
