"""Lets a model ask for a session or process group of its own, which its process already has.

The host starts each guest as the leader of a session, so that it can kill the guest together with its children. The
kernel rejects `setsid` and `setpgid` of a leader with EPERM. In the reference a model's process leads nothing, and
models of launchers and inference engines make these calls.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable


def accept_leading() -> None:
    """From now on let `os.setsid`, `os.setpgrp` and `os.setpgid` succeed where they ask for what this process has."""
    guest = os.getpid()

    def accepting(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(*arguments: Any) -> None:
            try:
                function(*arguments)
            except PermissionError:
                # In its children the kernel's answer holds.
                if os.getpid() != guest or any(each not in (0, guest) for each in arguments):
                    raise

        return call

    if os.getsid(0) == guest:
        os.setsid, os.setpgrp, os.setpgid = accepting(os.setsid), accepting(os.setpgrp), accepting(os.setpgid)
