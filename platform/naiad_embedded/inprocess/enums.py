"""The enumerations of the in-process API; the numbers are those of the reference's C API."""

from __future__ import annotations

import enum


class ModelControlMode(enum.IntEnum):
    """How models are chosen for loading: all at the start, by polling, by calls, or by their first request.

    The package has no `DEMAND`.
    """

    NONE = 0
    POLL = 1
    EXPLICIT = 2
    DEMAND = 3


class RateLimitMode(enum.IntEnum):
    """Whether the rate limiter is enabled."""

    OFF = 0
    EXEC_COUNT = 1


class LogFormat(enum.IntEnum):
    """Format of the beginning of a log line."""

    DEFAULT = 0
    ISO8601 = 1


class InstanceGroupKind(enum.IntEnum):
    """The device that instances run on."""

    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class MemoryType(enum.IntEnum):
    """The memory that a tensor is in."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class DLDeviceType(enum.IntEnum):
    """The device types of DLPack, with its numbers."""

    kDLCPU = 1  # noqa: N815 - DLPack's name
    kDLCUDA = 2  # noqa: N815 - DLPack's name
    kDLCUDAHost = 3  # noqa: N815 - DLPack's name


class ModelBatchFlag(enum.IntFlag):
    """Whether the first dimension of a model's tensors is the batch dimension."""

    UNKNOWN = 1
    FIRST_DIM = 2


class ModelTxnPropertyFlag(enum.IntFlag):
    """Whether a model sends one response to a request or any number."""

    ONE_TO_ONE = 1
    DECOUPLED = 2


class MetricFormat(enum.IntEnum):
    """Format of the metrics text."""

    PROMETHEUS = 0


class MetricKind(enum.IntEnum):
    """The kind of a metric."""

    COUNTER = 0
    GAUGE = 1
