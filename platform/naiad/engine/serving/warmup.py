"""Warm-up: sample requests that each instance executes before it serves (`model_warmup`).

Texts are the reference's (CORE src/backend_model_instance.cc). Two things differ from it: a sample with more requests
than `max_batch_size` is a configuration error, and statistics do not count samples.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig, datatype_of
from naiad.core.errors import Code, ConfigError, GuestExitedError, ModelError, NaiadError, RepositoryError, fresh
from naiad.engine.serving.compile_plan import compile_plan
from naiad.guests.exchange import GuestResponse
from naiad.guests.worker import Worker
from naiad.models.repository.layout import is_inside
from naiad.protocol.datatypes import BYTE_SIZES, Datatype, zeros
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.protocol.request_plan import RequestPlan

logger = logging.getLogger("naiad.engine")

_FOLDER = "warmup"
MAX_TENSOR_BYTES = 1 << 32  # larger generated tensors are rejected: their shape is most likely a typing error
_PREFIX = "[request id: <id_unknown>] "


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One sample."""

    name: str
    requests: tuple[InferRequest, ...]
    count: int


def read_samples(config: ModelConfig, directory: Path) -> tuple[WarmupSample, ...]:
    """The warm-up samples of a model whose files are under *directory*; blocks."""
    plan = compile_plan(config, 0)
    return tuple(
        WarmupSample(message.name, tuple(_requests(config, message, directory, plan)), max(message.count, 1))
        for message in config.message.model_warmup
        if message.batch_size
    )


def _requests(
    config: ModelConfig, message: pb.ModelWarmup, directory: Path, plan: RequestPlan
) -> Iterator[InferRequest]:
    if message.batch_size > max(config.max_batch_size, 1):
        raise ConfigError(
            f"cannot use warmup sample '{message.name}' of model '{config.name}': its batch_size {message.batch_size} "
            f"exceeds the largest batch of the model, {max(config.max_batch_size, 1)}"
        )
    leading = (1,) if config.max_batch_size > 0 else ()
    known = {tensor.name for tensor in config.inputs}
    tensors = {name: _tensor(name, message.inputs[name], leading, directory) for name in sorted(message.inputs)}
    names = [*(tensor.name for tensor in config.inputs if tensor.name in tensors), *sorted(tensors.keys() - known)]
    for _ in range(message.batch_size):
        inputs = [tensors[name] for name in names]
        try:
            checked = plan.check(InferRequest(config.name, -1, [tensor for tensor in inputs if tensor.name in known]))
        except NaiadError as error:
            raise _with_unknown(error, message.name, sorted(tensors.keys() - known), known) from error
        others = [tensor for tensor in inputs if tensor.name not in known]
        yield replace(checked.request, inputs=(*checked.request.inputs, *others))


def _with_unknown(error: NaiadError, sample: str, unknown: Sequence[str], known: Collection[str]) -> NaiadError:
    """*error* with the inputs of a sample that the model does not have, which it may be about."""
    if not unknown:
        return error
    there = f"its inputs are {', '.join(sorted(known))}" if known else "it has no inputs"
    return type(error)(
        f"{error.message} The warmup sample '{sample}' has {', '.join(map(repr, unknown))}, which the model does not "
        f"have: {there}",
        code=error.code,
    )


def _tensor(name: str, message: pb.ModelWarmup.Input, leading: tuple[int, ...], directory: Path) -> InputTensor:
    if any(dim < 0 for dim in message.dims):
        raise ConfigError(f"warmup setting expects all variable-size dimensions are specified for input '{name}'")
    datatype = datatype_of(message.data_type)
    shape = leading + tuple(message.dims)
    elements = prod(shape)
    width = 0 if datatype is Datatype.INVALID else BYTE_SIZES[datatype]
    if elements * (width or 4) > MAX_TENSOR_BYTES:
        raise ConfigError(f"cannot make warmup input '{name}': shape {list(shape)} exceeds {MAX_TENSOR_BYTES} bytes")
    kind = message.WhichOneof("input_data_type")
    if kind is None:
        raise ConfigError(f"{_PREFIX}warmup setting expects input '{name}' to have input_data_type set")
    data: bytes
    if kind == "input_data_file":
        path = directory / _FOLDER / message.input_data_file
        data = read_data_file(path, directory, f"input_data_file of warmup input '{name}'")
        if width and len(data) < elements * width:
            raise ConfigError(
                f"{_PREFIX}warmup setting expects {elements * width} bytes, but the data provided from "
                f"{message.input_data_file} has {len(data)} bytes"
            )
        data = data[: elements * width] if width else data
    elif width and kind == "random_data":
        data = os.urandom(elements * width)
        data = bytes(byte & 1 for byte in data) if datatype is Datatype.BOOL else data
    else:
        data = zeros(datatype, shape)
    return InputTensor(name, datatype, shape, data)


def read_data_file(path: Path, directory: Path, what: str) -> bytes:
    """The bytes of a tensor in a file of a model; blocks. RepositoryError if unreadable, or outside of *directory*.

    A load request may name any path, also one through a link.
    """
    if not is_inside(path, directory):
        raise RepositoryError(
            f"cannot read {what}: '{path}' is outside of the model's directory; put the file there",
            code=Code.UNSUPPORTED,
        )
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"failed to open text file for read {path}: {error.strerror}"
        raise RepositoryError(message, code=Code.INTERNAL) from error


class _SampleExecution:
    def __init__(self, worker: Worker, keys: Sequence[int]) -> None:
        self.worker = worker
        self.open = set(keys)
        self.problems: list[str] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class WarmUp:
    """Has guests execute the samples of a model version."""

    def __init__(self, samples: Sequence[WarmupSample], keys: Iterator[int]) -> None:
        self._samples = samples
        self._keys = keys
        self._runs: dict[int, _SampleExecution] = {}

    async def run(self, worker: Worker) -> None:
        """Have *worker* execute all samples, one after another."""
        for sample in self._samples:
            for iteration in range(1, sample.count + 1):
                logger.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    worker.spec.load.model_name,
                    worker.spec.name,
                    sample.name,
                    iteration,
                )
                problems = await self._execute(worker, sample)
                if problems:
                    text = "; ".join(problems)
                    raise ModelError(f"failed to run warmup sample '{sample.name}': {text}; ", code=Code.INVALID_ARG)

    async def _execute(self, worker: Worker, sample: WarmupSample) -> list[str]:
        batch = [(next(self._keys), request, None) for request in sample.requests]
        run = _SampleExecution(worker, [key for key, _, _ in batch])
        self._runs.update((key, run) for key, _, _ in batch)
        try:
            worker.execute(batch, 0)
            await run.done
        except NaiadError as error:
            if isinstance(error, GuestExitedError):
                raise
            return [error.message]
        finally:
            for key, _, _ in batch:
                self._runs.pop(key, None)
        return run.problems

    def on_response(self, answer: GuestResponse) -> None:
        """A guest responded to a request that no client sent."""
        run = self._runs.get(answer.key)
        if run is None:
            return
        if answer.response is not None and answer.response.error is not None:
            run.problems.append(answer.response.error.message)
        if answer.final or answer.reschedule:
            run.open.discard(answer.key)
            if not run.open and not run.done.done():
                run.done.set_result(None)

    def on_guest_exit(self, worker: Worker, error: GuestExitedError) -> None:
        for run in set(self._runs.values()):
            if run.worker is worker and not run.done.done():
                run.done.set_exception(fresh(error))
