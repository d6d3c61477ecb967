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
    """The part of `Model` that requests and responses use; `model` imports this module, so it cannot be named here."""

    name: str
    version: int

    def _on_same_server(self, name: str, version: int) -> NamedModel:
        """A model of the same server."""


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

        Raises:
            InvalidArgumentError: If an input, a parameter or the output memory is not supported.
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
            [Tensor._from_object(value)._as_input(name) for name, value in self.inputs.items()],  # noqa: SLF001 - of this package
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
