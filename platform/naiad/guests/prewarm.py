"""Prewarming: fork servers, one for each environment, shared by its models (docs/decisions/0022-forked-guests.md).

Two models share one if they have the same interpreter, stub, modules, user and environment variables. These count
because libraries read some of them while they are imported (OMP_NUM_THREADS), when a model cannot change them any more.

Prewarming never fails a load: if a guest cannot be forked, the log says why and an interpreter is started for it.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from naiad.config.server.guest_user import GuestUser
from naiad.core.errors import GuestExitedError
from naiad.guests.forkserver import CannotForkError, ForkServer
from naiad.guests.launch import LaunchedGuest, LaunchSpec
from naiad.guests.memory.instance import InstanceMemory

logger = logging.getLogger("naiad.workers")

# So many fork servers in a row may be killed while they import: a module may crash its process each time.
_MAX_KILLED_IMPORTS = 3

_Key = tuple[Path, Path, Path, tuple[tuple[str, str], ...], tuple[str, ...], "GuestUser | None"]


class ForkServerPool:
    """The fork servers of a host, and the model versions that use each."""

    def __init__(self) -> None:
        # Whether a fork server stays when its last user has gone, for models that will be loaded on demand.
        self.lingers = False
        self._servers: dict[_Key, ForkServer] = {}
        self._users: dict[_Key, set[PrewarmedGuests]] = {}
        self._killed_imports: Counter[_Key] = Counter()

    def __repr__(self) -> str:
        return f"<ForkServerPool {list(self._servers.values())}>"

    def guests_with(self, modules: Sequence[str]) -> PrewarmedGuests:
        """Forks the guests of one version of a model, with *modules* imported; to be released with the version."""
        return PrewarmedGuests(self, tuple(modules))

    def server_for(self, user: PrewarmedGuests, spec: LaunchSpec) -> ForkServer:
        key = (spec.python, spec.stub, spec.library, tuple(sorted(spec.environ.items())), user.modules, spec.user)
        server = self._servers.get(key)
        if server is None or self._may_replace(key, server):
            self._servers[key] = server = ForkServer(spec, user.modules)
        self._users.setdefault(key, set()).add(user)
        return server

    def _may_replace(self, key: _Key, server: ForkServer) -> bool:
        if not server.is_replaceable:
            return False
        self._killed_imports[key] = 0 if server.is_ready else self._killed_imports[key] + 1
        if self._killed_imports[key] >= _MAX_KILLED_IMPORTS:
            return False
        logger.warning("%s; another one is started", server.end)
        return True

    def release(self, user: PrewarmedGuests) -> None:
        """End the fork servers that only *user* uses, unless they are to stay."""
        for users in self._users.values():
            users.discard(user)
        if not self.lingers:
            self.close_unused()

    def close_unused(self) -> None:
        for key, users in list(self._users.items()):
            if not users:
                del self._users[key], self._killed_imports[key]
                self._servers.pop(key).close()


class PrewarmedGuests:
    """The guests of one version of a model, forked by fork servers of a pool."""

    def __init__(self, pool: ForkServerPool, modules: tuple[str, ...]) -> None:
        self.modules = modules
        self._pool = pool

    def __repr__(self) -> str:
        return f"<PrewarmedGuests {', '.join(self.modules)}>"

    async def fork(self, spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest | None:
        """Fork the guest; None, with a line in the log, if that does not work."""
        try:
            if not _has_pidfds():
                raise CannotForkError("it needs pidfds, which Linux has since version 5.3")
            return await self._pool.server_for(self, spec).fork(memory, spec.inputs)
        except (CannotForkError, GuestExitedError) as error:
            logger.warning(
                "'%s' is started without the prewarmed %s: %s", spec.name, ", ".join(self.modules), error.message
            )
            return None

    def start_early(self, spec: LaunchSpec) -> None:
        """Start the fork server of *spec* before a guest is needed; a line in the log if that does not work."""
        try:
            if _has_pidfds():
                self._pool.server_for(self, spec)
        except GuestExitedError as error:
            logger.warning("cannot start the prewarming process of '%s' early: %s", spec.name, error.message)

    def release(self) -> None:
        self._pool.release(self)


def _has_pidfds() -> bool:
    """Whether the exit of a process that is not a child can be noticed without polling."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True
