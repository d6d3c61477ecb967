"""Examines compiled modules: whether this machine's libraries have the symbol versions that they require.

A shared library requires versions such as GLIBC_2.34 or GLIBCXX_3.4.30 of the libraries it links to. The loader of an
older system rejects the file, and the import fails. The versions are read from the ELF files; nothing is loaded.
"""

from __future__ import annotations

import functools
import platform
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from naiad.environments.elf import required_versions
from naiad.environments.ready_environment import ReadyEnvironment
from naiad_operations.doctor.findings import Finding, error_finding

# Runtime libraries of compilers, and the conda packages that install them in an environment.
_RUNTIMES = {"libstdc++.so.6": "libstdcxx-ng", "libgcc_s.so.1": "libgcc-ng", "libgomp.so.1": "libgomp"}

_MULTIARCH = f"{platform.machine()}-linux-gnu"
_SYSTEM_FOLDERS = (f"/lib/{_MULTIARCH}", f"/usr/lib/{_MULTIARCH}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
_GLIBC = "GLIBC_"


def examine_binaries(environment: ReadyEnvironment) -> list[Finding]:
    """Findings about symbol versions that compiled modules of an environment require and this machine lacks."""
    files = (file for library in environment.prefix.glob("lib/python3*") for file in library.rglob("*.so*"))
    compiled = (file for file in files if file.is_file() and not file.is_symlink())
    return list(examine_files(compiled, environment.prefix))


def examine_own_modules(folder: Path, environment: ReadyEnvironment) -> Iterator[Finding]:
    """Findings about compiled modules beside a model's code: their symbol versions and their Python version."""
    files = sorted(folder.glob("*.so"))
    yield from examine_files(files, environment.prefix)
    for file in files:
        parts = file.name.split(".")
        tag = parts[1] if len(parts) > 2 else ""  # noqa: PLR2004 - the name is module.tag.so
        if tag.startswith("cpython-") and environment.abi and tag != environment.abi:
            yield error_finding(
                "compiled-for-another-python",
                f"{file.name} is compiled for {tag} and cannot be imported by {environment.abi}",
                "compile it with the Python of the model's environment",
                str(file),
            )


def examine_files(files: Iterable[Path], prefix: Path) -> Iterator[Finding]:
    """Findings about symbol versions that compiled files require and this machine, with this environment, lacks."""
    missing: defaultdict[tuple[str, str], list[Path]] = defaultdict(list)
    for file in files:
        for library, version in required_versions(file):
            if not _is_available(library, version, prefix):
                missing[library, version].append(file)
    # One finding a library, about the newest version: a library that has it has the older ones, too.
    newest: dict[str, tuple[str, list[Path]]] = {}
    for (library, version), requiring in missing.items():
        if library not in newest or _version_key(version) > _version_key(newest[library][0]):
            newest[library] = (version, requiring)
    for library, (version, requiring) in sorted(newest.items()):
        others = len(requiring) - 1
        more = f" and {others} other file{'s' if others > 1 else ''} need" if others else " needs"
        yield error_finding(
            "missing-symbols",
            f"{requiring[0].name}{more} {version}, which {_provider(library, prefix)} does not have",
            _advice(library),
            str(requiring[0]),
        )


def _is_available(library: str, version: str, prefix: Path) -> bool:
    if version.startswith(_GLIBC):
        return _glibc_has(version)
    if library not in _RUNTIMES:
        return True  # a library inside a wheel, which the wheel's build has matched
    found = _find(library, prefix)
    return found is None or _defines_version(found, version)


def _glibc_has(version: str) -> bool:
    kind, here = platform.libc_ver()
    try:
        return kind != "glibc" or Version(version.removeprefix(_GLIBC)) <= Version(here)
    except InvalidVersion:
        return True  # GLIBC_PRIVATE has no number


def _find(library: str, prefix: Path) -> Path | None:
    folders = (prefix / "lib", *map(Path, _SYSTEM_FOLDERS))
    return next((folder / library for folder in folders if (folder / library).is_file()), None)


@functools.cache
def _defines_version(library: Path, version: str) -> bool:
    """Whether a library defines a symbol version: the string table has the version's name."""
    return version.encode() + b"\0" in library.read_bytes()


def _provider(library: str, prefix: Path) -> str:
    if library not in _RUNTIMES:
        return f"this machine's glibc {platform.libc_ver()[1]}"
    return str(_find(library, prefix))


def _advice(library: str) -> str:
    if library in _RUNTIMES:
        return f"add a newer {_RUNTIMES[library]} to the environment, or run on a newer system"
    return "build the environment on the oldest system that it must run on, or run it on a newer system"


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.rpartition("_")[2].split(".") if part.isdigit())
