"""Packing an environment into a reproducible archive that runs on any machine of the same platform.

The members are those that conda-pack would write (`collecting`), so tools for its archives accept ours. Environments of
other kinds are first copied into a self-contained one (`self_contained`). The first member is the manifest.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
from naiad.environments.elf import newest_glibc
from naiad.environments.installed_packages import list_packages
from naiad.environments.progress import LogReporter, ProgressMeter, ProgressReporter
from naiad.environments.store.placement import spread
from naiad.sources.interpreters.prefix import find_interpreter_in
from naiad.sources.interpreters.probe import Interpreter, probe_interpreter
from naiad.sources.interpreters.versions import version_text
from naiad_building.collecting import collect_members
from naiad_building.conda_meta import CHANNEL
from naiad_building.self_contained import make_self_contained

__all__ = ["PackedEnvironment", "create_manifest", "default_output", "pack"]

# Longest first: `x.tar.gz` ends with both.
_SUFFIXES = {
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".tar.zst": "tar.zst",
    ".tzst": "tar.zst",
    ".tar": "tar",
}


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
    prefix: Path,
    output: Path,
    *,
    force: bool = False,
    reporter: ProgressReporter | None = None,
) -> PackedEnvironment:
    """Pack an environment: of conda, of `naiad env build`, a venv, or a Python with packages.

    Args:
        output: The archive to write: `.tar.zst`, `.tar.gz` or `.tar`. It is renamed into place when complete.
        reporter: Receives progress events; None for the log.
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
            with ProgressMeter(
                reporter or LogReporter(), step="packing", label="", path=output, total=manifest.size
            ) as meter:
                digest = write_archive(unfinished, chosen, [first, *members], meter.advance)
    except conda_pack.CondaPackException as error:
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: {_advice(str(error))}") from error
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
    for suffix, name in _SUFFIXES.items():
        if output.name.endswith(suffix):
            return name
    raise ExecutionEnvironmentError(
        f"cannot infer the format of {output}: its name must end with one of {', '.join(_SUFFIXES)}"
    )


def _kind(prefix: Path) -> str:
    if (prefix / "pyvenv.cfg").is_file():
        return "venv"
    if not (prefix / "conda-meta" / "history").is_file():
        return "directory"
    return "conda" if _built_at(prefix) is None else "recipe"


@contextmanager
def _self_contained(prefix: Path, scratch: Path) -> Iterator[Path]:
    """The environment itself if conda-pack accepts it, else a self-contained copy."""
    match _kind(prefix):
        case "venv":
            pass
        case "directory":
            if (prefix / "conda-meta").exists():
                raise ExecutionEnvironmentError(
                    f"cannot pack {prefix}: it has no conda-meta/history, so its build was interrupted; "
                    "build it again with `naiad env build`"
                )
            if find_interpreter_in(prefix) is None:
                raise ExecutionEnvironmentError(
                    f"cannot pack {prefix}: it is neither a conda environment nor a venv nor built by "
                    "`naiad env build`, and has no bin/python; build one with `naiad env build`"
                )
        case _:
            built_at = _built_at(prefix)
            if built_at not in (None, prefix):
                raise ExecutionEnvironmentError(
                    f"cannot pack {prefix}: it was built in {built_at} and moved, so its scripts point there; move it "
                    "back or build it again"
                )
            yield prefix
            return
    copy = scratch.resolve() / "whole"
    copy.mkdir()
    make_self_contained(prefix, copy)
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


def _advice(message: str) -> str:
    """conda-pack's message, with advice that fits naiad."""
    if "editable packages" in message:
        return f"{message.strip()}\nInstall them without --editable: their code is outside the environment"
    if "deleted/overwritten" in message:
        return f"{message.strip()}\nOr build the environment again with `naiad env build`"
    return message.strip()


def create_manifest(prefix: Path, members: Sequence[OutputMember], *, made_from: str) -> Manifest:
    """The manifest for these members of *prefix*."""
    interpreter = _probe(prefix)
    recipe = _recipe(prefix)
    return Manifest(
        name="" if recipe is None else recipe.name,
        made_from=made_from,
        platform=host_platform(),
        glibc=newest_glibc(_sources(members)),
        python=version_text(interpreter.version) if interpreter else "",
        abi=interpreter.abi if interpreter else "",
        packages=list_packages(prefix),
        files=len(members),
        size=sum(member.size for member in members),
        recipe=_digests(recipe),
    )


def _content_digest(members: Sequence[OutputMember]) -> str:
    files = [member for member in members if member.link is None]
    with ThreadPoolExecutor(usable_processors(), "naiad-digest") as pool:
        digests = list(pool.map(_member_digest, files))
    return content_digest({member.name: digest for member, digest in zip(files, digests, strict=True)})


def _member_digest(member: OutputMember) -> str:
    return (
        hashlib.sha256(member.data).hexdigest() if member.data is not None else file_digest(cast("Path", member.source))
    )


def _probe(prefix: Path) -> Interpreter | None:
    """Facts about the interpreter; None without one, which conda allows."""
    try:
        return probe_interpreter(prefix / "bin" / "python")
    except ExecutionEnvironmentError:
        return None


def _sources(members: Sequence[OutputMember]) -> Iterator[Path]:
    return (member.source for member in members if member.source is not None)


def _recipe(prefix: Path) -> Path | None:
    """The folder with the copy of the recipe, None without one."""
    return next(iter(sorted((prefix / RECIPE_FOLDER).glob("*"))), None)


def _digests(recipe: Path | None) -> dict[str, str]:
    files = sorted(path for path in recipe.rglob("*") if path.is_file()) if recipe is not None else ()
    return {path.name: file_digest(path) for path in files}
