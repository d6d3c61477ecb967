"""The two ways in which long work is kept off the event loop, one object for all frontends of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from math import prod
from typing import Any, TypeVar

from naiad.frontends.offload.deferred import no_deferred
from naiad.frontends.offload.pool import OffloadPool
from naiad.frontends.offload.slices import SlicedJob, SliceScheduler
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import device_bytes
from naiad.protocol.inference import Buffer, InferRequest
from naiad.protocol.strings import scan_steps

T = TypeVar("T")

LONG_STRINGS = 256 << 10  # bytes of BYTES from which elements are counted in slices before the request is checked


class Background:
    """Runs long work."""

    def __init__(self, memory_limit: int | None = None) -> None:
        """Nothing runs yet; reading a request may take *memory_limit* bytes, None for what its length allows."""
        self.slices = SliceScheduler()  # runs generators on the event loop, a slice of them in each turn
        self.pool = OffloadPool(memory_limit=memory_limit)

    async def close(self) -> None:
        self.slices.close()
        await self.pool.close()

    async def run(self, function: Callable[..., T], content: Sequence[Buffer], *arguments: Any) -> T:
        """The result of a function that runs in a process of the pool, without `Deferred` objects."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = self.pool.start(function, content, arguments, no_deferred, result.set_result, result.set_exception)
        try:
            return await result
        finally:
            task.cancel()
            del task, result  # an error that they hold refers to this frame: see `errors.fresh`

    def count_strings(
        self, request: InferRequest, on_done: Callable[[None], None], on_failed: Callable[[Exception], None]
    ) -> SlicedJob:
        return self.slices.start(_count_strings(request), on_done, on_failed)


def has_long_strings(request: InferRequest) -> bool:
    """Whether a request has BYTES tensors whose elements would take long to count."""
    for tensor in request.inputs:
        is_long = tensor.datatype is Datatype.BYTES and tensor.strings is None and len(tensor.data) >= LONG_STRINGS
        if is_long and device_bytes(tensor.data) is None:
            return True
    return False


def _count_strings(request: InferRequest) -> Generator[None, None, None]:
    for tensor in request.inputs:
        if tensor.datatype is Datatype.BYTES and tensor.strings is None and device_bytes(tensor.data) is None:
            tensor.strings = yield from scan_steps(tensor.data, prod(tensor.shape))
