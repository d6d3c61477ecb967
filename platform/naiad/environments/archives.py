"""From an archive, here or elsewhere, to its entry in the store: admitted, unpacked once, and kept while in use."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from naiad.environments.digest import Content
from naiad.environments.eviction import shrink
from naiad.environments.progress import Reporter
from naiad.environments.record import Stored
from naiad.environments.store import Store
from naiad.environments.uses import Lease, Uses
from naiad.errors import ExecutionEnvironmentError

__all__ = ["Archives", "StorePolicy"]

_log = logging.getLogger("naiad.environments")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePolicy:
    """What the operator allows.

    Attributes:
        max_bytes: Size above which entries that nobody uses are removed; 0 for any.
    """

    max_bytes: int = 0


class Archives:
    """The archives of one server; every method may be called from any thread.

    Args:
        root: The store's folder.
        policy: What is allowed.
        reporter: Whoever shows progress.
    """

    def __init__(self, root: Path, policy: StorePolicy, reporter: Reporter) -> None:
        self._store = Store(root, reporter)
        self._uses = Uses(root)
        self._policy = policy
        self._sweep_once = threading.Lock()
        self._swept = False

    def of_path(self, path: Path, *, digest: str = "", label: str = "") -> tuple[Stored, Lease]:
        """The entry of an archive on this machine, and what keeps it from being removed.

        Args:
            path: The archive.
            digest: SHA-256 it must have, empty for any.
            label: The model it is for.

        Raises:
            ExecutionEnvironmentError: If it must not or cannot be used.
        """
        self.sweep()
        content = self._store.content(path, label)
        if digest and content.digest != digest:
            raise ExecutionEnvironmentError(
                f"the execution environment {path} is not the one that is asked for: its SHA-256 is {content.digest}, "
                f"pinned is {digest}; bring the archive that was pinned, or pin the one that is there"
            )
        return self._take(path, content, str(path), label)

    def sweep(self) -> None:
        """Clean up after crashes once, before the first archive; a server without archives touches no store."""
        with self._sweep_once:
            if not self._swept:
                self._store.sweep()
                self._swept = True

    def _take(self, archive: Path, content: Content, origin: str, label: str) -> tuple[Stored, Lease]:
        # Held before it is looked for: between the two, nobody can remove it.
        lease = self._uses.hold(content.digest)
        try:
            is_new = self._store.ready(content.digest) is None
            stored = self._store.ensure(archive, content, origin=origin, label=label)
        except BaseException:
            lease.release()
            raise
        if label:
            self._uses.note(content.digest, label, origin)
        if is_new and self._policy.max_bytes:
            shrink(self._store, self._uses, self._policy.max_bytes)
        return stored, lease
