"""Preparing the environment that a model names: the result is an interpreter that is known to work."""

from __future__ import annotations

import importlib.util
import logging
import os
import site
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from packaging.specifiers import SpecifierSet

from naiad.config.model.declared_environment import is_declaration
from naiad.config.model.environment_source import EnvironmentSource, redact
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.extensions import load_from_extension
from naiad.core.real_paths import lasting_path
from naiad.environments.activation import Activations
from naiad.environments.conda_unpack_check import explain_moved_scripts, explain_unfinished_unpacking
from naiad.environments.entry_provider import EntryProvider
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import ProgressReporter, default_reporter
from naiad.environments.ready_environment import (
    ReadyEnvironment,
    inherited_by_guests,
    inherited_variables,
    own_libraries,
)
from naiad.environments.store.access import explained
from naiad.environments.store.leases import Lease
from naiad.environments.store.opening import open_store
from naiad.environments.store.record import ReadyEntry
from naiad.environments.store.store import Store
from naiad.sources.interpreters.discovery import find_interpreter
from naiad.sources.interpreters.prefix import (
    probe_with_libraries,
    require_interpreter,
    require_numpy,
    require_program,
)
from naiad.sources.interpreters.probe import Interpreter, probe_cached
from naiad.sources.interpreters.versions import OWN_ABI, matches, version_text

_log = logging.getLogger("naiad.environments")


class DeclaredProvider(Protocol):
    """Environments that models declare by their requirements: `naiad_building.declared.provider`."""

    def activity(self) -> Mapping[str, str]:
        """What is being done now, by the name of the model."""

    def acquire(self, file: Path, *, python: SpecifierSet | None, label: str) -> tuple[ReadyEntry, Lease]:
        """The entry of the environment that *file* declares, built if the store lacks it, and the use of it."""


