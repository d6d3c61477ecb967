"""Runs an installer for as long as the process that started it lives.

Run as a script with the interpreter's options -I -S, as the leader of a session: `_installer_script.py COMMAND...`. Its
stdin is a pipe whose other end only the starting process has. When that process ends, also by SIGKILL, this script
kills the process group: itself, the installer, and what the installer started. An orphaned uv would otherwise hold the
locks of its cache, for which the uv of the next build waits, and an orphaned compiler would continue for minutes.

It exits as the installer does; with 128 + N if signal N killed the installer.
"""
# ruff: noqa: PTH123 - importing pathlib would take as long as all the rest

from __future__ import annotations

import os
import select
import signal
import sys

_NOT_STARTED = 127


def main(command: list[str]) -> int:
    """Run the command; returns the exit code."""
    # A byte for each SIGCHLD, because not every kernel and sandbox has pidfd_open(2).
    child_ended, notify = os.pipe()
    os.set_blocking(notify, False)
    signal.set_wakeup_fd(notify)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with open(os.devnull, "rb") as nothing:
        actions = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), 0)]
        try:
            # Python ignores SIGPIPE, and children would inherit that.
            child = os.posix_spawnp(
                command[0], command, os.environ, file_actions=actions, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
            )
        except OSError as error:
            os.write(1, f"cannot start {command[0]}: {error.strerror}\n".encode())
            return _NOT_STARTED
    poll = select.poll()
    poll.register(0, select.POLLIN)  # reports the end of the pipe, too
    poll.register(child_ended, select.POLLIN)
    if all(descriptor != child_ended for descriptor, _ in poll.poll()):
        os.killpg(0, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


sys.exit(main(sys.argv[1:]))
