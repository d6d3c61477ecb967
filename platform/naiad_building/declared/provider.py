"""Store entries for declared environments: finds the lock, chooses the interpreter, and builds if the operator allows.

An entry is named by the digest of what its lock selects for one interpreter. All models whose locks select the same
packages share it, wherever these locks are. Where resolving is allowed, a resolution is remembered in the store, so
that the next start needs no network:

    <root>/resolved/<digest>/    lock of a declaration that has none, by the digest of what it was resolved from
"""

from __future__ import annotations

import hashlib
import json
import logging
import sysconfig
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from naiad.config.model.declared_environment import is_conda_declaration, lock_candidates
from naiad.config.server.env_build import EnvBuild
from naiad.core.errors import ConfigError, ExecutionEnvironmentError, InterpreterNotFoundError, StaleLockError
from naiad.environments.policy import StorePolicy
from naiad.environments.store.eviction import shrink_store
from naiad.environments.store.leases import EntryLeases, Lease
from naiad.environments.store.package_cache import conda_packages
from naiad.environments.store.record import ReadyEntry
from naiad.environments.store.store import Store
from naiad_building.base_interpreter import inspect_base
from naiad_building.declared.declaration import Declaration, find_lock, locked_pins, read_declaration
from naiad_building.declared.interpreter import ChosenPython, choose_python, require_agreement
from naiad_building.lockfiles import ForeignLock, Pin, open_foreign_lock
from naiad_building.uv_program import InstallOptions

if TYPE_CHECKING:
    from naiad_building.declared.conda import CondaDeclaration, CondaPackages


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """An environment to find in the store, or to build into it."""

    file: Path
    digest: str
    build: Callable[[Path, Path], None]


_log = logging.getLogger("naiad.environments")
_NUMPY = "numpy"


