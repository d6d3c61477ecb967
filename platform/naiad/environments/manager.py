"""From what a model names as its environment to an interpreter that is known to work."""

from __future__ import annotations

import importlib.util
import logging
import os
import site
import sys
import sysconfig
from functools import partial
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource, shown
from naiad.environments.entry_provider import EntryProvider
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import ProgressReporter, default_reporter
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.environments.store.leases import Lease
from naiad.environments.store.record import ReadyEntry
from naiad.errors import ExecutionEnvironmentError
from naiad.interpreters.discovery import find_interpreter
from naiad.interpreters.prefix import probe_with_libraries, require_interpreter, require_numpy
from naiad.interpreters.probe import Interpreter, probe_cached
from naiad.interpreters.versions import matches, version_text

_log = logging.getLogger("naiad.environments")


class EnvironmentManager:
    """Prepares environments; one per server. Every method may be called from any thread.

    Args:
        store_root: Folder of the store, made when first needed.
        reporter: Whoever shows progress; the log, and a bar on a terminal, if None.
        policy: What the operator allows of archives.
    """

    def __init__(
        self,
        store_root: Path,
        *,
        reporter: ProgressReporter | None = None,
        policy: StorePolicy | None = None,
    ) -> None:
        self._root = store_root.expanduser().absolute()
        self._policy = policy or StorePolicy()
        self._archives = EntryProvider(self._root, self._policy, reporter or default_reporter())

    @property
    def store_root(self) -> Path:
        """The store's folder."""
        return self._root

    def prepare(
        self, source: Path | EnvironmentSource | None, *, python: SpecifierSet | None = None, label: str = ""
    ) -> ReadyEnvironment:
        """Make an environment ready to start guests in. Blocks; an archive new to the store takes seconds.

        An archive's entry stays in the store while the result is referred to, or until its lease is released.

        Args:
            source: An archive or a directory; None for an interpreter of the machine, the host's own if it will do.
            python: Versions the model asks for.
            label: The model's name, for the log.

        Raises:
            ExecutionEnvironmentError: If there is no such environment, or it cannot be used here.
        """
        if source is None:
            return self._of_machine(python)
        named = source if isinstance(source, EnvironmentSource) else EnvironmentSource(path=source)
        ready = self._named(named, label)
        if not matches(python, ready.version):
            raise ExecutionEnvironmentError(
                f"the execution environment {source} has Python {version_text(ready.version)}, but "
                f"{f'model {label!r}' if label else 'the model'} asks for Python {python}; "
                "give it an environment of that version, or change what it asks for"
            )
        return ready

    def accept(self, uri: str) -> None:
        """Let a URI name something else than when it was used first."""
        self._archives.accept(uri)

    def _named(self, named: EnvironmentSource, label: str) -> ReadyEnvironment:
        if named.path is None:
            return _unpacked(shown(named.uri), *self._archives.acquire_remote(named, label))
        # Resolved: a link that is turned to the next release must not change what running guests restart into.
        path = Path(os.path.realpath(named.path))
        if not path.exists():
            raise _missing(named.path, path)
        if not path.is_dir():
            return _unpacked(path, *self._archives.acquire_local(path, digest=named.digest, label=label))
        if named.digest or self._policy.trust is not None:
            raise ExecutionEnvironmentError(
                f"the execution environment {named} is refused: {path} is a directory, and only archives have a digest "
                f"and signatures; pack it with `naiad env pack`, or do without {_demand(named)}"
            )
        return self._directory(path)

    def _of_machine(self, python: SpecifierSet | None) -> ReadyEnvironment:
        host = host_environment(self._root)
        if matches(python, host.version):
            return host
        assert python is not None
        found = find_interpreter(python, self._root / "interpreters")
        return self._ready(found, source=None, prefix=found.prefix, library_path=None)

    def _directory(self, path: Path) -> ReadyEnvironment:
        """A conda environment, a venv or the like, used where it is; never written to."""
        where = f"the execution environment {path}"
        python = require_interpreter(path, where=where)
        asking = partial(probe_cached, cache=self._root / "interpreters")
        try:
            found, library_path = probe_with_libraries(python, path, asking)
        except ExecutionEnvironmentError as error:
            raise ExecutionEnvironmentError(f"{where} cannot be used: {error.message}") from error
        require_numpy(found, where=where)
        return self._ready(found, source=path, prefix=path, library_path=library_path)

    def _ready(
        self, found: Interpreter, *, source: Path | None, prefix: Path, library_path: Path | None
    ) -> ReadyEnvironment:
        return ReadyEnvironment(
            source=source,
            prefix=prefix,
            python=found.python,
            version=found.version,
            cache_tag=found.cache_tag,
            abi=found.abi,
            numpy_version=found.numpy,
            bytecode=None if found.has_bytecode else self._root / "bytecode",
            library_path=library_path,
        )


