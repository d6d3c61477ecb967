"""Packing an environment into one archive that runs on any machine of its kind: the same input, the same bytes.

What conda-pack would put into the archive of a conda environment is what goes in (`collecting`), so that every tool for
its archives takes ours. Other environments are made whole first (`whole`).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import conda_pack

from naiad.environments.archives.archive_writer import FORMATS, OutputMember, write_archive
from naiad.environments.archives.manifest import MANIFEST_NAME, Manifest, host_platform
from naiad.environments.building.collecting import collect
from naiad.environments.building.conda_meta import CHANNEL
from naiad.environments.building.elf import newest_glibc
from naiad.environments.building.recipe import RECIPE_FOLDER
from naiad.environments.building.self_contained import make_self_contained
from naiad.environments.installed_packages import list_packages
from naiad.environments.progress import LogReporter, ProgressMeter, ProgressReporter
from naiad.environments.store.placement import spread
from naiad.errors import ExecutionEnvironmentError
from naiad.interpreters.prefix import find_interpreter_in
from naiad.interpreters.probe import Interpreter, probe_interpreter
from naiad.interpreters.versions import version_text

__all__ = ["PackedEnvironment", "default_output", "describe", "pack"]

# Longest first: `x.tar.gz` ends with both.
_SUFFIXES = {
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".tar.bz2": "tar.bz2",
    ".tbz2": "tar.bz2",
    ".tar.xz": "tar.xz",
    ".txz": "tar.xz",
    ".tar.zst": "tar.zst",
    ".tzst": "tar.zst",
    ".tar": "tar",
    ".zip": "zip",
}


@dataclass(frozen=True)
class PackedEnvironment:
    """An archive that was written.

    Attributes:
        archive: The file.
        format: `tar.zst`, `tar.gz`, ...
        size: Bytes.
        digest: SHA-256 of the file, its name in a store.
        manifest: What it says of itself.
        warnings: What conda-pack warned of, in its words.
    """

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
    format: str | None = None,  # noqa: A002 - the option's name
    force: bool = False,
    reporter: ProgressReporter | None = None,
) -> PackedEnvironment:
    """Pack an environment: conda's, a venv, one that `naiad env build` made, or a Python with its packages.

    Args:
        prefix: The environment.
        output: The archive to write; it appears whole or not at all.
        format: `tar.zst`, `tar.gz`, `tar.bz2`, `tar.xz`, `tar` or `zip`; by the archive's name unless given.
        force: Whether an existing archive is replaced.
        reporter: Whoever shows progress; the log if None.

    Raises:
        ExecutionEnvironmentError: It cannot be packed; says why and what to do.
    """
    prefix = prefix.resolve()
    chosen = _format(output) if format in (None, "infer") else str(format)
    if not prefix.is_dir():
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: there is no such folder")
    if output.is_dir() or (output.exists() and not force):
        raise ExecutionEnvironmentError(f"cannot write {output}: it exists already; remove it or name another file")
    try:
        with _staged(output) as unfinished, _made_whole(prefix, unfinished.parent) as whole:
            members, warnings = collect(whole, whole / "bin" / "python")
            manifest = describe(whole, members, made_from=_kind(prefix))
            first = OutputMember(name=MANIFEST_NAME, data=manifest.as_bytes())
            with ProgressMeter(
                reporter or LogReporter(), step="packing", label="", path=output, total=manifest.size
            ) as meter:
                write_archive(unfinished, chosen, [first, *members], meter.advance)
    except conda_pack.CondaPackException as error:
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: {_advice(str(error))}") from error
    except (KeyError, TypeError, ValueError) as error:
        # Records in conda-meta are other programs' work, and conda-pack does not check them.
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: conda-pack failed on it: {error!r}") from error
    except OSError as error:
        raise ExecutionEnvironmentError(f"cannot pack {prefix} into {output}: {error}") from error
    return PackedEnvironment(output, chosen, output.stat().st_size, _digest(output), manifest, warnings)


def default_output(prefix: Path, format: str | None = None) -> Path:  # noqa: A002 - the option's name
    """The archive that is written where none is named: in the current folder, with the environment's name."""
    return Path(f"{prefix.resolve().name}.{format or FORMATS[0]}")


