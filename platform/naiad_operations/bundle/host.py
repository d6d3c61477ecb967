"""The server in a bundle: a copy of the running interpreter with naiad and its dependencies, and the script `run`.

Only naiad's own dependencies are copied, resolved from the metadata of the installed packages: the interpreter's other
packages may be hundreds of megabytes that no server imports.
"""

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
from naiad.core.errors import BundleError
from naiad.core.extensions import EXTENSIONS
from naiad.core.toml import tomllib
from naiad.environments.archives.archive_writer import OutputMember
from naiad.environments.archives.manifest import Manifest
from naiad.environments.bytecode import compile_environment
from naiad_building.base_interpreter import copy_base, inspect_base
from naiad_building.collecting import collect_members, record_interpreter, write_history
from naiad_building.pack import create_manifest, packages_folder

HOST_FOLDER = "python"
_NAIAD = "naiad"
_NOT_COPIED = shutil.ignore_patterns("__pycache__")
# Metadata files that record how a package was installed on this machine.
_INSTALLER_FILES = frozenset({"direct_url.json", "INSTALLER", "REQUESTED"})


def copy_host(prefix: Path, more: Iterable[str] = ()) -> tuple[list[OutputMember], Manifest]:
    """Copy the running server, with *more* packages and their dependencies; returns the members and their manifest."""
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
    members, _ = collect_members(prefix, prefix / "bin" / "python")
    manifest = create_manifest(prefix, members, made_from="directory")
    return [replace(member, name=f"{HOST_FOLDER}/{member.name}") for member in members], manifest


def lock_text(manifest: Manifest) -> str:
    """The packages of the server's interpreter, as a requirements file; digests are of the installed files."""
    lines = [f"# Python {manifest.python}, {manifest.platform}"]
    lines += [
        f"{package.name}=={package.version}  # installed sha256:{package.digest or 'unknown'}"
        for package in manifest.packages
        if package.source == "python"
    ]
    return "\n".join(lines) + "\n"


def needed_packages(names: Iterable[str]) -> list[str]:
    """Sorted names of these packages, which may have extras in brackets, and of all their dependencies."""
    found: dict[str, None] = {}
    pending = [(name, "", frozenset[str]()) for name in names]
    while pending:
        name, required_by, extras = pending.pop(0)
        try:
            requirement = Requirement(name)
        except InvalidRequirement as error:
            raise BundleError(f"'{name}' is not a valid package name: {error}") from error
        extras |= requirement.extras
        key = f"{canonicalize_name(requirement.name)}[{','.join(sorted(extras))}]"
        if key in found:
            continue
        try:
            distribution = importlib.metadata.distribution(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            dependency = f", a dependency of {required_by}" if required_by else ""
            raise BundleError(
                f"cannot copy package '{requirement.name}'{dependency}: it is not installed with this server "
                f"({sys.prefix}); install it there first"
            ) from None
        found[key] = None
        pending += [
            (str(needed), requirement.name, frozenset(needed.extras)) for needed in _requirements(distribution, extras)
        ]
    return sorted({key.partition("[")[0] for key in found})


def _requirements(distribution: importlib.metadata.Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    """The dependencies of a package with these extras that apply on this machine, without their markers."""
    for text in _declared_requirements(distribution):
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(one) for one in environments):
            yield Requirement(str(requirement).partition(";")[0])


def _declared_requirements(distribution: importlib.metadata.Distribution) -> Sequence[str]:
    """The requirements that a package declares.

    For naiad in a checkout they come from pyproject.toml: the metadata of an editable installation is as old as the
    installation.
    """
    project = _package().parents[1] / "pyproject.toml"
    if not _is_checkout(distribution) or not project.is_file():
        return distribution.requires or ()
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    optional = declared.get("optional-dependencies", {})
    return [
        *declared["dependencies"],
        *(_with_extra(text, extra) for extra, texts in optional.items() for text in texts),
    ]


def _with_extra(text: str, extra: str) -> str:
    return f"{text}{' and' if ';' in text else ' ;'} extra == '{extra}'"


def _copy_package(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Copy the installed files of a package, except scripts and bytecode: both contain paths of this machine."""
    for file in distribution.files or ():
        if file.parts[0] in {"..", "/"} or "__pycache__" in file.parts or file.name in _INSTALLER_FILES:
            continue
        if file.suffix == ".pth" and _is_checkout(distribution):
            continue
        source = Path(str(distribution.locate_file(file)))
        if source.is_file():
            target = site.joinpath(*file.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _copy_checkout(site: Path) -> None:
    """If naiad runs from a checkout, copy it in the layout of its wheel."""
    package = _package()
    if package.parent.name != "platform" or (site / _NAIAD / "__init__.py").exists():
        return
    for name in (_NAIAD, *(extension.package for extension in EXTENSIONS if extension.is_installed)):
        shutil.copytree(package.parent / name, site / name, ignore=_NOT_COPIED, dirs_exist_ok=True)
    for alias in package.parent.glob("*.py"):
        shutil.copy2(alias, site)
    shutil.copytree(package.parent.with_name("backends"), site / _NAIAD / "_backends", ignore=_NOT_COPIED)
    guest = Path(naiad_stub.__file__).resolve().parents[1]
    shutil.copytree(guest, site, ignore=_NOT_COPIED, dirs_exist_ok=True)


def _is_checkout(distribution: importlib.metadata.Distribution) -> bool:
    return canonicalize_name(distribution.name) == _NAIAD and _package().parent.name == "platform"


def _package() -> Path:
    return Path(naiad.__file__).resolve().parent


# Module that the script runs; its first argument is the bundle's folder.
_START_MODULE = "naiad_operations.cli.bundle_start"

_SCRIPT = """\
#!/bin/sh
# Starts the server of this bundle. Flags given here are added to the bundle's own: ./run --http-port=8080
# ./run doctor finds what would fail on this machine.
if [ "$(uname -s)-$(uname -m)" != "{uname}" ]; then
    echo "$0: this bundle is for {platform}, this machine is $(uname -s)-$(uname -m)" >&2
    exit 1
fi
# Links are followed: `run` may be started through a link in another folder.
here=$(dirname -- "$(readlink -f -- "$0")") || exit 1
exec "$here/{python}" {arguments} "$here" "$@"
"""


def interpreter_arguments() -> list[str]:
    """Arguments of the bundle's interpreter; -I ignores the caller's PYTHON* variables and user site-packages."""
    return ["-I", "-B", "-m", _START_MODULE]


def run_script(platform: str) -> bytes:
    """The content of the script `run`, for a platform such as `linux-x86_64`."""
    system, _, machine = platform.partition("-")
    return _SCRIPT.format(
        uname=f"{system.capitalize()}-{machine}",
        platform=platform,
        python=f"{HOST_FOLDER}/bin/python3",
        arguments=" ".join(interpreter_arguments()),
    ).encode()
