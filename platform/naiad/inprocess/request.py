"""Requests of the in-process API."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import dataclass, field
from typing import Any, Protocol

from naiad.inprocess.enums import MemoryType
from naiad.inprocess.errors import InvalidArgumentError
from naiad.inprocess.memory import DeviceOrMemoryType, parse_device_or_memory_type
from naiad.inprocess.tensor import Tensor
from naiad.protocol.inference import InferRequest

__all__ = ["InferenceRequest", "NamedModel"]


class NamedModel(Protocol):
    """A model as requests and responses know it."""

    name: str
    version: int

    def _answering(self, name: str, version: int) -> NamedModel:
        """The model of that name and version on the same server."""


@dataclass
class InferenceRequest:
    """One request, made by `Model.create_request` or by `Model.infer` itself.

    Attributes:
        model: Who is to answer it.
        request_id: The caller's id of it.
        flags: 1 for the start of a sequence, 2 for its end.
        correlation_id: The sequence it belongs to.
        priority: Its priority, 0 for the model's default.
        timeout: Microseconds it may wait, 0 for any.
        inputs: Tensors by the names of inputs, or what can be one: arrays, lists, objects with `__dlpack__`. Their
            memory is read when the model gets it: leave it alone until there is a response.
        parameters: Parameters for the model.
        output_memory_type: Where outputs are to be; memory of the CPU unless given, and nothing else here.
        response_queue: A queue that gets each response, too: `queue.SimpleQueue` for `infer`, `asyncio.Queue` for
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
        """The request as the engine takes it.

        Raises:
            InvalidArgumentError: If part of it cannot be used.
        """
        self._check_output_memory()
        for value in self.parameters.values():
            if not isinstance(value, str | int | float):
                raise InvalidArgumentError(
                    f"Unsupported Value. Can't convert {type(value)} to Request Parameter: strings, integers, floats "
                    "and bools can be one"
                )
        return InferRequest(
            self.model.name,
            self.model.version,
            [Tensor._from_object(value)._as_input(name) for name, value in self.inputs.items()],  # noqa: SLF001
            request_id=self.request_id or "",
            parameters=dict(self.parameters),
            correlation_id=self.correlation_id or 0,
            flags=self.flags,
            priority=self.priority,
            timeout_us=self.timeout,
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
