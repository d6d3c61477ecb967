"""An archive of a bundle on the way to its server: unpacked once, checked file by file, and kept by its digest."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from naiad.bundle.make import Bundle
from naiad.bundle.manifest import MANIFEST_NAME, damage, read_manifest
from naiad.environments.archives.archive_writer import write_archive
from naiad.environments.archives.extraction import unpack
from naiad.environments.archives.manifest import require_usable_here
from naiad.environments.progress import Meter, Reporter
from naiad.environments.store.archive_digest import digest_of
from naiad.environments.store.placement import spread
from naiad.errors import BundleError, NaiadError

__all__ = ["SUFFIXES", "unpacked", "verify", "write_bundle"]

SUFFIXES = (".tar.zst", ".tar.gz")
"""What names of bundles end in, the default first."""
_FOLDER = "bundles"
_SHOWN = 5


def write_bundle(bundle: Bundle, output: Path, reporter: Reporter) -> None:
    """Write an archive; it appears whole or not at all.

    Raises:
        BundleError: If it cannot be written.
    """
    suffix = next((suffix for suffix in SUFFIXES if output.name.endswith(suffix)), "")
    if not suffix:
        raise BundleError(f"cannot tell the format of {output} by its name; end it in {' or '.join(SUFFIXES)}")
    # One folder at the top, so that unpacking fills nobody's own.
    members = [replace(member, name=f"{bundle.manifest.name}/{member.name}") for member in bundle.members]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
            unfinished = Path(folder, output.name)
            total = sum(member.size for member in members)
            with Meter(reporter, step="packing", label="", path=output, total=total) as meter:
                write_archive(unfinished, suffix[1:], members, meter.advance)
            unfinished.replace(output)
    except OSError as error:
        raise BundleError(f"cannot write {output}: {error.strerror or error}") from error


def unpacked(archive: Path, store: Path, reporter: Reporter) -> Path:
    """The folder of a bundle: that of the archive in the store, unpacked if it was not yet.

    Args:
        archive: The archive, or a folder it was unpacked into.
        store: The store of environments; bundles lie beside them.
        reporter: Whoever shows progress.

    Raises:
        BundleError: If it is no bundle, not for this machine, or not whole.
        ExecutionEnvironmentError: If the archive cannot be read.
    """
    if archive.is_dir():
        return archive.absolute()
    if not archive.exists():
        raise BundleError(f"there is no bundle {archive}")
    folder = store / _FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / digest_of(archive.absolute(), store / "index", reporter=reporter)
        with FileLock(target.with_suffix(".lock")):
            if not target.is_dir():
                _unpack(archive, target, reporter)
    except OSError as error:
        raise BundleError(
            f"cannot unpack {archive} into {folder}: {error.strerror or error}; name a folder that can be written with "
            "--env-store, or unpack it yourself and start ./run"
        ) from error
    return _top(archive, target)


def verify(place: Path, store: Path, reporter: Reporter) -> list[str]:
    """What of a bundle is not as it was made, a line each; none for a good one.

    Raises:
        NaiadError: If it is no bundle, or cannot be read.
    """
    folder = unpacked(place, store, reporter)
    return damage(folder, read_manifest(folder))


def _unpack(archive: Path, target: Path, reporter: Reporter) -> None:
    spread(target.parent)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=target.parent))
    try:
        staging.chmod(0o755)
        unpack(archive, staging, reporter=reporter)
        top = _top(archive, staging)
        manifest = read_manifest(top)
        require_usable_here(manifest, where=f"the bundle {archive}")
        wrong = damage(top, manifest)
        if wrong:
            raise BundleError(f"the bundle {archive} is damaged: {'; '.join(wrong[:_SHOWN])}; bring it again")
        staging.rename(target)
    except (NaiadError, OSError):
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _top(archive: Path, folder: Path) -> Path:
    found = sorted(folder.glob(f"*/{MANIFEST_NAME}"))
    if len(found) != 1:
        raise BundleError(f"{archive} is no bundle of naiad: it holds no {MANIFEST_NAME}; make one with `naiad bundle`")
    return found[0].parent
