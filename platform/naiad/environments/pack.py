"""Packing an environment into one archive, with the real conda-pack."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import conda_pack

from naiad.environments.conda_meta import CHANNEL
from naiad.errors import ExecutionEnvironmentError

__all__ = ["PackedEnvironment", "pack"]

# Longest first: `x.tar.gz` ends with both.
_FORMATS = {
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".tar.bz2": "tar.bz2",
    ".tbz2": "tar.bz2",
    ".tar.xz": "tar.xz",
    ".txz": "tar.xz",
    ".tar.zst": "tar.zst",
    ".tar": "tar",
    ".zip": "zip",
}


@dataclass(frozen=True)
class PackedEnvironment:
    """An archive that was written.

    Attributes:
        archive: The file.
        format: As conda-pack names it: `tar.gz`, `zip`, ...
        size: Bytes.
        warnings: What conda-pack warned of, in its words.
    """

    archive: Path
    format: str
    size: int
    warnings: tuple[str, ...]


def pack(prefix: Path, output: Path, *, format: str | None = None, force: bool = False) -> PackedEnvironment:  # noqa: A002 - conda-pack's name for it
    """Pack a conda environment, or one that `naiad env build` made.

    Args:
        prefix: The environment.
        output: The archive to write; it appears whole or not at all.
        format: `tar.gz`, `tar.bz2`, `tar.xz`, `tar.zst`, `tar` or `zip`; by the archive's name unless given.
        force: Whether an existing archive is replaced.

    Raises:
        ExecutionEnvironmentError: It cannot be packed; says why and what to do.
    """
    prefix = prefix.resolve()
    chosen = _format(output) if format in (None, "infer") else str(format)
    _require_packable(prefix)
    if output.is_dir() or (output.exists() and not force):
        raise ExecutionEnvironmentError(f"cannot write {output}: it exists already; remove it or name another file")
    try:
        with _staged(output) as unfinished, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            conda_pack.pack(prefix=str(prefix), output=str(unfinished), format=chosen, force=True, n_threads=-1)
    except conda_pack.CondaPackException as error:
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: {_advice(str(error))}") from error
    except (KeyError, TypeError, ValueError) as error:
        # Records in conda-meta are other programs' work, and conda-pack does not check them.
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: conda-pack failed on it: {error!r}") from error
    except OSError as error:
        raise ExecutionEnvironmentError(f"cannot pack {prefix} into {output}: {error}") from error
    said = tuple(str(one.message) for one in caught if issubclass(one.category, UserWarning))
    return PackedEnvironment(output, chosen, output.stat().st_size, said)


def _format(output: Path) -> str:
    for suffix, name in _FORMATS.items():
        if output.name.endswith(suffix):
            return name
    raise ExecutionEnvironmentError(
        f"cannot tell the format of {output} by its name; end it in one of {', '.join(_FORMATS)} or say --format"
    )


def _require_packable(prefix: Path) -> None:
    if not prefix.is_dir():
        raise ExecutionEnvironmentError(f"cannot pack {prefix}: there is no such folder")
    if (prefix / "pyvenv.cfg").is_file():
        raise ExecutionEnvironmentError(
            f"cannot pack {prefix}: it is a virtual environment{_home(prefix)}, which borrows interpreter and standard "
            "library from there and cannot run where those are not; build a whole environment from its requirements "
            "with `naiad env build` (`pip freeze` in the virtual environment lists them) and pack that"
        )
    if not (prefix / "conda-meta" / "history").is_file():
        raise ExecutionEnvironmentError(
            f"cannot pack {prefix}: it is neither a conda environment nor made by `naiad env build` "
            "(it has no conda-meta/history); build one with `naiad env build`"
        )
    built_at = _built_at(prefix)
    if built_at not in (None, prefix):
        raise ExecutionEnvironmentError(
            f"cannot pack {prefix}: it was built in {built_at} and moved, so its scripts point there; move it back or "
            "build it anew"
        )


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


def _home(venv: Path) -> str:
    for line in (venv / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            return f" of the Python in {value.strip()}"
    return ""


@contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """A file beside `output` that takes its place when all went well and is gone when not."""
    output.parent.mkdir(parents=True, exist_ok=True)
    # conda-pack makes a temporary file of its own beside the one it is given: a folder holds both together.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
        unfinished = Path(folder, output.name)
        yield unfinished
        # conda-pack leaves 0600, which another user's server cannot read.
        unfinished.chmod(0o666 & ~_umask())
        unfinished.replace(output)


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def _advice(said: str) -> str:
    """conda-pack's words, with what to do here in the place of its options."""
    if "editable packages" in said:
        return f"{said.strip()}\nInstall them without --editable: their code lies outside the environment"
    if "deleted/overwritten" in said:
        return f"{said.strip()}\nOr build the environment anew with `naiad env build`"
    return said.strip()