class EnvironmentManager:
    """Prepares environments; one per server, thread-safe. Without *waits*, it raises EnvironmentBusyError."""

    def __init__(
        self,
        store_root: Path,
        *,
        reporter: ProgressReporter | None = None,
        policy: StorePolicy | None = None,
        waits: bool = True,
    ) -> None:
        self._root = open_store(store_root.expanduser().absolute())
        self._policy = policy or StorePolicy()
        self._reporter = reporter or default_reporter()
        self._store = Store(self._root, self._reporter, waits=waits)
        self._activations = Activations(self._root)
        self._entries = EntryProvider(self._root, self._policy, self._reporter, self._store)
        self._declared: DeclaredProvider | None = None
        self._declared_lock = threading.Lock()
        self._warned: set[Path] = set()  # folders whose scripts were warned of

    @property
    def store_root(self) -> Path:
        return self._root

    def activity(self) -> Mapping[str, str]:
        return {} if self._declared is None else self._declared.activity()

    def prepare(
        self,
        source: Path | EnvironmentSource | None,
        *,
        python: SpecifierSet | None = None,
        python_origin: str = "",
        label: str = "",
    ) -> ReadyEnvironment:
        """Prepare an environment for starting guests. Blocks; a new archive takes seconds.

        The result has a lease on its store entry until the lease is released or the result is garbage collected.

        Args:
            source: An archive, a directory, an interpreter, or a file that declares packages; None for an interpreter
                of the machine, preferably the host's.
        """
        with explained(self._root):
            return self._prepare(source, python, python_origin, label)

    def _prepare(
        self, source: Path | EnvironmentSource | None, python: SpecifierSet | None, python_origin: str, label: str
    ) -> ReadyEnvironment:
        if source is None:
            return self._prepare_installed(python, python_origin or (f"model '{label}'" if label else ""))
        named = source if isinstance(source, EnvironmentSource) else EnvironmentSource(path=source)
        if named.path is not None and is_declaration(named.path):
            return self._prepare_declared(named, python, label)
        ready = self._prepare_named(named, label)
        if not matches(python, ready.version):
            raise ExecutionEnvironmentError(
                f"the execution environment {source} has Python {version_text(ready.version)}, but "
                f"{python_origin or (f'model {label!r}' if label else 'the model')} asks for Python {python}; "
                "provide an environment of that version, or change the requirement"
            )
        return ready

    def accept_changed(self, uri: str) -> None:
        """Accept the current content of a URI at its next use, even if it changed since the first use."""
        self._entries.accept_changed(uri)

    def explain_changed(self, source: Path | EnvironmentSource) -> str:
        """How the content of a URI differs from the first one, which is used; empty if it does not. Blocks."""
        return self._entries.explain_changed(source) if isinstance(source, EnvironmentSource) else ""

    def _prepare_named(self, named: EnvironmentSource, label: str) -> ReadyEnvironment:
        if named.path is None:
            return self._from_entry(redact(named.uri), *self._entries.acquire_remote(named, label))
        if named.is_interpreter:
            return self._prepare_interpreter(named.path)
        # Resolved: changing a link to the next release must not change the environment of guests that restart.
        path = lasting_path(named.path)
        if not path.exists():
            raise _missing_error(named.path, path)
        if path.is_file():
            return self._from_entry(path, *self._entries.acquire_local(path, digest=named.digest, label=label))
        if not path.is_dir():  # a pipe or a device: a read of it may never end
            raise ExecutionEnvironmentError(
                f"cannot use the execution environment {named.path}: it is neither a regular file nor a directory; "
                "name an archive or the directory of an environment"
            )
        if named.digest or self._policy.trust is not None:
            rule = "@sha256" if named.digest else "--env-trust"
            raise ExecutionEnvironmentError(
                f"the execution environment {named} is refused: {path} is a directory, and only archives have digests "
                f"and signatures; pack it with `naiad env pack`, or remove {rule}"
            )
        return self._prepare_directory(path)

    def _prepare_declared(self, named: EnvironmentSource, python: SpecifierSet | None, label: str) -> ReadyEnvironment:
        assert named.path is not None
        if named.digest:
            raise ExecutionEnvironmentError(
                f"the execution environment {named} is refused: {named.path} declares packages, and only archives have "
                "a digest; remove @sha256, the lock has the digests of the packages"
            )
        if not named.path.is_file():
            raise _missing_error(named.path, named.path)
        self._entries.remove_leftovers()
        with self._declared_lock:
            if self._declared is None:
                # Imported here: most servers have no such model, and these modules parse locks and markers.
                make = load_from_extension(
                    "naiad_building.declared.provider:DeclaredEnvironments",
                    f"prepare the environment that {named.path} declares",
                )
                self._declared = make(self._root, self._policy, self._store)
        return self._from_entry(named.path, *self._declared.acquire(named.path, python=python, label=label))

    def _prepare_installed(self, python: SpecifierSet | None, origin: str = "") -> ReadyEnvironment:
        host = self._host()
        if matches(python, host.version):
            return host
        assert python is not None
        found = find_interpreter(python, self._root / "interpreters", origin=origin)
        return self._ready(found, source=None, prefix=found.prefix, library_path=None)

    def _prepare_directory(self, path: Path) -> ReadyEnvironment:
        where = f"the execution environment {path}"
        python = require_interpreter(path, where=where)
        found, library_path = self._probe(python, path, where)
        return self._ready(found, source=path, prefix=path, library_path=library_path)

    def _prepare_interpreter(self, path: Path) -> ReadyEnvironment:
        """The environment of an interpreter, which is started by its own name: that of a link determines the venv."""
        python = lasting_path(path.parent) / path.name
        own = Path(sys.executable)
        if python == lasting_path(own.parent) / own.name:
            return self._host()
        where = f"the interpreter {path}"
        if self._policy.trust is not None:
            raise ExecutionEnvironmentError(
                f"{where} is refused: only archives have signatures; pack its environment with `naiad env pack`, or "
                "remove --env-trust"
            )
        require_program(python, where=where)
        found, library_path = self._probe(python, python.parent.parent, where)
        return self._ready(found, source=path, prefix=found.prefix, library_path=library_path)

    def _probe(self, python: Path, prefix: Path, where: str) -> tuple[Interpreter, Path | None]:
        """As `probe_with_libraries`; rejects an interpreter without numpy, and a folder that was not unpacked whole.

        It logs once that scripts of the folder are for another one.
        """
        if reason := explain_unfinished_unpacking(prefix):
            raise ExecutionEnvironmentError(f"{where} cannot be used: {reason}")
        if prefix not in self._warned and (reason := explain_moved_scripts(prefix)):
            self._warned.add(prefix)
            _log.warning("%s: %s", where, reason)
        probe = partial(probe_cached, cache=self._root / "interpreters")
        try:
            found, library_path = probe_with_libraries(python, prefix, probe)
        except ExecutionEnvironmentError as error:
            raise ExecutionEnvironmentError(f"{where} cannot be used: {error.message}") from error
        require_numpy(found, where=where, advice=f"install it there (`{found.python} -m pip install numpy`)")
        return found, library_path

    def _ready(
        self, found: Interpreter, *, source: Path | None, prefix: Path, library_path: Path | None
    ) -> ReadyEnvironment:
        if os.pathsep in str(found.python.parent):
            raise ExecutionEnvironmentError(
                f"the environment {prefix} cannot be used: its path has a '{os.pathsep}', which separates the folders "
                "in PATH, so that the model would run programs of other environments; rename the folder"
            )
        return ReadyEnvironment(
            source=source,
            bytecode=None if found.has_bytecode else self._root / "bytecode",
            library_path=library_path,
            **self._facts(found, prefix, f"the environment {prefix}"),
        )

    def _facts(self, found: Interpreter, prefix: Path, where: str, entry: Path | None = None) -> dict[str, Any]:
        """The fields of a ready environment that its interpreter and its folder determine."""
        return {
            "prefix": prefix,
            "python": found.python,
            "version": found.version,
            "cache_tag": found.cache_tag,
            "abi": found.abi,
            "numpy_version": found.numpy,
            "libraries": own_libraries(prefix),
            "activation": self._activations.find(prefix, self._inherited(found.python), where, entry),
        }

    def _host(self) -> ReadyEnvironment:
        """The server's own interpreter; its environment is activated unless the server's shell has done that."""
        host = host_environment(self._root)
        if os.path.realpath(os.environ.get("CONDA_PREFIX", "")) == os.path.realpath(host.prefix):
            return host
        inherited = self._inherited(host.python, is_host=True)
        where = f"the server's environment {host.prefix}"
        return replace(host, activation=self._activations.find(host.prefix, inherited, where))

    def _inherited(self, python: Path, *, is_host: bool = False) -> dict[str, str]:
        given = inherited_variables(os.environ, self._policy.guest_variables)
        return inherited_by_guests(given, python, is_host=is_host)

    def _from_entry(self, source: Path | str, stored: ReadyEntry, lease: Lease) -> ReadyEnvironment:
        where, entry = f"the execution environment {source}", self._root / stored.digest
        return ReadyEnvironment(
            source=source,
            digest=stored.digest,
            bytecode=stored.bytecode,
            library_path=stored.library_path,
            lease=lease,
            **self._facts(stored.interpreter, stored.prefix, where, entry),
        )


