"""The server itself, to be taken along: a copy of its interpreter with naiad and what that needs, and nothing else."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import naiad_stub
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import naiad
from naiad.environments.archives.archive_writer import Packed
from naiad.environments.archives.manifest import Manifest
from naiad.environments.building.base_interpreter import copy_base, inspect_base
from naiad.environments.building.collecting import collect
from naiad.environments.building.conda_meta import record_interpreter, write_history
from naiad.environments.building.pack import describe
from naiad.environments.building.self_contained import packages_folder
from naiad.environments.bytecode import compile_environment
from naiad.errors import BundleError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["HOST_FOLDER", "copy_host", "lock_text", "needed_packages"]

HOST_FOLDER = "python"
_NAIAD = "naiad"
# Of packages: nothing that only their installation needs.
_NOT_COPIED = shutil.ignore_patterns("__pycache__")
_NOT_TRAVELLING = frozenset({"direct_url.json", "INSTALLER", "REQUESTED"})


def copy_host(prefix: Path, more: Iterable[str] = ()) -> tuple[list[Packed], Manifest]:
    """Put the running server into the empty folder *prefix*; the bundle's members, and what they need.

    Args:
        prefix: The folder.
        more: Further packages to take along, with what they need.

    Raises:
        BundleError: If a package is not installed here.
        ExecutionEnvironmentError: If the interpreter cannot be copied.
        OSError: If a file cannot.
    """
    names = needed_packages((_NAIAD, *more))
    base = inspect_base(Path(sys.executable))
    copy_base(base, prefix)
    record_interpreter(prefix, base.version)
    site = packages_folder(base, prefix / base.stdlib.relative_to(base.prefix))
    site.mkdir(parents=True, exist_ok=True)
    for name in names:
        _copy_package(importlib.metadata.distribution(name), site)
    _copy_checkout(site)
    compile_environment(prefix / "bin" / "python", prefix, base.cache_tag)
    write_history(prefix, base.version)
    members, _ = collect(prefix, prefix / "bin" / "python")
    manifest = describe(prefix, members, made_from="directory")
    return [replace(member, name=f"{HOST_FOLDER}/{member.name}") for member in members], manifest


def lock_text(manifest: Manifest) -> str:
    """What the server's interpreter has installed, as a requirements file; digests are of what was installed."""
    lines = [f"# Python {manifest.python}, {manifest.platform}"]
    lines += [
        f"{package.name}=={package.version}  # installed sha256:{package.digest or 'unknown'}"
        for package in manifest.packages
        if package.source == "python"
    ]
    return "\n".join(lines) + "\n"


def needed_packages(names: Iterable[str]) -> list[str]:
    """These packages and all that they need, of what is installed with the server.

    Raises:
        BundleError: If one of them is not.
    """
    found: dict[str, None] = {}
    waiting = [(name, "", frozenset[str]()) for name in names]
    while waiting:
        name, wanted_by, extras = waiting.pop(0)
        try:
            requirement = Requirement(name)
        except InvalidRequirement as error:
            raise BundleError(f"'{name}' is no name of a package: {error}") from error
        extras |= requirement.extras
        key = f"{canonicalize_name(requirement.name)}[{','.join(sorted(extras))}]"
        if key in found:
            continue
        try:
            distribution = importlib.metadata.distribution(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            needed = f", which {wanted_by} needs" if wanted_by else ""
            raise BundleError(
                f"package '{requirement.name}'{needed} is not installed with this server ({sys.prefix}), so it "
                "cannot be taken along; install it there first"
            ) from None
        found[key] = None
        waiting += [(str(one), requirement.name, frozenset(one.extras)) for one in _requirements(distribution, extras)]
    return sorted({key.partition("[")[0] for key in found})


def _requirements(distribution: importlib.metadata.Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in _required(distribution):
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(one) for one in environments):
            yield Requirement(str(requirement).partition(";")[0])


def _required(distribution: importlib.metadata.Distribution) -> Sequence[str]:
    """What a package needs, as it says itself; an editable installation says what was so when it was made."""
    project = _package().parents[1] / "pyproject.toml"
    if not _is_checkout(distribution) or not project.is_file():
        return distribution.requires or ()
    said = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = said.get("optional-dependencies", {})
    return [*said["dependencies"], *(_with_extra(one, name) for name, some in extras.items() for one in some)]


def _with_extra(text: str, extra: str) -> str:
    return f"{text}{' and' if ';' in text else ' ;'} extra == '{extra}'"


def _copy_package(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Copy what was installed of a package, but for scripts and bytecode: both are made for one place."""
    for file in distribution.files or ():
        if file.parts[0] in {"..", "/"} or "__pycache__" in file.parts or file.name in _NOT_TRAVELLING:
            continue
        if file.suffix == ".pth" and _is_checkout(distribution):
            continue
        source = Path(str(distribution.locate_file(file)))
        if source.is_file():
            target = site.joinpath(*file.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _copy_checkout(site: Path) -> None:
    """Naiad itself where it runs from a checkout, as its wheel would have it."""
    package = _package()
    if package.parent.name != "platform" or (site / _NAIAD / "__init__.py").exists():
        return
    shutil.copytree(package, site / _NAIAD, ignore=_NOT_COPIED, dirs_exist_ok=True)
    shutil.copytree(package.parent.with_name("backends"), site / _NAIAD / "_backends", ignore=_NOT_COPIED)
    guest = Path(naiad_stub.__file__).resolve().parents[1]
    shutil.copytree(guest, site, ignore=_NOT_COPIED, dirs_exist_ok=True)


def _is_checkout(distribution: importlib.metadata.Distribution) -> bool:
    return canonicalize_name(distribution.name) == _NAIAD and _package().parent.name == "platform"


def _package() -> Path:
    return Path(naiad.__file__).resolve().parent
