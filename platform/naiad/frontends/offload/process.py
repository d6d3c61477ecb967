"""The offload process: runs tasks one after the other, until the host closes its end of the socket.

It is a process of the host's own interpreter and code. It exists because parsing by orjson and protobuf holds the
interpreter lock: on a thread, it would block the event loop as well. What it parses comes from clients, so its memory
is limited for each task, and it is the first process that the kernel ends when memory runs out.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import resource
import socket
import traceback
from pathlib import Path

from naiad.core.errors import NaiadError
from naiad.frontends.offload.messages import TASK_HEAD, Outcome, OutcomeKind, write_outcome

_NICE = 5  # lower priority than the host: where processors are few, those requests wait rather than all others
_PAGE = mmap.PAGESIZE


def run_tasks(descriptor: int) -> None:
    """Run the tasks that arrive on a socket."""
    os.nice(_NICE)
    Path("/proc/self/oom_score_adj").write_text("1000")
    gc.disable()  # what parsers create has no cycles, and scanning millions of objects again and again takes long
    channel = socket.socket(fileno=descriptor)
    while True:
        head, descriptors, _, _ = socket.recv_fds(channel, TASK_HEAD.size, 1)
        if not head:
            return
        outcome = _run(descriptors[0], *TASK_HEAD.unpack(head))
        memory, answer = _written(outcome)
        has_failed = outcome.kind is not OutcomeKind.VALUE
        del outcome
        socket.send_fds(channel, [answer], [memory])
        os.close(memory)
        if has_failed:
            gc.collect()  # exceptions do have cycles


def _run(descriptor: int, pickle_size: int, content_size: int, memory: int) -> Outcome:
    mapped = mmap.mmap(descriptor, pickle_size + content_size, access=mmap.ACCESS_READ)
    os.close(descriptor)
    view = memoryview(mapped)
    # What this imports is not counted as memory of the task.
    function, arguments = pickle.loads(view[:pickle_size])  # noqa: S301 - from the host, which started this process
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_size() + memory, hard))
    try:
        return Outcome(OutcomeKind.VALUE, function(view[pickle_size:], *arguments))
    except MemoryError:
        return Outcome(OutcomeKind.OUT_OF_MEMORY, None)
    except NaiadError as error:
        return Outcome(OutcomeKind.ERROR, error.with_traceback(None))
    except Exception as error:  # noqa: BLE001 - the host logs it
        if isinstance(error.__cause__ or error.__context__, MemoryError):  # orjson reports it so
            return Outcome(OutcomeKind.OUT_OF_MEMORY, None)
        return Outcome(OutcomeKind.UNEXPECTED, traceback.format_exc())
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _written(outcome: Outcome) -> tuple[int, bytes]:
    try:
        return write_outcome(outcome)
    except MemoryError:
        return write_outcome(Outcome(OutcomeKind.OUT_OF_MEMORY, None))


def _data_size() -> int:
    """Bytes of this process that RLIMIT_DATA counts (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * _PAGE