class DeclaredEnvironments:
    """Provides store entries for declared environments; one per server. Methods are thread-safe."""

    def __init__(self, root: Path, policy: StorePolicy, store: Store) -> None:
        self._root = root
        self._policy = policy
        self._store = store
        self._leases = EntryLeases(root)
        self._activity: dict[str, str] = {}
        self._activity_lock = threading.Lock()

    def activity(self) -> Mapping[str, str]:
        """What is being done now for which model, by the model's label."""
        with self._activity_lock:
            return dict(self._activity)

    def acquire(self, file: Path, *, python: SpecifierSet | None = None, label: str = "") -> tuple[ReadyEntry, Lease]:
        """The entry of a declared environment, with a lease on it."""
        if self._policy.trust is not None:
            raise ExecutionEnvironmentError(
                f"the environment of {file} is refused: it is built from packages, and --env-trust requires a "
                "signature; `naiad push --key` packs and signs it with its repository, for servers with "
                "--require-signature; or name an archive that `naiad env build`, `pack` and `sign` made"
            )
        try:
            plan = (self._plan_conda if is_conda_declaration(file) else self._plan_pypi)(file, python, label)
            return self._get_or_build(plan, label)
        except ConfigError as error:
            raise ExecutionEnvironmentError(error.message) from error
        finally:
            with self._activity_lock:
                self._activity.pop(label, None)

    def _plan_pypi(self, file: Path, python: SpecifierSet | None, label: str) -> _Plan:
        """An environment of packages of PyPI, in a virtual environment of an interpreter of this machine."""
        declaration = read_declaration(file)
        chosen, pins = self._select(declaration, python, label)

        def build(prefix: Path, final: Path) -> None:
            # Here: a start whose environments are all built installs nothing.
            from naiad_building.declared.venv import build_venv

            options = replace(self._options(label), indexes=declaration.indexes)
            build_venv(prefix, final, inspect_base(chosen.executable), pins, file, label or file.name, options)

        return _Plan(file=file, digest=venv_key(chosen, pins), build=build)

    def _plan_conda(self, file: Path, python: SpecifierSet | None, label: str) -> _Plan:
        from naiad_building.declared.conda import build_conda_environment, read_conda_declaration

        declaration = read_conda_declaration(file)
        packages = self._select_conda(declaration, python, label)
        if _NUMPY not in packages.versions:
            raise _without_numpy(declaration)

        def build(prefix: Path, final: Path) -> None:
            cache, name = conda_packages(self._root), label or file.name
            build_conda_environment(prefix, final, declaration, packages, cache, name, self._options(label))

        return _Plan(file=file, digest=conda_key(declaration, packages), build=build)

    def _select_conda(self, declaration: CondaDeclaration, python: SpecifierSet | None, label: str) -> CondaPackages:
        from naiad_building.declared.conda import read_conda_lock, resolve_conda

        if declaration.lock.is_file():
            try:
                return read_conda_lock(declaration.lock, declaration, python)
            except StaleLockError as error:
                if declaration.is_lock or self._policy.build is not EnvBuild.ALLOWED:
                    raise
                _log.warning("%s; resolving again, as --env-build=allowed permits", error.message)
        known = self._root / "resolved" / conda_resolution_key(declaration, python)

        def resolve(folder: Path) -> Path:
            return resolve_conda(declaration, folder, conda_packages(self._root), python, self._options(label))

        path = self._resolved(declaration, known, resolve, label)
        return read_conda_lock(path, declaration, python)

    def _select(
        self, declaration: Declaration, python: SpecifierSet | None, label: str
    ) -> tuple[ChosenPython, list[Pin]]:
        """The interpreter, and the packages to install for it."""
        lock = find_lock(declaration)
        asked = {
            "its block" if declaration.is_script else "it": declaration.requires_python,
            "the model (PYTHON_VERSION, or its backend)": python or SpecifierSet(),
        }
        required = require_agreement(declaration.file, asked)
        try:
            of_lock = {} if lock is None else {f"its lock {lock.path.name}": lock.requires_python}
            chosen = self._choose(declaration, require_agreement(declaration.file, {**asked, **of_lock}), label)
            pins = locked_pins(declaration, lock, chosen.version, self._policy.wheels)
            chosen, pins = self._with_files(declaration, lock, required, chosen, pins)
        except (StaleLockError, InterpreterNotFoundError) as error:
            if lock is None or declaration.is_lock or self._policy.build is not EnvBuild.ALLOWED:
                raise
            _log.warning("%s; resolving again, as --env-build=allowed permits", error.message)
            chosen, pins = self._choose(declaration, required, label), None
        if pins is None:
            pins = self._resolve(declaration, chosen, label)
        if not any(pin.name.lower() == _NUMPY for pin in pins):
            add = f"it with `naiad add {declaration.file} {_NUMPY}`"
            raise _without_numpy(declaration, add if declaration.is_script else "")
        return chosen, pins

    def _with_files(
        self,
        declaration: Declaration,
        lock: ForeignLock | None,
        required: SpecifierSet,
        chosen: ChosenPython,
        pins: list[Pin] | None,
    ) -> tuple[ChosenPython, list[Pin] | None]:
        """Another interpreter of this machine, if the lock has a file of each package for that one alone."""
        first, accepted = (chosen, pins), required if lock is None else required & lock.requires_python
        while lacking := [pin.name for pin in pins or () if not pin.has_file_for(chosen.version)]:
            minor = ".".join(chosen.version.split(".")[:2])
            accepted &= SpecifierSet(f"!={minor}.*")
            try:
                chosen = choose_python(accepted, self._root / "interpreters")
                pins = locked_pins(declaration, lock, chosen.version, self._policy.wheels)
            except ExecutionEnvironmentError:  # there is no other one, or the lock is not for it
                return first
            _log.info(
                "%s is tried with Python %s: its lock has no file of %s for %s",
                *(declaration.file, chosen.version, lacking[0], minor),
            )
        return chosen, pins

    def _choose(self, declaration: Declaration, required: SpecifierSet, label: str) -> ChosenPython:
        may_fetch = self._policy.build is EnvBuild.ALLOWED and not self._policy.offline
        try:
            return choose_python(required, self._root / "interpreters", self._progress(label) if may_fetch else None)
        except InterpreterNotFoundError as error:
            raise InterpreterNotFoundError(
                f"cannot build the environment of {declaration.file}: {error.message}"
            ) from error

    def _resolve(self, declaration: Declaration, chosen: ChosenPython, label: str) -> list[Pin]:
        """The packages of a declaration without a usable lock."""

        def resolve(folder: Path) -> Path:
            from naiad_building.declared.resolving import Resolver

            base = inspect_base(chosen.executable)
            return Resolver(declaration, folder, base, self._options(label)).resolve_for_one()

        known = self._root / "resolved" / resolution_key(declaration, chosen)
        path = self._resolved(declaration, known, resolve, label)
        return open_foreign_lock(path).pins(chosen.version, wheels=self._policy.wheels)

    def _resolved(
        self, declaration: Declaration | CondaDeclaration, known: Path, resolve: Callable[[Path], Path], label: str
    ) -> Path:
        """The lock of a declaration without a usable one: remembered in the folder *known*, or made now."""
        names = [path.name for path in lock_candidates(declaration.file)]
        if (path := _first_file(known, names)) is not None:
            return path
        if self._policy.build is not EnvBuild.ALLOWED:
            raise ExecutionEnvironmentError(
                f"the environment of {declaration.file} has no lock, and --env-build={self._policy.build.value} "
                f"resolves no requirements: looked for {' and '.join(names)} in "
                f"{declaration.file.parent}; write it with `{declaration.lock_command}`, or allow it with "
                "--env-build=allowed"
            )
        with self._store.scratch(known.name, label) as scratch:
            if (path := _first_file(known, names)) is not None:  # another process has resolved it meanwhile
                return path
            resolved = resolve(scratch)
            known.mkdir(parents=True, exist_ok=True)
            resolved.replace(known / resolved.name)  # in one step: a lock is there as a whole or not at all
        _log.info(
            "resolved the packages of %s; `%s` writes them down for servers that resolve nothing",
            declaration.file,
            declaration.lock_command,
        )
        return known / resolved.name

    def _get_or_build(self, plan: _Plan, label: str) -> tuple[ReadyEntry, Lease]:
        # The lease comes before the lookup, so that no process can remove the entry between the two.
        lease = self._leases.acquire(plan.digest)
        try:
            stored = self._store.get(plan.digest)
            if stored is None:
                if self._policy.build is EnvBuild.NEVER:
                    raise ExecutionEnvironmentError(
                        f"the environment of {plan.file} is not in the store {self._root}, and --env-build=never "
                        f"builds none; build it there with `naiad env prefetch {plan.file}`"
                    )
                stored = self._store.get_or_build(plan.digest, plan.build, origin=str(plan.file), label=label)
                if self._policy.max_bytes:
                    shrink_store(self._store, self._leases, self._policy.max_bytes)
        except BaseException:
            lease.release()
            raise
        if label:
            self._leases.record_model(plan.digest, label, str(plan.file))
        return stored, lease

    def _options(self, label: str) -> InstallOptions:
        wheels, offline = self._policy.wheels, self._policy.offline
        return InstallOptions(wheels=wheels, offline=offline, progress=self._progress(label))

    def _progress(self, label: str) -> Callable[[str], None]:
        def report(line: str) -> None:
            _log.info("environment%s: %s", f" of '{label}'" if label else "", line)
            with self._activity_lock:
                self._activity[label] = line

        return report


