"""Packing an environment into a reproducible archive that runs on any machine of the same platform.

The members are those that conda-pack would write (`collecting`), so tools for its archives accept ours. The first
member is the manifest. A venv has packages and a link to an interpreter elsewhere: it is packed from a temporary copy
that contains that interpreter and the packages, and so is a Python with packages.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import conda_pack
from naiad_stub.process_limits import usable_processors

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.file_digest import file_digest
from naiad.core.foreign_json import read_json
from naiad.core.real_paths import real_path
from naiad.environments.archives.archive_writer import FORMATS, OutputMember, write_archive
from naiad.environments.archives.manifest import MANIFEST_NAME, RECIPE_FOLDER, Manifest, content_digest, host_platform
from naiad.environments.bytecode import compile_environment
from naiad.environments.elf import newest_glibc
from naiad.environments.installed_packages import list_packages, site_folders
from naiad.environments.progress import LogReporter, ProgressMeter, ProgressReporter
from naiad.environments.store.placement import spread
from naiad.sources.interpreters.prefix import find_interpreter_in
from naiad.sources.interpreters.probe import probe_interpreter
from naiad.sources.interpreters.versions import version_text
from naiad_building.base_interpreter import BaseInterpreter, copy_base, inspect_base
from naiad_building.collecting import CHANNEL, collect_members, record_interpreter, write_history
from naiad_building.relocation import relocate_binaries, relocate_scripts

# Parts of the venv itself. `lib` is copied package by package.
_NOT_COPIED = frozenset({"bin", "lib", "lib64", "include", "pyvenv.cfg", "conda-meta", "info", ".gitignore", ".lock"})
# Activation scripts, and links to the interpreter.
_NOT_SCRIPTS = ("activate", "deactivate", "python", "pydoc", "idle", "2to3")
# virtualenv's patch of setuptools, which belongs to the original venv.
_NOT_PACKAGES = frozenset({"_virtualenv.py", "_virtualenv.pth", "__pycache__"})

# Longest first: `x.tar.gz` ends with both.
_SUFFIXES = {".tar.gz": "tar.gz", ".tgz": "tar.gz", ".tar.zst": "tar.zst", ".tzst": "tar.zst", ".tar": "tar"}


@dataclass(frozen=True)
class PackedEnvironment:
    """A written archive; its digest, the SHA-256 of the file, is its name in a store."""

    archive: Path
    format: str
    size: int
    digest: str
    manifest: Manifest
    warnings: tuple[str, ...]


def pack(
    prefix: Path, output: Path, *, force: bool = False, reporter: ProgressReporter | None = None
) -> PackedEnvironment:
    """Pack an environment: of conda, of `naiad env build`, a venv, or a Python with packages.

    The archive, a `.tar.zst`, `.tar.gz` or `.tar`, is renamed into place when it is complete.
    """
    prefix = real_path(prefix)
    chosen = _format(output)
    if not prefix.is_dir():
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: the folder does not exist")
    if output.is_dir() or (output.exists() and not force):
        raise ExecutionEnvironmentError(f"cannot write {output}: it exists already; remove it or name another file")
    try:
        with _staged(output) as unfinished, _self_contained(prefix, unfinished.parent) as packed:
            collected, warnings = collect_members(packed, packed / "bin" / "python")
            # An environment that was unpacked from an archive has the manifest of that.
            members = [member for member in collected if member.name != MANIFEST_NAME]
            described = create_manifest(packed, members, made_from=_kind(prefix))
            manifest = replace(described, content=_content_digest(members))
            first = OutputMember(name=MANIFEST_NAME, data=manifest.as_bytes())
            told = reporter or LogReporter()
            with ProgressMeter(told, step="packing", label="", path=output, total=manifest.size) as meter:
                digest = write_archive(unfinished, chosen, [first, *members], meter.advance)
    except conda_pack.CondaPackException as error:
        advice = next((text for words, text in _ADVICE.items() if words in str(error)), "")
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: {str(error).strip()}{advice}") from error
    except (KeyError, TypeError, ValueError) as error:
        # conda-pack does not validate the records in conda-meta, which other programs write.
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: conda-pack failed on it: {error!r}") from error
    except OSError as error:
        raise ExecutionEnvironmentError(f"cannot pack {prefix} into {output}: {error}") from error
    return PackedEnvironment(output, chosen, output.stat().st_size, digest, manifest, warnings)


def default_output(prefix: Path) -> Path:
    """The default archive: in the current folder, with the environment's name."""
    return Path(f"{prefix.resolve().name}.{FORMATS[0]}")


