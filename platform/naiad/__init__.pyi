from naiad.inprocess import (
    AlreadyExistsError as AlreadyExistsError,
)
from naiad.inprocess import (
    AsyncResponseIterator as AsyncResponseIterator,
)
from naiad.inprocess import (
    DataType as DataType,
)
from naiad.inprocess import (
    DLDeviceType as DLDeviceType,
)
from naiad.inprocess import (
    InferenceRequest as InferenceRequest,
)
from naiad.inprocess import (
    InferenceResponse as InferenceResponse,
)
from naiad.inprocess import (
    InstanceGroupKind as InstanceGroupKind,
)
from naiad.inprocess import (
    InternalError as InternalError,
)
from naiad.inprocess import (
    InvalidArgumentError as InvalidArgumentError,
)
from naiad.inprocess import (
    KServeGrpc as KServeGrpc,
)
from naiad.inprocess import (
    KServeHttp as KServeHttp,
)
from naiad.inprocess import (
    LogFormat as LogFormat,
)
from naiad.inprocess import (
    MemoryBuffer as MemoryBuffer,
)
from naiad.inprocess import (
    MemoryType as MemoryType,
)
from naiad.inprocess import (
    Metric as Metric,
)
from naiad.inprocess import (
    MetricFamily as MetricFamily,
)
from naiad.inprocess import (
    MetricFormat as MetricFormat,
)
from naiad.inprocess import (
    MetricKind as MetricKind,
)
from naiad.inprocess import (
    Metrics as Metrics,
)
from naiad.inprocess import (
    Model as Model,
)
from naiad.inprocess import (
    ModelBatchFlag as ModelBatchFlag,
)
from naiad.inprocess import (
    ModelControlMode as ModelControlMode,
)
from naiad.inprocess import (
    ModelDictionary as ModelDictionary,
)
from naiad.inprocess import (
    ModelLoadDeviceLimit as ModelLoadDeviceLimit,
)
from naiad.inprocess import (
    ModelTxnPropertyFlag as ModelTxnPropertyFlag,
)
from naiad.inprocess import (
    NotFoundError as NotFoundError,
)
from naiad.inprocess import (
    Options as Options,
)
from naiad.inprocess import (
    RateLimiterResource as RateLimiterResource,
)
from naiad.inprocess import (
    RateLimitMode as RateLimitMode,
)
from naiad.inprocess import (
    ResponseIterator as ResponseIterator,
)
from naiad.inprocess import (
    Server as Server,
)
from naiad.inprocess import (
    Tensor as Tensor,
)
from naiad.inprocess import (
    TritonError as TritonError,
)
from naiad.inprocess import (
    UnavailableError as UnavailableError,
)
from naiad.inprocess import (
    UnknownError as UnknownError,
)
from naiad.inprocess import (
    UnsupportedError as UnsupportedError,
)

__version__: str
