"""Results of a model's calls on their way to it, queued while its input segment is full."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from naiad.core.errors import NaiadError, OutOfMemoryError, ProtocolError, unexpected_error
from naiad.guests.calls import error_result, result_block, write_result
from naiad.guests.exchange import with_released
from naiad.guests.memory.instance import InstanceMemory
from naiad.protocol.inference import InferResponse

logger = logging.getLogger("naiad.workers")

# Bytes of small input blocks that a guest may keep, to release them together. If no more are in use, a release may
# never come, so the host does not wait: it replaces the result by an error.
_SMALL_BLOCKS = 1 << 20


class ResultQueue:
    """The results for one guest, and the input blocks that its model may still refer to."""

    def __init__(self, memory: InstanceMemory, send: Callable[[bytes], None], on_failed: Callable[[int], None]) -> None:
        """No results; *on_failed* gets the number of a call whose result was replaced by an error, which ends it."""
        self._memory = memory
        self._send_frame = send
        self._on_failed = on_failed
        self._kept: dict[int, None] = {}
        self._kept_shared: dict[int, object] = {}
        self._waiting: deque[tuple[int, InferResponse | None, bool]] = deque()
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        self._kept_shared.clear()

    def put(self, number: int, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        if self._waiting or not self._send(number, response, final):
            self._waiting.append((number, response, final))

    def keep(self, block: int) -> None:
        """Record that the model refers to an input block beyond its batch."""
        self._kept[block] = None

    def keep_shared(self, number: int, places: object) -> None:
        """Record that the model refers to inputs that other processes wrote; RELEASE_INPUTS names *number*."""
        self._kept_shared[number] = places

    def release(self, blocks: Sequence[int]) -> None:
        """Free input blocks that the guest has released; raise ProtocolError if it does not hold one of them."""
        for block in blocks:
            if block < 0 and block in self._kept_shared:
                del self._kept_shared[block]
                continue
            if block not in self._kept:
                raise ProtocolError(f"it released an input block at {block} that it does not hold")
            del self._kept[block]
            self._memory.release_input(block)
        self.retry()

    def retry(self) -> None:
        while self._waiting and self._send(*self._waiting[0]):
            self._waiting.popleft()

    def _send(self, number: int, response: InferResponse | None, final: bool) -> bool:  # noqa: FBT001 - as `Sink.send`
        """Send a RESULT; False if its outputs do not fit now."""
        if self._is_closed:
            return True
        in_use = self._memory.inputs.in_use
        try:
            data = write_result(number, response, final, self._memory)
        except OutOfMemoryError as error:
            if in_use > _SMALL_BLOCKS:
                return False
            self._fail(number, error)
        except Exception as error:  # a thread of the model waits for the result
            logger.exception("cannot pack the result of a call of a model")
            self._fail(number, unexpected_error("pass on the result of a call", error))
        else:
            block = result_block(data)
            if block >= 0:
                self._kept[block] = None
            # A model in `execute` gets no EXECUTE that would bring its blocks back.
            self._send_frame(with_released(data, self._memory))
        return True

    def _fail(self, number: int, error: NaiadError) -> None:
        self._send_frame(error_result(number, error.message, error.code))
        self._on_failed(number)
