"""Environments that `environment.yml` or `pixi.lock` declares, solved and installed by py-rattler, without conda.

The lock is a `pixi.lock`, the format of pixi and rattler: pixi writes it, and so does `naiad lock` beside an
`environment.yml`. It has conda packages, and those of PyPI that are installed on top of them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from naiad.config.model.declared_environment import lock_candidates
from naiad.core.errors import ConfigError, ExecutionEnvironmentError, StaleLockError
from naiad.core.extras import install_command
from naiad.core.real_paths import real_path
from naiad.environments.store.package_cache import package_cache
from naiad.sources.interpreters.prefix import find_interpreter_in
from naiad.sources.interpreters.versions import matches
from naiad_building.base_interpreter import inspect_base
from naiad_building.declared.package_files import PackageFile
from naiad_building.declared.resolving import resolve_into_environment
from naiad_building.declared.venv import compile_with_fixed_times
from naiad_building.indexes import INDEX_OPTIONS, PackageIndexes, indexes_of_options, parse_options
from naiad_building.lockfiles import Pin, pin_lines
from naiad_building.recipe import set_variables
from naiad_building.relocation import relocate_scripts
from naiad_building.uv_program import InstallOptions, Requirements, install

if TYPE_CHECKING:
    from rattler import RepoDataRecord

_ENVIRONMENT = "default"
_KEYS = ("name", "prefix", "channels", "dependencies", "variables", "platforms")
_DEFAULT_CHANNELS = ("conda-forge",)
_FULL_VERSION_DOTS = 2
_INCLUDING = re.compile(r"(-r|--requirement|-c|--constraint) +(.*\S)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaDeclaration:
    """A file that declares an environment of conda packages; a lock has neither channels nor specs here.

    Channels are names or URLs, the one of highest priority first.
    """

    file: Path
    text: str
    channels: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def indexes(self) -> PackageIndexes:
        """Indexes that options among the requirements name."""
        lines = self.requirements
        return indexes_of_options((*option, self.file.parent) for line in lines for option in parse_options(line))

    @property
    def places(self) -> tuple[str, ...]:
        """Channels and indexes that are folders of this machine: the same text in another folder means others."""
        return (*(channel for channel in self.channels if channel.startswith("file:")), *self.indexes.places)

    @property
    def lock(self) -> Path:
        """Path of its lock, which may not exist."""
        return lock_candidates(self.file)[0]

    @property
    def is_lock(self) -> bool:
        return self.lock == self.file

    @property
    def lock_command(self) -> str:
        return f"naiad lock {self.file}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaPackages:
    """What a lock selects for this platform."""

    records: tuple[RepoDataRecord, ...]
    pins: tuple[Pin, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        conda = {record.name.normalized: str(record.version) for record in self.records}
        return conda | {str(canonicalize_name(pin.name)): pin.version for pin in self.pins}

    @property
    def identity(self) -> list[list[object]]:
        """Everything that determines the environment, sorted, as plain values."""
        conda: list[list[object]] = [
            [record.name.normalized, str(record.version), str(record.build), str(record.subdir), _digest_of(record)]
            for record in self.records
        ]
        pypi: list[list[object]] = [[pin.name.lower(), pin.version, sorted(pin.digests)] for pin in self.pins]
        return [*sorted(conda, key=str), *sorted(pypi, key=str)]


def read_conda_declaration(file: Path) -> CondaDeclaration:
    """Read a file that declares conda packages."""
    if importlib.util.find_spec("rattler") is None:
        raise ConfigError(f"using {file} needs packages that naiad lacks: `{install_command('conda')}`")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutionEnvironmentError(f"cannot read {file}: {error}") from error
    if file.name == "pixi.toml":
        raise ConfigError(
            f"cannot read {file}: pixi alone knows all that it may say; name {file.with_name('pixi.lock')}, which "
            "`pixi lock` writes"
        )
    return CondaDeclaration(file=file, text=text) if file.name == "pixi.lock" else _of_environment_yml(file, text)


def _of_environment_yml(file: Path, text: str) -> CondaDeclaration:
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"reading {file} needs packages that naiad lacks: `{install_command('conda')}`") from None
    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{file} is not a valid environment.yml: it has no 'dependencies'")
    if unknown := [key for key in table if key not in _KEYS]:
        raise ConfigError(f"{file}: unknown key '{unknown[0]}'; known keys are {', '.join(_KEYS)}")
    dependencies, channels, variables = (table.get(key) for key in ("dependencies", "channels", "variables"))
    for key, values in (("dependencies", dependencies), ("channels", channels)):
        if not isinstance(values or [], list):
            raise ConfigError(f"{file} is not a valid environment.yml: '{key}' must be a list")
    if not isinstance(variables or {}, dict):
        raise ConfigError(f"{file} is not a valid environment.yml: 'variables' must be names with values")
    lines: list[str] = []
    for part in (one for one in dependencies or () if isinstance(one, dict)):
        if list(part) != ["pip"] or not isinstance(part["pip"], list):
            raise ConfigError(
                f"{file} is not a valid environment.yml: 'dependencies' has a part that is neither a package nor a "
                "list for 'pip'"
            )
        for line in map(str, part["pip"]):
            included = _INCLUDING.fullmatch(line)
            lines.append(line if included is None else f"{included[1]} {real_path(file.parent / included[2])}")
    return CondaDeclaration(
        file=file,
        text=text,
        # "nodefaults" excludes conda's default channels, which are never used here.
        channels=tuple(_channel(str(one), file) for one in channels or _DEFAULT_CHANNELS if one != "nodefaults"),
        # uv installs from outside the environment, so pip need not be in it.
        specs=tuple(spec for spec in dependencies or () if isinstance(spec, str) and spec != "pip"),
        requirements=tuple(lines),
        variables={str(name): str(value) for name, value in (variables or {}).items()},
    )


def _channel(channel: str, file: Path) -> str:
    """A channel as rattler takes it. Paths are relative to the file that names them, which may be beside a channel."""
    return real_path(file.parent / channel).as_uri() if channel.startswith((".", "/")) else channel


def read_conda_lock(path: Path, declaration: CondaDeclaration, python: SpecifierSet | None) -> CondaPackages:
    """What a lock selects for this platform.

    Raises StaleLockError if it does not match the declaration or the versions of Python.
    """
    import rattler

    try:
        environment = rattler.LockFile.from_path(path).environment(_ENVIRONMENT)
    except Exception as error:  # rattler's errors have no common base class
        raise ExecutionEnvironmentError(f"cannot read {path}: {error}") from error
    if environment is None:
        raise ExecutionEnvironmentError(f"{path} has no environment '{_ENVIRONMENT}', which is the one that is used")
    here = str(rattler.Subdir.current())
    platforms = {str(platform.subdir): platform for platform in environment.platforms()}
    if here not in platforms:
        raise StaleLockError(
            f"{path} is for {', '.join(sorted(platforms)) or 'no platform'}, and this machine is {here}; add it to the "
            f"platforms, and update the lock with `{declaration.lock_command}`"
        )
    records = environment.conda_repodata_records_for_platform(platforms[here]) or []
    wheels = environment.pypi_packages_for_platform(platforms[here]) or []
    pins = tuple(_pin(path, one.name, str(one.version), one.location, one.hashes) for one in wheels)
    packages = CondaPackages(records=tuple(records), pins=pins)
    _require_current(path, declaration, packages, python)
    return packages


def resolve_conda(
    declaration: CondaDeclaration, folder: Path, cache: Path, python: SpecifierSet | None, options: InstallOptions
) -> Path:
    """Solve a declaration, and write its lock into a folder, which also has temporary files; returns the path."""
    import rattler

    distant = [channel for channel in declaration.channels if not channel.startswith("file:")]
    if distant and options.offline:
        raise ExecutionEnvironmentError(
            f"cannot use {declaration.file} offline: it names the channel {distant[0]}, which is not on this machine; "
            "name a folder with a channel"
        )
    specs = [*declaration.specs, *([_python_spec(python)] if python else [])]
    options.progress(f"solving for {len(specs)} conda packages from {', '.join(declaration.channels)}")
    records = solve_packages(declaration.channels, specs, declaration.file)
    wheels: Sequence[PackageFile] = ()
    if declaration.requirements:
        with tempfile.TemporaryDirectory(prefix="naiad-solve-", dir=folder) as scratch:
            prefix = Path(scratch, "env")
            # uv must know what conda brings, and which Python that is.
            _install_records(records, prefix, cache, declaration, options)
            base = inspect_base(_interpreter(prefix, declaration))
            chosen = replace(options, indexes=declaration.indexes)
            # Their options name indexes, which *chosen* has with absolute paths.
            lines = [one for one in declaration.requirements if not INDEX_OPTIONS & dict(parse_options(one)).keys()]
            wheels = resolve_into_environment(declaration.file, lines, base, chosen)
    platform = rattler.LockPlatform(str(rattler.Subdir.current()))
    lock = rattler.LockFile([platform])
    lock.set_channels(_ENVIRONMENT, [rattler.LockChannel(channel) for channel in declaration.channels])
    for record in records:
        lock.add_conda_package(_ENVIRONMENT, platform, record)
    for wheel in wheels:
        lock.add_pypi_package(_ENVIRONMENT, platform, wheel.package, wheel.version, wheel.url)
    target = folder / declaration.lock.name
    lock.to_path(target)
    _add_digests(target, wheels)
    return target


def solve_packages(channels: Sequence[str], specs: Sequence[str], file: Path) -> list[RepoDataRecord]:
    """The conda packages that satisfy *specs*, with those that they depend on; *file* names them, for errors."""
    import rattler

    async def solve() -> list[RepoDataRecord]:
        return await rattler.solve(
            list(channels),
            list(specs),
            platforms=[rattler.Subdir.current(), "noarch"],
            virtual_packages=list(rattler.VirtualPackage.detect()),
            # By default it neither tries again nor logs in.
            gateway=rattler.Gateway(client=rattler.Client.default_client()),
        )

    with _errors(file):
        return asyncio.run(solve())


def _install_records(
    records: Sequence[RepoDataRecord],
    prefix: Path,
    cache: Path,
    declaration: CondaDeclaration,
    options: InstallOptions,
    final: Path | None = None,
) -> None:
    """Install conda packages into a new folder, which will be moved to *final*, if that is not None.

    The cache has unpacked packages, whose files are shared by hard links. conda-pack reads files from it.
    """
    options.progress(f"installing {len(records)} conda packages")
    with package_cache(cache), _errors(declaration.file):
        install_packages(records, prefix, cache=cache, final=final)


def install_packages(records: Sequence[RepoDataRecord], prefix: Path, *, cache: Path, final: Path | None) -> None:
    """Let rattler install packages."""
    import rattler

    async def install() -> None:
        await rattler.install(
            list(records),
            prefix,
            cache_dir=cache,
            show_progress=sys.stderr.isatty(),
            alternative_target_prefix=final,
            client=rattler.Client.default_client(),
        )

    asyncio.run(install())


@contextmanager
def _errors(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # rattler's errors have no common base class
        why = str(error).strip()
        raise ExecutionEnvironmentError(f"cannot install the conda packages named in {file}: {why}") from error


def _python_spec(required: SpecifierSet) -> str:
    """The match spec for versions of Python. A version without operator matches its prefix; conda's `==` does not."""
    versions = [
        f"{one.version.removesuffix('.*')}.*"
        if one.operator == "==" and one.version.removesuffix(".*").count(".") < _FULL_VERSION_DOTS
        else str(one)
        for one in required
    ]
    return f"python {','.join(sorted(versions))}"