def host_environment(store_root: Path) -> ReadyEnvironment:
    """The interpreter of this server with all packages installed beside naiad. Starts no process."""
    # numpy is not imported: that takes as long as starting a guest, and the guest imports it anyway.
    numpy = importlib.util.find_spec("numpy")
    origin = numpy.origin if numpy is not None else None
    has_bytecode = origin is not None and Path(importlib.util.cache_from_source(origin)).exists()
    return ReadyEnvironment(
        source=None,
        prefix=Path(sys.prefix),
        python=Path(sys.executable),
        version=sys.version_info[:3],
        cache_tag=sys.implementation.cache_tag or "",
        abi=OWN_ABI,
        numpy_version=_numpy_version(origin),
        is_host=True,
        bytecode=None if has_bytecode else store_root / "bytecode",
        user_site=_is_in_user_site(origin),
    )


def _numpy_version(origin: str | None) -> str | None:
    folders = Path(origin).parents[1].glob("numpy-*.dist-info") if origin is not None else iter(())
    return next((path.name.removesuffix(".dist-info").partition("-")[2] for path in folders), None)


def _is_in_user_site(origin: str | None) -> bool:
    """Whether the host's numpy is in the user's site; then its guests need the user's site too."""
    if not site.ENABLE_USER_SITE or origin is None:
        return False
    return Path(origin).is_relative_to(site.getusersitepackages())


def _missing_error(source: Path, path: Path) -> ExecutionEnvironmentError:
    nearest = next((parent for parent in path.parents if parent.exists()), path.parent)
    return ExecutionEnvironmentError(
        f"Failed to get the canonical path for {source}. There is no such file or directory "
        f"({path}; {nearest} exists); EXECUTION_ENV_PATH is an absolute path, or begins with "
        "$$TRITON_MODEL_DIRECTORY"
    )