def _demand(named: EnvironmentSource) -> str:
    return "@sha256" if named.digest else "--env-trust"


def _unpacked(source: Path | str, stored: ReadyEntry, lease: Lease) -> ReadyEnvironment:
    found = stored.interpreter
    return ReadyEnvironment(
        source=source,
        prefix=stored.prefix,
        python=found.python,
        version=found.version,
        cache_tag=found.cache_tag,
        abi=found.abi,
        numpy_version=found.numpy,
        digest=stored.digest,
        bytecode=stored.bytecode,
        library_path=stored.library_path,
        lease=lease,
    )


def host_environment(store_root: Path) -> ReadyEnvironment:
    """The interpreter that runs this server, with all packages installed next to naiad. Starts nothing."""
    # Not imported: that takes as long as starting a guest, and can be done beside it.
    numpy = importlib.util.find_spec("numpy")
    origin = numpy.origin if numpy is not None else None
    has_bytecode = origin is not None and Path(importlib.util.cache_from_source(origin)).exists()
    return ReadyEnvironment(
        source=None,
        prefix=Path(sys.prefix),
        python=Path(sys.executable),
        version=sys.version_info[:3],
        cache_tag=sys.implementation.cache_tag or "",
        abi=str(sysconfig.get_config_var("SOABI") or ""),
        numpy_version=_version_of(origin),
        is_host=True,
        bytecode=None if has_bytecode else store_root / "bytecode",
        user_site=_lives_in_user_site(origin),
    )


def check_supported(environment: ReadyEnvironment, supported: SpecifierSet, *, stub: str = "the stub") -> None:
    """Refuse an environment whose Python a stub does not support, before anything is started.

    Raises:
        ExecutionEnvironmentError: Names both versions.
    """
    if not matches(supported, environment.version):
        raise ExecutionEnvironmentError(
            f"{environment} cannot run {stub}: it supports Python {supported}, "
            f"the environment has Python {version_text(environment.version)}"
        )


def _version_of(origin: str | None) -> str | None:
    """Numpy's, as its installer wrote it down beside it: reading that properly takes longer than all else here."""
    beside = Path(origin).parents[1].glob("numpy-*.dist-info") if origin is not None else iter(())
    return next((path.name.removesuffix(".dist-info").partition("-")[2] for path in beside), None)


def _lives_in_user_site(origin: str | None) -> bool:
    """Whether the host itself depends on the user's site: then its guests do."""
    if not site.ENABLE_USER_SITE or origin is None:
        return False
    return Path(origin).is_relative_to(site.getusersitepackages())


def _missing(source: Path, path: Path) -> ExecutionEnvironmentError:
    """The reference's sentence, then what it leaves out."""
    nearest = next((parent for parent in path.parents if parent.exists()), path.parent)
    return ExecutionEnvironmentError(
        f"Failed to get the canonical path for {source}. There is no such file or directory "
        f"({path}; {nearest} exists); EXECUTION_ENV_PATH is an absolute path, or begins with "
        "$$TRITON_MODEL_DIRECTORY"
    )
