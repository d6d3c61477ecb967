"""Guests whose imports are done before they start: fork servers, one for each environment, shared by its models.

What makes two models share one: the same interpreter, stub, modules, and variables. The variables count because
libraries read some of them while they are imported (OMP_NUM_THREADS), when no model has a say any more.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from naiad.errors import GuestExitedError
from naiad.memory.instance import InstanceMemory
from naiad.workers.forkserver import CannotForkError, ForkServer
from naiad.workers.launch import LaunchedGuest, LaunchSpec

logger = logging.getLogger("naiad.workers")

_Key = tuple[Path, Path, Path, tuple[tuple[str, str], ...], tuple[str, ...]]


class ForkServerPool:
    """All fork servers of a host, and who needs which."""

    def __init__(self) -> None:
        self._servers: dict[_Key, ForkServer] = {}
        self._borrowers: dict[_Key, set[PrewarmedGuests]] = {}

    def __repr__(self) -> str:
        return f"<ForkServerPool {list(self._servers.values())}>"

    def guests_with(self, modules: Sequence[str]) -> PrewarmedGuests:
        """What forks the guests of one version of a model; to be released with it."""
        return PrewarmedGuests(self, tuple(modules))

    def server_for(self, borrower: PrewarmedGuests, spec: LaunchSpec) -> ForkServer:
        """The fork server for guests as *spec* says, started if need be.

        Raises:
            GuestExitedError: If the interpreter cannot be executed.
        """
        key = (spec.python, spec.stub, spec.library, tuple(sorted(spec.environ.items())), borrower.modules)
        server = self._servers.get(key)
        if server is None or server.is_gone:
            self._servers[key] = server = ForkServer(spec, borrower.modules)
        self._borrowers.setdefault(key, set()).add(borrower)
        return server

    def give_back(self, borrower: PrewarmedGuests) -> None:
        """End the fork servers that nobody but *borrower* needed."""
        for key, borrowers in list(self._borrowers.items()):
            borrowers.discard(borrower)
            if not borrowers:
                del self._borrowers[key]
                self._servers.pop(key).close()


class PrewarmedGuests:
    """The part of one version of a model in fork servers.

    Attributes:
        modules: What is imported before its guests are forked.
    """

    def __init__(self, owner: ForkServerPool, modules: tuple[str, ...]) -> None:
        self.modules = modules
        self._owner = owner

    def __repr__(self) -> str:
        return f"<PrewarmedGuests {', '.join(self.modules)}>"

    async def fork(self, spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest | None:
        """Fork the guest; None, and a line of the log, where it has to be started as any other."""
        try:
            if not _can_watch_strangers():
                raise CannotForkError("it needs pidfds, which came with Linux 5.3")
            return await self._owner.server_for(self, spec).fork(memory)
        except (CannotForkError, GuestExitedError) as error:
            logger.warning(
                "'%s' is started without the prewarmed %s: %s", spec.name, ", ".join(self.modules), error.message
            )
            return None

    def release(self) -> None:
        """No more guests are needed. May be called again."""
        self._owner.give_back(self)


def _can_watch_strangers() -> bool:
    """Whether the end of a process that is not our child can be noticed without asking again and again."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True
