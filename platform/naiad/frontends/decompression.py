"""Decompression of bodies and messages: in bounded steps, on threads, with limits on what comes out.

A megabyte of gzip may be a gigabyte of zeros. So limits are checked as the bytes come, each step produces about
`STEP_SIZE`, and steps run on threads: zlib releases the interpreter's lock. Between two steps the event loop decides
whether to go on: the client may have disconnected, or the budget for bodies may be used up.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from naiad_stub.process_limits import usable_processors

from naiad.core.errors import InvalidRequestError
from naiad.frontends.callbacks import do_nothing
from naiad.frontends.growing_bytes import resize_bytes
from naiad.protocol.inference import Buffer

STEP_SIZE = 2 << 20  # bytes that one step produces: about 5 ms, and few hand-overs between threads
SHORT_INPUT = 1 << 16  # bytes of a body up to which its first step may run on the event loop
SHORT_OUTPUT = 1 << 19  # bytes that this step may produce: about 1 ms
_PART_SIZE = 1 << 18  # Bytes that are produced at a time. Copying them holds the interpreter's lock.
_INPUT_SIZE = 1 << 16  # Bytes given to zlib at a time. It returns a copy of what it did not use.
_GROWTH = 8
_MAX_RATIO = 100
_RATIO_FREE = 64 << 20  # bytes that may come out at any ratio: small tensors of zeros, 1000 : 1, are not rare
_DETECT = 32 + zlib.MAX_WBITS  # zlib detects gzip or zlib format by the header


@dataclass(slots=True, eq=False)
class Decompression:
    """One body that is being decompressed. Needs no loop and no thread."""

    _body: Buffer  # in gzip or zlib format
    _name: str  # of its coding
    _limit: int  # how many bytes it may have decompressed
    _what: str = "request body"
    _position: int = 0
    _rest: bytes = b""
    result: bytearray = field(default_factory=bytearray)  # longer than what is in it, until the body is complete
    size: int = 0
    is_complete: bool = False
    _inflater: Any = field(default_factory=partial(zlib.decompressobj, _DETECT))

    def __repr__(self) -> str:
        return f"<Decompression {self._position} of {len(self._body)} bytes to {self.size}>"

    @property
    def held_size(self) -> int:
        """Bytes of memory in use, those of the compressed body included."""
        return len(self._body) + self.size

    def step(self, count: int = STEP_SIZE) -> None:
        """Decompress about *count* bytes more; InvalidRequestError if it is too long, or not in its coding."""
        inflater = self._inflater
        wanted = self.size + count
        try:
            while self.size < wanted and not inflater.eof:
                if not self._rest:
                    self._rest = bytes(self._body[self._position : self._position + _INPUT_SIZE])
                    self._position += len(self._rest)
                    if not self._rest:
                        raise InvalidRequestError(
                            f"cannot decompress the {self._what} as {self._name}: it is truncated"
                        )
                self._append(inflater.decompress(self._rest, _PART_SIZE))
                self._rest = inflater.unconsumed_tail
                self._check_size()
        except zlib.error:
            raise InvalidRequestError(f"cannot decompress the {self._what} as {self._name}: it is malformed") from None
        if inflater.eof:
            resize_bytes(self.result, self.size)
            self.is_complete = True

    def _append(self, part: bytes) -> None:
        end = self.size + len(part)
        if end > len(self.result):
            resize_bytes(self.result, max(end, min(len(self.result) * _GROWTH, self._limit)))
        self.result[self.size : end] = part
        self.size = end

    def _check_size(self) -> None:
        size, what = self.size, self._what
        if size > self._limit:
            raise InvalidRequestError(f"cannot decompress the {what}: it exceeds the limit of {self._limit} bytes")
        if size > _RATIO_FREE and size > self._position * _MAX_RATIO:
            raise InvalidRequestError(
                f"cannot decompress the {what}: its first {self._position} bytes are {size} decompressed, more than "
                f"{_MAX_RATIO} times as many; send it uncompressed"
            )


class Stepped(Protocol):
    """Work that threads do in steps: a `Decompression`, or the compression of a response."""

    @property
    def is_complete(self) -> bool:
        """Whether no step is left."""

    @property
    def size(self) -> int:
        """Bytes that were produced."""

    @property
    def result(self) -> bytearray:
        """What was produced, once it is complete."""

    def step(self) -> None:
        """Do the next step; any exception ends the work."""


@dataclass(slots=True, eq=False)
class DecompressionTask:
    """Work on threads, until it is complete, has failed or is cancelled."""

    _threads: DecompressionThreads
    _body: Stepped
    _on_step: Callable[[int], bool]
    _on_done: Callable[[bytearray], None]
    _on_failed: Callable[[Exception], None]
    _is_over: bool = False
    _is_stopped: bool = False

    def cancel(self) -> None:
        """End it; no callback is called any more. A step that runs ends first, in milliseconds."""
        self._is_over = True
        self._drop_callbacks()

    def resume(self) -> None:
        if self._is_stopped and not self._is_over:
            self._is_stopped = False
            self.submit_step()

    def submit_step(self) -> None:
        if self._threads.is_closed:  # the connection is about to be closed, too
            self.cancel()
            return
        future = asyncio.get_running_loop().run_in_executor(self._threads.executor, self._body.step)
        future.add_done_callback(self._on_stepped)

    def _on_stepped(self, future: asyncio.Future[None]) -> None:
        if future.cancelled():
            return
        problem = future.exception()
        if self._is_over:
            return
        if problem is None:
            may_go_on = self._on_step(self._body.size)  # which may cancel this task
            if not self._body.is_complete:
                self._is_stopped = True
                if may_go_on:
                    self.resume()
                return
        self._is_over = True
        on_done, on_failed = self._on_done, self._on_failed
        self._drop_callbacks()
        if problem is None:
            on_done(self._body.result)
        else:
            assert isinstance(problem, Exception)
            on_failed(problem)

    def _drop_callbacks(self) -> None:
        """Break the reference cycles through what they belong to: bodies are large."""
        self._on_step = lambda _: False
        self._on_done = self._on_failed = do_nothing


class DecompressionThreads:
    """The threads of one server."""

    def __init__(self) -> None:
        self.is_closed = False
        # Threads start with the first step. Half of the processors at most: guests need theirs.
        self.executor = ThreadPoolExecutor(max(1, min(4, usable_processors() // 2)), "decompression")

    def start(
        self,
        body: Stepped,  # the work; no other code may use it meanwhile
        on_step: Callable[[int], bool],  # gets the bytes after each step; False stops until `resume`
        on_done: Callable[[bytearray], None],
        on_failed: Callable[[Exception], None],
    ) -> DecompressionTask:
        """Do the steps of *body*. All callbacks are called on the event loop."""
        task = DecompressionTask(self, body, on_step, on_done, on_failed)
        task.submit_step()
        return task

    def close(self) -> None:
        """End the threads, at most one step later."""
        self.is_closed = True
        self.executor.shutdown(wait=True, cancel_futures=True)