def _format(output: Path) -> str:
    found = next((name for suffix, name in _SUFFIXES.items() if output.name.endswith(suffix)), None)
    if found is None:
        raise ExecutionEnvironmentError(
            f"cannot infer the format of {output}: its name must end with one of {', '.join(_SUFFIXES)}"
        )
    return found


def _kind(prefix: Path) -> str:
    if (prefix / "pyvenv.cfg").is_file():
        return "venv"
    if not (prefix / "conda-meta" / "history").is_file():
        return "directory"
    return "conda" if _built_at(prefix) is None else "recipe"


@contextmanager
def _self_contained(prefix: Path, scratch: Path) -> Iterator[Path]:
    """The environment itself if conda-pack accepts it, else a self-contained copy."""
    kind, built_at = _kind(prefix), _built_at(prefix)
    if kind in {"conda", "recipe"}:
        if built_at not in (None, prefix):
            raise ExecutionEnvironmentError(
                f"cannot pack {prefix}: it was built in {built_at} and moved, so its scripts point there; move it "
                "back or build it again"
            )
        yield prefix
        return
    if kind == "directory" and (prefix / "conda-meta").exists():
        raise ExecutionEnvironmentError(
            f"cannot pack {prefix}: it has no conda-meta/history, so its build was interrupted; "
            "build it again with `naiad env build`"
        )
    if kind == "directory" and find_interpreter_in(prefix) is None:
        raise ExecutionEnvironmentError(
            f"cannot pack {prefix}: it is neither a conda environment nor a venv nor built by "
            "`naiad env build`, and has no bin/python; build one with `naiad env build`"
        )
    copy = scratch.resolve() / "whole"
    copy.mkdir()
    _make_self_contained(prefix, copy)
    yield copy


def _built_at(prefix: Path) -> Path | None:
    """The folder where `naiad env build` built an environment; None if it was created otherwise."""
    for record in (prefix / "conda-meta").glob("python-*.json"):
        try:
            known = read_json(record.read_text(encoding="utf-8"))
            if known["channel"] == CHANNEL and known["link"]["source"]:
                return Path(known["link"]["source"])
        except (KeyError, TypeError, ValueError):
            continue  # conda-pack will report the invalid record
    return None


@contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """A temporary file beside *output*, renamed to it on success and removed on failure."""
    output.parent.mkdir(parents=True, exist_ok=True)
    # A self-contained copy is created in the same folder: the disk of the archive has the space for both.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
        spread(Path(folder))
        unfinished = Path(folder, output.name)
        yield unfinished
        unfinished.replace(output)


_ADVICE = {
    "editable packages": "\nInstall them without --editable: their code is outside the environment",
    "deleted/overwritten": "\nOr build the environment again with `naiad env build`",
}
"""What fits naiad, after messages of conda-pack that have these words."""


def create_manifest(prefix: Path, members: Sequence[OutputMember], *, made_from: str) -> Manifest:
    """The manifest for these members of *prefix*."""
    interpreter = None
    with suppress(ExecutionEnvironmentError):  # conda allows environments without one
        interpreter = probe_interpreter(prefix / "bin" / "python")
    # The folder with the copy of the recipe.
    recipe = next(iter(sorted((prefix / RECIPE_FOLDER).glob("*"))), None)
    files = sorted(path for path in recipe.rglob("*") if path.is_file()) if recipe is not None else ()
    return Manifest(
        name="" if recipe is None else recipe.name,
        made_from=made_from,
        platform=host_platform(),
        glibc=newest_glibc(member.source for member in members if member.source is not None),
        python=version_text(interpreter.version) if interpreter else "",
        abi=interpreter.abi if interpreter else "",
        packages=list_packages(prefix),
        files=len(members),
        size=sum(member.size for member in members),
        recipe={path.name: file_digest(path) for path in files},
    )


