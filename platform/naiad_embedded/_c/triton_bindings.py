"""Enumerations, functions and exceptions under the names of the package's compiled module.

There is no C API in this process, so the objects of that module (`TRITONSERVER_Server` and so on) are missing.
"""

from __future__ import annotations

import enum
import logging

from naiad_embedded import inprocess
from naiad_embedded.inprocess import DataType, InstanceGroupKind, MemoryType

for _name in (
    *("AlreadyExistsError", "InternalError", "InvalidArgumentError", "NotFoundError", "TritonError"),
    *("UnavailableError", "UnknownError", "UnsupportedError"),
):
    globals()[_name] = getattr(inprocess, _name)
for _name in (
    *("DataType", "InstanceGroupKind", "LogFormat", "MemoryType", "Metric", "MetricFamily", "MetricFormat"),
    *("MetricKind", "ModelBatchFlag", "ModelControlMode", "ModelTxnPropertyFlag", "RateLimitMode"),
):
    globals()[f"TRITONSERVER_{_name}"] = getattr(inprocess, _name)

_logger = logging.getLogger("naiad.program")


class TRITONSERVER_LogLevel(enum.IntEnum):  # noqa: N801 - the package's name
    """Level of a message of the log; its numbers are those of the reference's C API."""

    INFO = 0
    WARN = 1
    ERROR = 2
    VERBOSE = 3


class TRITONSERVER_RequestFlag(enum.IntFlag):  # noqa: N801 - the package's name
    """Flags of a request."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2


class TRITONSERVER_ResponseCompleteFlag(enum.IntFlag):  # noqa: N801 - the package's name
    """Flags of a response."""

    FINAL = 1


_LEVELS = {
    TRITONSERVER_LogLevel.INFO: logging.INFO,
    TRITONSERVER_LogLevel.WARN: logging.WARNING,
    TRITONSERVER_LogLevel.ERROR: logging.ERROR,
    TRITONSERVER_LogLevel.VERBOSE: logging.DEBUG,
}


def api_version() -> tuple[int, int]:
    """Major and minor version of the reference's C API that these names are those of."""
    return 1, 34


def TRITONSERVER_DataTypeString(datatype: DataType) -> str:  # noqa: N802 - the package's name
    """The name of a datatype; `<invalid>` for INVALID."""
    return "<invalid>" if datatype is DataType.INVALID else datatype.name


def TRITONSERVER_StringToDataType(name: str) -> DataType:  # noqa: N802 - the package's name
    """The datatype of a name; INVALID for an unknown one."""
    return DataType.__members__.get(name, DataType.INVALID)


def TRITONSERVER_DataTypeByteSize(datatype: DataType) -> int:  # noqa: N802 - the package's name
    """Bytes of one element; 0 for BYTES and INVALID."""
    return datatype.byte_size


def TRITONSERVER_MemoryTypeString(memory_type: MemoryType) -> str:  # noqa: N802 - the package's name
    """The name of a memory type."""
    return memory_type.name


def TRITONSERVER_InstanceGroupKindString(kind: InstanceGroupKind) -> str:  # noqa: N802 - the package's name
    """The name of a kind."""
    return kind.name


def TRITONSERVER_LogIsEnabled(level: TRITONSERVER_LogLevel) -> bool:  # noqa: N802 - the package's name
    """Whether messages of a level are logged."""
    return _logger.isEnabledFor(_LEVELS[level])


def TRITONSERVER_LogMessage(level: TRITONSERVER_LogLevel, filename: str, line: int, message: str) -> None:  # noqa: N802 - the package's name
    """Log a message of the program, as the line *line* of *filename*, in the log of the servers of this process."""
    number = _LEVELS[level]
    if _logger.isEnabledFor(number):
        _logger.handle(_logger.makeRecord(_logger.name, number, filename, line, "%s", (message,), None))
