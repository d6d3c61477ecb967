"""Requests of the in-process API."""

from __future__ import annotations

import asyncio
import operator
import queue
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict

from naiad.protocol.inference import InferRequest, Parameter
from naiad_embedded.inprocess.enums import MemoryType
from naiad_embedded.inprocess.errors import InvalidArgumentError
from naiad_embedded.inprocess.memory import DeviceOrMemoryType, parse_device_or_memory_type
from naiad_embedded.inprocess.tensor import Tensor


class NamedModel(Protocol):
    """The part of `Model` that requests and responses use; `model` imports this module, so it cannot be named here."""

    name: str
    version: int

    def _on_same_server(self, name: str, version: int) -> NamedModel:
        """A model of the same server."""


class RequestFields(TypedDict, total=False):
    """The fields of `InferenceRequest` but its model, as arguments; type checkers report what it does not have."""

    request_id: str | None
    flags: int
    correlation_id: int | str | None
    priority: int
    timeout: int
    inputs: dict[str, Tensor | Any]
    parameters: dict[str, str | int | bool | float]
    output_memory_type: DeviceOrMemoryType | None
    response_queue: queue.SimpleQueue[Any] | asyncio.Queue[Any] | None


@dataclass
class InferenceRequest:
    """One request, made by `Model.create_request` or by `Model.infer`.

    Attributes:
        model: The model.
        request_id: The caller's id of the request.
        flags: 1 for the start of a sequence, 2 for its end.
        correlation_id: Id of the sequence.
        priority: The priority, 0 for the model's default.
        timeout: Microseconds that the request may wait in the queue, 0 to apply only the model's limit.
        inputs: Tensors by input name, or objects that can be converted: arrays, lists, objects with `__dlpack__`. Their
            memory is read when the request is dispatched; do not change it before the first response.
        parameters: Parameters of the request.
        output_memory_type: Memory for the outputs; only memory of the CPU is supported, which is the default.
        response_queue: A queue that also gets each response: `queue.SimpleQueue` for `infer`, `asyncio.Queue` for
            `async_infer`.
    """

    model: NamedModel
    request_id: str | None = None
    flags: int = 0
    correlation_id: int | str | None = None
    priority: int = 0
    timeout: int = 0
    inputs: dict[str, Tensor | Any] = field(default_factory=dict)
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    output_memory_type: DeviceOrMemoryType | None = None
    response_queue: queue.SimpleQueue[Any] | asyncio.Queue[Any] | None = None

    def _for_engine(self) -> InferRequest:
        """The request as a value of the engine.

        TypeError if a field has a wrong type, or is a number out of range: what the package raises, too.
        InvalidArgumentError if an input, a parameter or the output memory is not supported.
        """
        self._check_output_memory()
        correlation = self.correlation_id
        return InferRequest(
            _text("the name of the model", self.model.name),
            _integer("the version of the model", self.model.version, _INT64),
            [
                Tensor._from_object(value)._as_input(_text("the name of an input", name))  # noqa: SLF001 - of this package
                for name, value in _dictionary("inputs", self.inputs).items()
            ],
            request_id=_text("request_id", self.request_id or ""),
            parameters=_parameters(_dictionary("parameters", self.parameters)),
            correlation_id=_text("correlation_id", correlation)
            if isinstance(correlation, str)
            else _integer("correlation_id", correlation or 0, _UINT64, "a string or "),
            flags=_integer("flags", self.flags, _UINT32),
            priority=_integer("priority", self.priority, _UINT64),
            timeout_us=_integer("timeout", self.timeout, _UINT64),
        )

    def _check_output_memory(self) -> None:
        wanted = self.output_memory_type
        if wanted is None:
            return
        kind, _ = parse_device_or_memory_type(wanted)
        if kind is MemoryType.GPU:
            raise InvalidArgumentError(
                f"Memory type {wanted} not supported: naiad leaves GPUs to the models, and outputs come in memory of "
                "the CPU"
            )


_INT64 = range(-(1 << 63), 1 << 63)
_UINT32 = range(1 << 32)
_UINT64 = range(1 << 64)


def _integer(name: str, value: Any, allowed: range, or_else: str = "") -> int:
    """An integer of any kind, such as numpy's, as an int."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number not in allowed:
        raise TypeError(
            f"cannot submit the request: {name} must be {or_else}an integer from {allowed[0]} to {allowed[-1]}, not "
            f"{value!r}"
        )
    return number


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"cannot submit the request: {name} must be a string, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"cannot submit the request: {name} cannot be encoded as UTF-8: {error}") from None
    return value


def _dictionary(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"cannot submit the request: {name} must be a dictionary, not {value!r}")
    return value


def _parameters(given: dict[Any, Any]) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for key, value in given.items():
        name = _text("the name of a parameter", key)
        if isinstance(value, str):
            parameters[name] = _text(f"parameter '{name}'", value)
        elif isinstance(value, bool):
            parameters[name] = value
        elif isinstance(value, float):
            parameters[name] = float(value)  # also numpy's, which cannot be packed
        elif isinstance(value, int):
            parameters[name] = _integer(f"parameter '{name}'", value, _INT64)
        else:
            raise InvalidArgumentError(
                f"Unsupported Value. Can't convert {type(value)} to Request Parameter: strings, integers, floats "
                "and bools can be one"
            )
    return parameters
