"""The name and the command line of this process, by which `ps`, `top` and `htop` show which instance it runs."""

from __future__ import annotations

import contextlib
import os
import re

__all__ = ["process_name", "rename_process"]

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
    if os.uname().sysname != "Linux":
        return
    import ctypes  # numpy imports it anyway

    ctypes.CDLL(None).prctl(_PR_SET_NAME, process_name(instance).encode(), 0, 0, 0)
    if rewrites_arguments:
        with contextlib.suppress(OSError, ValueError, IndexError):  # a sandbox without /proc
            _rewrite_arguments(instance, model_file)


def process_name(instance: str) -> str:
    """A name of at most 15 bytes that keeps the end of the instance's name, which tells instances of a model apart."""
    encoded = instance.encode()
    if len(encoded) <= _NAME_BYTES:
        return instance
    found = re.search(r"(_[0-9]+){1,2}$", instance)
    end = found.group().encode()[-_NAME_BYTES:] if found else b""
    return (encoded[: _NAME_BYTES - len(end)] + end).decode(errors="ignore")


def _rewrite_arguments(instance: str, model_file: str) -> None:
    """Write the instance and the model behind the interpreter and the stub of the command line.

    /proc/PID/cmdline shows the memory that held the command line at the start of the fork server. Its size cannot grow,
    so what does not fit is cut.
    """
    import ctypes

    with open("/proc/self/cmdline", "rb") as file:
        before = file.read().split(b"\0")[:2]
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[_ARG_START - _AFTER_NAME]), int(fields[_ARG_END - _AFTER_NAME])
    room = end - start
    if start == 0 or room <= 1:  # the kernel hides the addresses
        return
    words = [*before, b"--instance", instance.encode(), b"--model", os.fsencode(model_file)]
    ctypes.memmove(start, b"\0".join(words)[: room - 1].ljust(room, b"\0"), room)
