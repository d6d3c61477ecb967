"""What the tests have the offload process do."""

from __future__ import annotations

import os
import signal
import time

from naiad.core.errors import Code, NaiadError
from naiad.frontends.offload.messages import Deferred, long_buffer


def join(content: memoryview, *more: object) -> tuple[bytes, object, object]:
    """The content, a long buffer, and something that the host has."""
    return bytes(content), long_buffer(b"x" * 100_000), [Deferred(("key", 1)), *more]


def refuse(_: memoryview) -> None:
    raise NaiadError("refused", code=Code.NOT_FOUND)


def fail(_: memoryview) -> None:
    raise ValueError("a bug")


def die(_: memoryview) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hold(_: memoryview) -> None:
    time.sleep(600)


def allocate(_: memoryview, size: int) -> int:
    return len(bytearray(size))


def pid(_: memoryview) -> int:
    return os.getpid()
