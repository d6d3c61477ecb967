"""The named values of the in-process API; numbers are those of the reference's C API."""

from __future__ import annotations

import enum

from naiad.protocol.datatypes import Datatype as DataType

__all__ = [
    "DLDeviceType",
    "DataType",
    "InstanceGroupKind",
    "LogFormat",
    "MemoryType",
    "MetricFormat",
    "MetricKind",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelTxnPropertyFlag",
    "RateLimitMode",
]


class ModelControlMode(enum.IntEnum):
    """Who decides which models are loaded."""

    NONE = 0
    POLL = 1
    EXPLICIT = 2


class RateLimitMode(enum.IntEnum):
    """Whether instances share limited resources."""

    OFF = 0
    EXEC_COUNT = 1


class LogFormat(enum.IntEnum):
    """How a line of the log starts."""

    DEFAULT = 0
    ISO8601 = 1


class InstanceGroupKind(enum.IntEnum):
    """Where instances run."""

    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class MemoryType(enum.IntEnum):
    """Where a tensor's bytes are."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class DLDeviceType(enum.IntEnum):
    """The same in DLPack's numbers."""

    kDLCPU = 1  # noqa: N815 - the names are DLPack's
    kDLCUDA = 2  # noqa: N815
    kDLCUDAHost = 3  # noqa: N815


class ModelBatchFlag(enum.IntFlag):
    """Whether the first dimension of a model's tensors is a batch."""

    UNKNOWN = 1
    FIRST_DIM = 2


class ModelTxnPropertyFlag(enum.IntFlag):
    """How many responses a model gives to a request."""

    ONE_TO_ONE = 1
    DECOUPLED = 2


class MetricFormat(enum.IntEnum):
    """Formats of metrics."""

    PROMETHEUS = 0


class MetricKind(enum.IntEnum):
    """What a metric's value does."""

    COUNTER = 0
    GAUGE = 1
