"""Archives of bundles: written whole or not at all, unpacked once into the store, checked file by file.

An unpacked bundle is a folder of the store named by the archive's digest. It is unpacked beside that folder and renamed
after the check, so a folder with that name is always complete; a lock file keeps two servers from unpacking at once.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from naiad.core.errors import BundleError, NaiadError
from naiad.environments.archives.archive_writer import write_archive
from naiad.environments.archives.extraction import unpack
from naiad.environments.archives.manifest import require_compatible_host
from naiad.environments.progress import ProgressMeter, ProgressReporter
from naiad.environments.store.archive_digest import digest_of
from naiad.environments.store.placement import spread
from naiad_operations.bundle.make import Bundle
from naiad_operations.bundle.manifest import MANIFEST_NAME, find_damage, read_manifest

__all__ = ["SUFFIXES", "unpack_bundle", "verify_bundle", "write_bundle"]

SUFFIXES = (".tar.zst", ".tar.gz")
"""Suffixes of archives, the default first."""
_FOLDER = "bundles"
_SHOWN_DIFFERENCES = 5


def write_bundle(bundle: Bundle, output: Path, reporter: ProgressReporter) -> None:
    """Write a bundle as an archive; the file appears only when it is complete.

    Raises:
        BundleError: If the archive cannot be written, or its name has none of the suffixes.
    """
    suffix = next((suffix for suffix in SUFFIXES if output.name.endswith(suffix)), "")
    if not suffix:
        raise BundleError(f"cannot write {output}: its name shows no format; end it with {' or '.join(SUFFIXES)}")
    # One top folder, so that `tar -xf` does not scatter files over the current folder.
    members = [replace(member, name=f"{bundle.manifest.name}/{member.name}") for member in bundle.members]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
            unfinished = Path(folder, output.name)
            total = sum(member.size for member in members)
            with ProgressMeter(reporter, step="packing", label="", path=output, total=total) as meter:
                write_archive(unfinished, suffix[1:], members, meter.advance)
            unfinished.replace(output)
    except OSError as error:
        raise BundleError(f"cannot write {output}: {error.strerror or error}") from error


def unpack_bundle(archive: Path, store: Path, reporter: ProgressReporter) -> Path:
    """The folder of a bundle, unpacked into the store unless it is there already.

    Args:
        archive: The archive, or the folder of an unpacked bundle.
        store: The store of environments; it has a folder for bundles.
        reporter: Receives the progress.

    Raises:
        BundleError: If the file is not a bundle, is for another platform, or is damaged.
        ExecutionEnvironmentError: If the archive cannot be read.
    """
    if archive.is_dir():
        return archive.absolute()
    if not archive.exists():
        raise BundleError(f"cannot unpack {archive}: the file does not exist")
    folder = store / _FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / digest_of(archive.absolute(), store / "index", reporter=reporter)
        with FileLock(target.with_suffix(".lock")):
            if not target.is_dir():
                _unpack(archive, target, reporter)
    except OSError as error:
        raise BundleError(
            f"cannot unpack {archive} into {folder}: {error.strerror or error}; name a writable folder with "
            "--env-store, or unpack the archive with tar and start its ./run"
        ) from error
    return _top(archive, target)


def verify_bundle(place: Path, store: Path, reporter: ProgressReporter) -> list[str]:
    """The differences between a bundle's files and its manifest, one line each; empty for an intact bundle.

    Raises:
        NaiadError: If it is not a bundle, or cannot be read.
    """
    folder = unpack_bundle(place, store, reporter)
    return find_damage(folder, read_manifest(folder))


def _unpack(archive: Path, target: Path, reporter: ProgressReporter) -> None:
    spread(target.parent)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=target.parent))
    try:
        staging.chmod(0o755)  # mkdtemp creates it with 0700, and servers of other users share the store
        unpack(archive, staging, reporter=reporter)
        top = _top(archive, staging)
        manifest = read_manifest(top)
        require_compatible_host(manifest, where=f"the bundle {archive}")
        differences = find_damage(top, manifest)
        if differences:
            shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
            raise BundleError(f"cannot use the bundle {archive}: it is damaged ({shown}); copy it again")
        staging.rename(target)
    except (NaiadError, OSError):
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _top(archive: Path, folder: Path) -> Path:
    manifests = sorted(folder.glob(f"*/{MANIFEST_NAME}"))
    if len(manifests) != 1:
        raise BundleError(f"cannot use {archive} as a bundle: it has no {MANIFEST_NAME}; make one with `naiad bundle`")
    return manifests[0].parent
