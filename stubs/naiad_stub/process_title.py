"""The name and the command line of this process, by which `ps`, `top` and `htop` show what it does.

Shared by host and guest; imports nothing of ours. Python 3.8+.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Sequence

__all__ = ["name_process", "process_name", "rename_process", "rewrite_arguments"]

_PR_SET_NAME = 15
_NAME_BYTES = 15
"""Longest name that the kernel keeps (TASK_COMM_LEN, without the final NUL)."""
_ARG_START, _ARG_END = 48, 49
"""Fields of /proc/PID/stat, counted from 1 (proc(5)): where the memory of the command line begins and ends."""
_AFTER_NAME = 3
"""The first field after the process's name, which may itself contain spaces."""


def rename_process(instance: str, model_file: str, *, rewrites_arguments: bool) -> None:
    """Name this process after its instance; it changes nothing on systems other than Linux.

    Args:
        instance: The instance's name.
        model_file: Path of the model's code.
        rewrites_arguments: Whether the command line is replaced too. A guest that was forked shows that of its fork
            server otherwise; other guests were started with `--instance` and `--model`.
    """
    name_process(process_name(instance))
    if rewrites_arguments:
        rewrite_arguments(2, [b"--instance", instance.encode(), b"--model", os.fsencode(model_file)])


def name_process(name: str) -> None:
    """Give this process a name; the kernel keeps 15 bytes. On systems other than Linux, do nothing."""
    if os.uname().sysname != "Linux":
        return
    import ctypes  # numpy imports it anyway

    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def process_name(instance: str) -> str:
    """A name of at most 15 bytes that keeps the end of the instance's name, which tells instances of a model apart."""
    encoded = instance.encode()
    if len(encoded) <= _NAME_BYTES:
        return instance
    found = re.search(r"(_[0-9]+){1,2}$", instance)
    end = found.group().encode()[-_NAME_BYTES:] if found else b""
    return (encoded[: _NAME_BYTES - len(end)] + end).decode(errors="ignore")


def rewrite_arguments(kept: int, words: Sequence[bytes]) -> None:
    """Write *words* behind the first *kept* ones of the command line; without /proc, do nothing.

    /proc/PID/cmdline shows the memory that held the command line at the start of the process. Its size cannot grow, so
    what does not fit is cut.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):  # another system, or a sandbox without /proc
        _write_arguments(kept, words)


def _write_arguments(kept: int, words: Sequence[bytes]) -> None:
    import ctypes

    with open("/proc/self/cmdline", "rb") as file:
        before = file.read().split(b"\0")[:kept]
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[_ARG_START - _AFTER_NAME]), int(fields[_ARG_END - _AFTER_NAME])
    room = end - start
    if start == 0 or room <= 1:  # the kernel hides the addresses
        return
    ctypes.memmove(start, b"\0".join([*before, *words])[: room - 1].ljust(room, b"\0"), room)