def _first_file(folder: Path, names: Iterable[str]) -> Path | None:
    try:
        present = {path.name for path in folder.iterdir()}  # Path.is_file may be False where the folder is closed
    except FileNotFoundError:
        return None
    return next((folder / name for name in names if name in present), None)


def _without_numpy(declaration: Declaration | CondaDeclaration, how: str = "") -> ExecutionEnvironmentError:
    return ExecutionEnvironmentError(
        f"the environment of {declaration.file} has no numpy, which every model needs; add "
        f"{how or f'it there, and run `{declaration.lock_command}`'}"
    )


# What environments and resolutions in a store are named by: digests of everything that determines them. Indexes are not
# part of an environment's: the digests of its packages are. They are of a resolution's, as far as the text of a
# declaration does not say which they are: folders are relative to it.
_FORMAT = 1
"""Of what is built; another one when the same packages give other files."""


def venv_key(python: ChosenPython, pins: Iterable[Pin]) -> str:
    """The digest of a virtual environment: its interpreter, and its packages in any order, with their digests."""
    packages = [[pin.name.lower(), pin.version, sorted(pin.digests)] for pin in pins]
    return _digest([_FORMAT, python.version, python.abi, str(python.prefix), sorted(packages)])


def conda_key(declaration: CondaDeclaration, packages: CondaPackages) -> str:
    """The digest of an environment of conda packages, which have a platform, and the declaration's variables."""
    return _digest([_FORMAT, "conda", packages.identity, sorted(declaration.variables.items())])


def resolution_key(declaration: Declaration, python: ChosenPython) -> str:
    """The digest of what packages of PyPI are resolved from."""
    return _digest([_FORMAT, declaration.text, python.version, python.abi, *declaration.indexes.places])


def conda_resolution_key(declaration: CondaDeclaration, python: SpecifierSet | None) -> str:
    """The digest of what conda packages are resolved from, for the platform of this process."""
    required = sorted(map(str, python or ()))
    return _digest([_FORMAT, "conda", declaration.text, required, sysconfig.get_platform(), *declaration.places])


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