def _add_digests(lock: Path, wheels: Sequence[PackageFile]) -> None:
    """Write the digests of wheels into a lock, as pixi does; rattler's Python interface has no argument for them."""
    import yaml

    digests = {(wheel.package, wheel.version): wheel.digest for wheel in wheels}
    document = yaml.safe_load(lock.read_text(encoding="utf-8"))
    for package in document["packages"]:
        if "pypi" in package:
            package["sha256"] = digests[package["name"], package["version"]]
    lock.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def build_conda_environment(
    prefix: Path,
    final: Path,
    declaration: CondaDeclaration,
    packages: CondaPackages,
    cache: Path,
    label: str,
    options: InstallOptions,
) -> None:
    """Build an environment of locked packages in the empty folder *prefix*, which will be moved to *final*."""
    if options.offline:
        _require_present(packages.records, cache, declaration)
    _install_records(packages.records, prefix, cache, declaration, options, final)
    python = _interpreter(prefix, declaration)
    base = inspect_base(python)
    if packages.pins:
        requirements = Requirements(pin_lines(packages.pins), declaration.file, is_locked=True)
        options.progress(f"installing {len(packages.pins)} packages of PyPI for Python {base.version}")
        install(label, requirements, python, replace(options, indexes=declaration.indexes))
        relocate_scripts(prefix, prefix, final)
    compile_with_fixed_times(python, prefix, base, options)
    set_variables(declaration.variables, prefix)