def _content_digest(members: Sequence[OutputMember]) -> str:
    files = [member for member in members if member.link is None]
    with ThreadPoolExecutor(usable_processors(), "naiad-digest") as pool:
        digests = list(pool.map(_member_digest, files))
    return content_digest({member.name: digest for member, digest in zip(files, digests, strict=True)})


def _member_digest(member: OutputMember) -> str:
    if member.data is not None:
        return hashlib.sha256(member.data).hexdigest()
    return file_digest(cast("Path", member.source))


def _make_self_contained(environment: Path, prefix: Path) -> None:
    """Create a self-contained copy of an environment in the empty folder *prefix*."""
    python = find_interpreter_in(environment)
    if python is None or not python.exists():
        raise ExecutionEnvironmentError(
            f"cannot pack {environment}: it has no interpreter that runs (looked for {environment}/bin/python); "
            "an environment is a conda environment, a venv, or a Python with its packages"
        )
    base = inspect_base(python)
    if base.is_system and base.prefix == environment:
        raise ExecutionEnvironmentError(
            f"cannot pack {environment}: it is the system's Python; create a venv and pack that"
        )
    copy_base(base, prefix)
    packages = packages_folder(base, prefix / base.stdlib.relative_to(base.prefix))
    compile_environment(prefix / "bin" / "python", prefix, base.cache_tag)
    record_interpreter(prefix, base.version)
    inherited = site_folders(base.prefix) if _uses_system_packages(environment) else ()
    for folder in (*inherited, *site_folders(environment)):  # lowest priority first
        _reject_external_code(environment, folder)
        _copy_packages(folder, packages)
    _copy_rest(environment, prefix)
    relocate_scripts(prefix, environment, prefix)
    relocate_binaries(prefix, (environment, *(() if base.is_system else (base.prefix,)), prefix))
    compile_environment(prefix / "bin" / "python", prefix, base.cache_tag)
    write_history(prefix, base.version)


def packages_folder(base: BaseInterpreter, stdlib: Path) -> Path:
    """The folder of packages for an interpreter whose standard library is copied to *stdlib*."""
    if base.is_system and not base.stdlib.joinpath("site-packages").is_dir():
        return stdlib.parent / "python3" / "dist-packages"  # Debian's layout
    return stdlib / "site-packages"


def _uses_system_packages(venv: Path) -> bool:
    file = venv / "pyvenv.cfg"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else ()
    settings = {key.strip(): value.strip().lower() for key, _, value in (line.partition("=") for line in lines)}
    return settings.get("include-system-site-packages") == "true"


def _reject_external_code(environment: Path, folder: Path) -> None:
    """Reject packages installed with --editable and .pth files with outside folders: their code cannot be packed."""
    for file in sorted((*folder.glob("*.pth"), *folder.glob("*.egg-link"), *folder.glob("__editable__*.py"))):
        places = [""] if file.suffix == ".py" else file.read_text(encoding="utf-8", errors="replace").splitlines()
        for place in map(str.strip, places):
            is_inside = not place.startswith("/") or Path(place).resolve().is_relative_to(environment.resolve())
            if file.suffix == ".py" or not is_inside:
                raise ExecutionEnvironmentError(
                    f"cannot pack {environment}: {file.name} refers to code{place and f' in {place},'} outside of it; "
                    "install that package without --editable"
                )


def _copy_packages(source: Path, target: Path) -> None:
    def left_out(folder: str, names: list[str]) -> set[str]:
        top = Path(folder) == source
        return {name for name in names if name == "__pycache__" or (top and name in _NOT_PACKAGES)}

    shutil.copytree(source, target, symlinks=True, ignore=left_out, dirs_exist_ok=True)


def _copy_rest(environment: Path, prefix: Path) -> None:
    """Copy scripts, and data folders that packages install beside `lib`."""
    for path in sorted((environment / "bin").iterdir()) if (environment / "bin").is_dir() else ():
        if not path.name.lower().startswith(_NOT_SCRIPTS) and path.is_file():
            shutil.copy2(path, prefix / "bin" / path.name)
    for path in sorted(environment.iterdir()):
        if path.name not in _NOT_COPIED and path.is_dir() and not path.is_symlink():
            shutil.copytree(path, prefix / path.name, symlinks=True, dirs_exist_ok=True)
