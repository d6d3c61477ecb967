"""The life of one model in a guest: load it, run it batch by batch, finalize it.

Texts of errors are the reference's (PB src/pb_stub.cc), because clients and tests look for them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Optional

from naiad_stub import exchange, loader, wire
from naiad_stub.channel import Channel, HostGoneError
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.response import InferenceResponse
from naiad_stub.segment import Segment

_ERROR_LEVEL = 2


class LoadError(Exception):
    """The model cannot be loaded.

    Attributes:
        message: The reason, in the reference's form (exception type, text, "At:" and the frames).
        traceback_text: Python's own traceback, for the log.
    """

    def __init__(self, message: str, traceback_text: str) -> None:
        super().__init__(message)
        self.message = message
        self.traceback_text = traceback_text


class OutputBlocks:
    """Blocks of the output segment, waiting for the host to hand some back where the segment is full."""

    def __init__(self, segment: Segment, channel: Channel) -> None:
        self._segment = segment
        self._channel = channel

    def allocate(self, size: int) -> int:
        """Reserve *size* bytes.

        Raises:
            TritonModelException: If the size does not fit into an empty segment.
        """
        offset = self._segment.allocate(size)
        while offset < 0:
            if self._segment.in_use == 0:
                raise TritonModelException(
                    f"outputs of {size} bytes do not fit into the output segment of {self._segment.capacity} bytes"
                )
            self._channel.send(wire.pack(wire.Kind.WANT_RELEASE))
            while not self._take_released():
                self._channel.receive_more()
            offset = self._segment.allocate(size)
        return offset

    def _take_released(self) -> bool:
        """Take back what messages that came meanwhile hand back, which may be requests to be executed later."""
        released: list[int] = []

        def look(kind: int, payload: bytes) -> Optional[bytes]:
            if kind == wire.Kind.RELEASE:
                released.extend(wire.unpack(kind, payload)[0])
                return None
            if kind == wire.Kind.EXECUTE:
                offsets, payload = exchange.part_released(payload)
                released.extend(offsets)
            return payload

        self._channel.change_queued(look)
        self.release(released)
        return bool(released)

    def release(self, offsets: list[int]) -> None:
        """Take back blocks the host has read."""
        for offset in offsets:
            self._segment.release(offset)

    def trim(self) -> None:
        """Give free pages back to the system."""
        self._segment.trim()


def load_class(spec: Mapping[str, str]) -> type:
    """Import the model's module and return its class.

    Raises:
        LoadError: With the exception the module raised.
    """
    try:
        return loader.load_model_class(
            spec["model_file"], spec["version_dir"], spec["model_dir"], spec["utils_dir"], spec["shared"] == "1"
        )
    except BaseException as error:
        raise LoadError(*loader.format_exception(error)) from error


def complete_config(spec: Mapping[str, str]) -> str:
    """Run the model's `auto_complete_config` and return the configuration as JSON.

    Raises:
        LoadError: If it raises or returns something else than a ModelConfig.
    """
    import json
    import sys

    model_class = load_class(spec)
    complete = getattr(model_class, "auto_complete_config", None)
    if complete is None:
        return spec["model_config"]
    model_config_class = sys.modules["triton_python_backend_utils"].ModelConfig
    try:
        completed = complete(model_config_class(spec["model_config"]))
        if not isinstance(completed, model_config_class):
            raise TritonModelException(
                f"auto_complete_config function in model '{spec['model_name']}' must return a valid "
                "pb.ModelConfig object."
            )
        return json.dumps(completed.as_dict())
    except BaseException as error:
        raise LoadError(*loader.format_exception(error)) from error


class ModelServer:
    """One initialised model and the loop that serves it."""

    def __init__(self, channel: Channel, inputs: Segment, outputs: Segment, spec: Mapping[str, str]) -> None:
        """Import, construct and initialise the model.

        Raises:
            LoadError: If any of that raises.
        """
        self._channel = channel
        self._instance_name = spec["instance_name"]
        self._model_file = spec["model_file"]
        self._tickets: dict[int, exchange.Ticket] = {}
        output_names = _names(spec["outputs"])
        self._blocks = OutputBlocks(outputs, channel)
        self._reader = exchange.BatchReader(inputs.view, _names(spec["inputs"]), output_names)
        self._writer = exchange.ResponseWriter(outputs.view, self._blocks.allocate, output_names)
        model_class = load_class(spec)
        try:
            self._model = model_class()
            initialize = getattr(self._model, "initialize", None)
            if initialize is not None:
                initialize({key[5:]: value for key, value in spec.items() if key.startswith("args.")})
        except BaseException as error:
            raise LoadError(*loader.format_exception(error)) from error
        self._execute = getattr(self._model, "execute", None)

    def run(self) -> None:
        """Serve until the host says to finalize.

        Raises:
            HostGoneError: If the host disappears.
        """
        while True:
            kind, payload = self._channel.receive()
            if kind == wire.Kind.EXECUTE:
                batch = self._reader.read(payload)
                if batch.released:
                    self._blocks.release(batch.released)  # type: ignore[arg-type]
                self._channel.send(self._serve(batch))
            elif kind == wire.Kind.RELEASE:
                self._blocks.release(wire.unpack(kind, payload)[0])
            elif kind == wire.Kind.TRIM:
                self._blocks.trim()
            elif kind == wire.Kind.FINALIZE:
                return

    def is_cancelled(self, ticket: exchange.Ticket) -> bool:
        """Whether the sender of a request has gone, as far as the host has said by now."""
        for payload in self._channel.take_arrived(wire.Kind.CANCEL):
            for key in wire.unpack(wire.Kind.CANCEL, payload)[0]:
                held = self._tickets.get(key)
                if held is not None:
                    held.is_cancelled = True
        return ticket.is_cancelled

    def finalize(self) -> None:
        """Call the model's `finalize`; what it raises is logged only (as the reference does)."""
        finalize = getattr(self._model, "finalize", None)
        if finalize is None:
            return
        try:
            finalize()
        except BaseException as error:  # noqa: BLE001 - likewise
            self._log(f"finalize of '{self._instance_name}' failed: {loader.format_exception(error)[1]}")

    def _serve(self, batch: exchange.Batch) -> bytes:
        self._tickets = {ticket.key: ticket for ticket in batch.tickets}
        started = time.monotonic_ns()
        try:
            returned = self._call(batch)
            ended = time.monotonic_ns()
            entries = [
                self._writer.response(ticket, response, wire.FINAL) for ticket, response in zip(batch.tickets, returned)
            ]
        except HostGoneError:
            raise
        except BaseException as error:  # noqa: BLE001 - likewise
            ended = time.monotonic_ns()
            entries = self._fail(batch, error)
        head = wire.RESPONSES_HEAD.pack(batch.number, len(entries), wire.DONE, started, ended)
        return wire.frame(wire.Kind.RESPONSES, head + b"".join(entries))

    def _call(self, batch: exchange.Batch) -> list[InferenceResponse]:
        if self._execute is None:
            raise TritonModelException(f"Python model {self._model_file} does not implement `execute` method.")
        returned = self._execute(batch.requests)
        if not isinstance(returned, list):
            raise TritonModelException(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(batch.requests):
            raise TritonModelException(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(batch.requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        for response in returned:
            if not isinstance(response, InferenceResponse):
                raise TritonModelException(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(response)}'."
                )
        return returned

    def _fail(self, batch: exchange.Batch, error: BaseException) -> list[bytes]:
        text, traceback_text = loader.format_exception(error)
        if isinstance(error, TritonModelException) and error.__traceback__ is not None:
            # Raised by this module, not by the model's code: the frames are ours and tell the user nothing.
            innermost = error.__traceback__
            while innermost.tb_next is not None:
                innermost = innermost.tb_next
            if innermost.tb_frame.f_globals.get("__name__") == __name__:
                text = str(error)
        message = f"Failed to process the request(s) for model '{self._instance_name}', message: {text}"
        self._log(f"{message}\n{traceback_text}" if text not in traceback_text else message)
        return [self._writer.error(ticket, TritonError.INTERNAL, message, wire.FINAL) for ticket in batch.tickets]

    def _log(self, message: str) -> None:
        self._channel.send(wire.pack(wire.Kind.LOG, _ERROR_LEVEL, "model.py", 0, message))


def _names(joined: str) -> list[str]:
    return joined.split("\0") if joined else []
