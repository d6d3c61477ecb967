"""Reads the inputs of a request that are in regions of clients' shared memory, before the request is checked.

Long inputs are read straight into the input segment of an instance (`EngineFacade.reserve_input`), so that they are
copied once. What is read counts in the budget for requests, like bodies: a request of 200 bytes may name a region of
gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from naiad.core.errors import InvalidRequestError, NaiadError, NotReadyError
from naiad.engine.facade import EngineFacade
from naiad.frontends.callbacks import do_nothing
from naiad.frontends.extensions import Extensions
from naiad.frontends.offload.background import has_long_strings
from naiad.frontends.offload.exchanges import Cancellable
from naiad.frontends.offload.slices import SlicedJob
from naiad.frontends.regions import RegionPart
from naiad.frontends.request_budget import Charge, too_long_for_budget
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.protocol.device_bytes import DeviceUse, as_data
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.protocol.request_plan import offsets_of

_READ_AT_ONCE = 1 << 20  # bytes that are read in one piece: 0.2 to 0.4 ms
_RESERVED_FROM = 128 << 10  # bytes of inputs from which they are read into the segment of an instance, as of bodies


Start: TypeAlias = Callable[[Callable[[None], None], Callable[[Exception], None]], Cancellable]
"""Starts work, given what to call at its end and with its error."""


def complete_inputs(
    request: InferRequest,
    requested: RequestedOutputs | None,  # which of its inputs are in regions
    engine: EngineFacade,
    extensions: Extensions,
    later: Callable[[Start, Callable[[None], None]], None],  # work that takes long, and what follows it
    submit: Callable[[], None],
) -> None:
    """Submit a request, after its inputs in shared memory are read, and its strings are counted if they are many."""

    def count_strings(_: None = None) -> None:
        if has_long_strings(request):
            later(partial(extensions.background.count_strings, request), lambda _: submit())
        else:
            submit()

    if requested is None or not requested.has_region_inputs:
        count_strings()
        return
    reading = RegionReading(request, requested, engine, extensions)
    if reading.is_short:
        reading.read()
        count_strings()
    else:
        later(reading.start, count_strings)


@dataclass(slots=True, eq=False)
class RegionReading:
    """Reads the inputs of one request: at once (`is_short`, `read`) or in slices (`start`).

    Implements `Receiver` of the budget, and `Cancellable`.
    """

    _request: InferRequest
    _requested: RequestedOutputs  # gets the parts and the charge, and releases them when the request ends
    _engine: EngineFacade
    _extensions: Extensions
    _inputs: list[tuple[InputTensor, RegionPart]] = field(init=False)
    _size: int = field(init=False)
    _charge: Charge | None = None
    _is_stopped: bool = False  # by the budget
    _job: SlicedJob | None = None
    _steps: Generator[bool, None, None] | None = None
    _on_done: Callable[[None], None] = do_nothing
    _on_failed: Callable[[Exception], None] = do_nothing

    def __post_init__(self) -> None:
        inputs = _parts_of(self._request)
        self._inputs = [(tensor, part) for tensor, part in inputs if not part.is_on_device]
        self._place_on_device([(tensor, part) for tensor, part in inputs if part.is_on_device])
        self._size = sum([len(part) for _, part in self._inputs])
        limit = self._extensions.memory.budget.limit
        if self._size > limit:
            raise InvalidRequestError(too_long_for_budget("input in shared memory", self._size, limit))

    def _place_on_device(self, found: Sequence[tuple[InputTensor, RegionPart]]) -> None:
        if not found:
            return
        for tensor, part in found:
            tensor.data = as_data(part.device_bytes())
        self._request.device = self._request.device or DeviceUse()
        self._request.device.has_inputs = True
        self._requested.read = [part for _, part in found]

    @property
    def is_short(self) -> bool:
        """Whether the inputs can be read at once."""
        budget = self._extensions.memory.budget
        return self._size <= _READ_AT_ONCE and budget.in_use + self._size <= budget.soft_limit

    def read(self) -> None:
        charge = self._requested.charge = self._extensions.memory.budget.open(self)
        charge.add(self._size)
        charge.complete()
        targets = self._targets()
        for (_, part), target in zip(self._inputs, targets, strict=True):
            part.read(target)
        self._replace(targets)

    def start(self, on_done: Callable[[None], None], on_failed: Callable[[Exception], None]) -> RegionReading:
        self._on_done, self._on_failed = on_done, on_failed
        self._charge = self._extensions.memory.budget.open(self)
        self._steps = self._read_steps()
        self._extensions.region_readings.append(self)
        self.resume()
        return self

    def cancel(self) -> None:
        """End the reading; neither callback is called any more."""
        job, self._job, self._steps = self._job, None, None
        self._on_done = self._on_failed = do_nothing
        charge, self._charge = self._charge, None
        if job is not None:
            job.cancel()
        if charge is not None:
            charge.release()
        waiting = self._extensions.region_readings
        if self in waiting:
            was_first = waiting[0] is self
            waiting.remove(self)
            if was_first and waiting:
                waiting[0].resume()

    def resume_receiving(self) -> None:
        if self._is_stopped:
            self._is_stopped = False
            self.resume()

    def refuse(self, reason: str) -> None:
        self._fail(NotReadyError(reason))

    def resume(self) -> None:
        """Read on, if it is this one's turn.

        One reading follows the other: several that have each read a part of their inputs could fill the budget, and
        none of them would ever end.
        """
        if self._steps is not None and self._job is None and self._extensions.region_readings[0] is self:
            job = self._extensions.background.slices.start(self._until_stopped(self._steps), self._on_pause, self._fail)
            self._job = job

    def _until_stopped(self, steps: Generator[bool, None, None]) -> Generator[None, None, bool]:
        """Read on; return True at the end, False where the budget is full."""
        for may_continue in steps:
            if self._steps is None:
                return False  # refused
            if not may_continue:
                self._is_stopped = True
                return False
            yield
        return True

    def _on_pause(self, is_done: bool) -> None:  # noqa: FBT001 - a callback's only argument
        self._job = None
        if not is_done:
            return
        charge, self._charge = self._charge, None
        on_done = self._on_done
        if charge is not None:
            charge.complete()
            self._requested.charge = charge
        self.cancel()
        on_done(None)

    def _fail(self, problem: Exception) -> None:
        on_failed = self._on_failed
        self.cancel()
        on_failed(problem)

    def _read_steps(self) -> Generator[bool, None, None]:
        """Read all parts; yields whether to continue at once."""
        charge = self._charge
        assert charge is not None
        targets = self._targets()
        for (_, part), target in zip(self._inputs, targets, strict=True):
            for count in part.read_steps(target):
                yield charge.add(count)
        self._replace(targets)

    def _targets(self) -> Sequence[memoryview]:
        """Memory for each part. In the segment of an instance, they are where its guest expects them."""
        sizes = [len(part) for _, part in self._inputs]
        starts, end = offsets_of(sizes)
        room = self._reserve(end) if end >= _RESERVED_FROM else memoryview(bytearray(end))
        return [room[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    def _reserve(self, size: int) -> memoryview:
        room = None
        request = self._request
        if len(self._inputs) == len(request.inputs):  # otherwise they would be copied again
            try:
                room = self._engine.reserve_input(request.model_name, request.model_version, size, 0)
            except NaiadError:
                room = None  # the engine reports it when the request is submitted
        if room is not None:
            return room
        import numpy as np  # imported late: see `protocol.numpy_types`

        return memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type] # as in `guests.memory.tracking`

    def _replace(self, targets: Sequence[memoryview]) -> None:
        """The inputs have their bytes; the regions stay in use until the request ends."""
        for (tensor, part), target in zip(self._inputs, targets, strict=True):
            tensor.data = target
            self._requested.read.append(part)


def _parts_of(request: InferRequest) -> list[tuple[InputTensor, RegionPart]]:
    found: list[tuple[InputTensor, object]] = [(tensor, tensor.data) for tensor in request.inputs]
    return [(tensor, data) for tensor, data in found if isinstance(data, RegionPart)]  # a `Buffer` everywhere else
