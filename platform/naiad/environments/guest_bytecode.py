"""Bytecode of the guest's own modules, for every Python it runs under.

Guests are started without leave to write bytecode (see `ready`), so without this each would compile our modules anew:
25 ms of its start, twice for a model that completes its configuration. Once per Python and version of ours is enough.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from naiad.environments.asking import last_words, run_clean
from naiad.environments.ready import ReadyEnvironment
from naiad.errors import ExecutionEnvironmentError

_log = logging.getLogger("naiad.environments")
_TIME_LIMIT = 60.0


class GuestBytecode:
    """Compiles the guest's modules where they were laid out; a start may go on without it if that fails.

    Args:
        library: The folder with the guest's package, ours to write to.
    """

    def __init__(self, library: Path) -> None:
        self._library = library
        # Models load in parallel, and most of them under one Python.
        self._lock = threading.Lock()

    def ensure(self, environment: ReadyEnvironment) -> None:
        """Compile for an environment's Python what is not compiled for it yet."""
        # With a folder of its own for bytecode, what lies beside the sources is not looked at.
        if environment.bytecode is not None:
            return
        with self._lock:
            if not self._is_complete(environment.cache_tag):
                self._compile(environment)

    def _is_complete(self, cache_tag: str) -> bool:
        sources = self._library.rglob("*.py")
        return all((path.parent / "__pycache__" / f"{path.stem}.{cache_tag}.pyc").exists() for path in sources)

    def _compile(self, environment: ReadyEnvironment) -> None:
        command = [str(environment.python), "-I", "-m", "compileall", "-q", str(self._library)]
        try:
            run = run_clean(command, library_path=environment.library_path, time_limit=_TIME_LIMIT)
        except ExecutionEnvironmentError as error:
            _log.debug("cannot compile the guest for %s: %s", environment, error.message)
            return
        if run.returncode != 0:
            _log.debug("cannot compile the guest for %s: %s", environment, last_words(run))