def _format(output: Path) -> str:
    for suffix, name in _SUFFIXES.items():
        if output.name.endswith(suffix):
            return name
    raise ExecutionEnvironmentError(
        f"cannot tell the format of {output} by its name; end it in one of {', '.join(_SUFFIXES)} or say --format"
    )


def _kind(prefix: Path) -> str:
    if (prefix / "pyvenv.cfg").is_file():
        return "venv"
    if not (prefix / "conda-meta" / "history").is_file():
        return "directory"
    return "conda" if _built_at(prefix) is None else "recipe"


@contextmanager
def _made_whole(prefix: Path, scratch: Path) -> Iterator[Path]:
    """The environment itself if it is whole and conda-pack takes it, else its whole counterpart."""
    match _kind(prefix):
        case "venv":
            pass
        case "directory":
            if (prefix / "conda-meta").exists():
                raise ExecutionEnvironmentError(
                    f"cannot pack {prefix}: it has no conda-meta/history, as where building it was interrupted; "
                    "build it anew with `naiad env build`"
                )
            if find_interpreter_in(prefix) is None:
                raise ExecutionEnvironmentError(
                    f"cannot pack {prefix}: it is neither a conda environment nor a venv nor made by "
                    "`naiad env build`, and has no bin/python; build one with `naiad env build`"
                )
        case _:
            built_at = _built_at(prefix)
            if built_at not in (None, prefix):
                raise ExecutionEnvironmentError(
                    f"cannot pack {prefix}: it was built in {built_at} and moved, so its scripts point there; move it "
                    "back or build it anew"
                )
            yield prefix
            return
    whole = scratch.resolve() / "whole"
    whole.mkdir()
    make_self_contained(prefix, whole)
    yield whole


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _built_at(prefix: Path) -> Path | None:
    """Where `naiad env build` made an environment; None where something else made or unpacked it."""
    for record in (prefix / "conda-meta").glob("python-*.json"):
        try:
            known = json.loads(record.read_text(encoding="utf-8"))
            if known["channel"] == CHANNEL and known["link"]["source"]:
                return Path(known["link"]["source"])
        except (KeyError, TypeError, ValueError):
            continue  # conda-pack has its own words for what is wrong with a record
    return None


@contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """A file beside `output` that takes its place when all went well and is gone when not."""
    output.parent.mkdir(parents=True, exist_ok=True)
    # What is made whole for packing lies beside the archive too: both need the room.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
        spread(Path(folder))
        unfinished = Path(folder, output.name)
        yield unfinished
        unfinished.replace(output)


def _advice(said: str) -> str:
    """conda-pack's words, with what to do here in the place of its options."""
    if "editable packages" in said:
        return f"{said.strip()}\nInstall them without --editable: their code lies outside the environment"
    if "deleted/overwritten" in said:
        return f"{said.strip()}\nOr build the environment anew with `naiad env build`"
    return said.strip()


def describe(prefix: Path, members: Sequence[OutputMember], *, made_from: str) -> Manifest:
    """The manifest for these members, which are what is packed of `prefix`.

    Raises:
        OSError: A file cannot be read.
    """
    asked = _ask(prefix)
    recipe = _recipe(prefix)
    return Manifest(
        name="" if recipe is None else recipe.name,
        made_from=made_from,
        platform=host_platform(),
        glibc=newest_glibc(_sources(members)),
        python=version_text(asked.version) if asked else "",
        abi=asked.abi if asked else "",
        packages=list_packages(prefix),
        files=len(members),
        size=sum(member.size for member in members),
        recipe=_digests(recipe),
    )


def _ask(prefix: Path) -> Interpreter | None:
    """What its interpreter is; None for an environment without one, which conda allows."""
    try:
        return probe_interpreter(prefix / "bin" / "python")
    except ExecutionEnvironmentError:
        return None


def _sources(members: Sequence[OutputMember]) -> Iterator[Path]:
    return (member.source for member in members if member.source is not None)


def _recipe(prefix: Path) -> Path | None:
    """The copy of the recipe, in a folder of the recipe's name."""
    return next(iter(sorted((prefix / RECIPE_FOLDER).glob("*"))), None)


def _digests(recipe: Path | None) -> dict[str, str]:
    files = sorted(path for path in recipe.rglob("*") if path.is_file()) if recipe is not None else ()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