def _interpreter(prefix: Path, declaration: CondaDeclaration) -> Path:
    found = find_interpreter_in(prefix)
    if found is None:
        raise ExecutionEnvironmentError(
            f"the environment of {declaration.file} has no Python; add 'python' to its dependencies"
        )
    return found


def _require_present(records: Iterable[RepoDataRecord], cache: Path, declaration: CondaDeclaration) -> None:
    for record in records:
        name = f"{record.name.normalized}-{record.version}-{record.build}"
        if not record.url.startswith("file:") and not (cache / name).is_dir():
            raise ExecutionEnvironmentError(
                f"cannot build the environment of {declaration.file} offline: {name} of {record.channel} is not on "
                "this machine; build it where the network is, and `naiad push` it, or name a folder with a channel"
            )


def _require_current(
    path: Path, declaration: CondaDeclaration, packages: CondaPackages, python: SpecifierSet | None
) -> None:
    """Reject a lock that lacks a required package, or has another version of it."""
    import rattler

    versions, records = packages.versions, {record.name.normalized: record for record in packages.records}
    update = f"update it with `{declaration.lock_command}`" if not declaration.is_lock else "update it with pixi"

    def require(name: str, spec: object, found: str | None, *, is_met: bool) -> None:
        if not is_met:
            has = f"it has {name} {found}" if found else f"it has no {name}"
            raise StaleLockError(f"{path} does not match {declaration.file}, which requires '{spec}': {has}; {update}")

    for spec in declaration.specs:
        try:
            wanted = rattler.MatchSpec(spec)
        except Exception as error:  # rattler's errors have no common base class
            raise ConfigError(f"{declaration.file}: '{spec}' is not a conda package: {error}") from error
        name = str(wanted.name.normalized)
        require(name, spec, versions.get(name), is_met=name in records and wanted.matches(records[name]))
    for requirement in filter(None, map(_requirement, declaration.requirements)):
        found = versions.get(canonicalize_name(requirement.name))
        is_met = found is not None and requirement.specifier.contains(found, prereleases=True)
        require(requirement.name, requirement, found, is_met=is_met)
    found = versions.get("python")
    if found is not None and python and not matches(python, _python_version(found)):
        raise StaleLockError(f"{path} has Python {found}, and the model asks for Python {python}; {update}")


def _python_version(text: str) -> tuple[int, int, int]:
    major, minor, patch = (*map(int, text.split(".")[:3]), 0, 0)[:3]
    return major, minor, patch


def _requirement(line: str) -> Requirement | None:
    """A requirement of PyPI; None for options and included files, which are left to uv."""
    try:
        requirement = Requirement(line.partition(" --hash")[0])
    except InvalidRequirement:
        return None
    return requirement if requirement.marker is None or requirement.marker.evaluate() else None


def _pin(path: Path, name: str, version: str, location: str, hashes: object) -> Pin:
    digest = getattr(hashes, "sha256", None)
    found = digest.hex() if isinstance(digest, bytes) else location.partition("#sha256=")[2]
    if not found:
        raise ExecutionEnvironmentError(
            f"cannot install {name} of {path}: the lock has no digest of it ({location}); only wheels of an index are "
            "installed"
        )
    return Pin(name, version, (found,))


def _digest_of(record: RepoDataRecord) -> str:
    if record.sha256 is not None:
        return record.sha256.hex()
    return record.md5.hex() if record.md5 is not None else record.url
