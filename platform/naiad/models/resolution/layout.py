"""Installs the default guest in a separate directory.

The guest's package is installed in the host's site-packages. A guest started from there could import every package of
the host. So it is copied into a directory that contains nothing else and is named by the hash of its content. Such a
directory is written once, never changed, and shared by all servers of the user.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import naiad_stub
from packaging.specifiers import SpecifierSet

from naiad.config.server.store_location import PRIVATE_MODE, guest_directory, private_store, require_private
from naiad.core.errors import ResolutionError
from naiad.models.resolution.decision import STUB_FILENAME, UTILS_FILENAME, GuestLayout
from naiad.models.resolution.files import Files
from naiad.models.resolution.manifest import STUB_MANIFEST, read_stub_manifest

_STAGING_PREFIX = ".guest-staging-"
_STALE_SECONDS = 3600
_MAY_ONLY_READ = (errno.EACCES, errno.EPERM, errno.EROFS)


def lay_out_guest(cache_dir: Path) -> GuestLayout:
    """Install the default guest in *cache_dir* if it is missing; return its location.

    It is among temporary files if *cache_dir* may only be read, as a store that another user has filled.

    Raises:
        ResolutionError: If the installed package is incomplete, or no directory can be written.
        OptionError: If the folder among temporary files is not this user's alone.
    """
    contents = _read_guest(Path(naiad_stub.__file__).resolve().parents[1])
    name = f"guest-{_digest(contents)[:16]}"
    target = cache_dir.absolute() / name
    try:
        try:
            _install(target, contents)
        except OSError as error:
            if error.errno not in _MAY_ONLY_READ:
                raise
            try:
                store = private_store()
            except FileNotFoundError:  # no folder for temporary files can be written either
                raise error from None
            target = guest_directory(store) / name
            _make_private(store.parent)
            _install(target, contents)
    except OSError as error:
        raise ResolutionError(
            f"cannot lay out the guest in '{target}': {error.strerror or error}; name a directory that can be "
            "written with --env-store"
        ) from error
    return _located(target)


def _make_private(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=PRIVATE_MODE)
    require_private(folder)


def _install(target: Path, contents: Mapping[str, bytes]) -> None:
    cache_dir = target.parent
    if not _is_complete(target, contents):
        cache_dir.mkdir(parents=True, exist_ok=True)
        _remove_stale_staging(cache_dir)
        _write(target, contents)


def _located(target: Path) -> GuestLayout:
    artifacts = target / "artifacts"
    requires_python = read_stub_manifest(artifacts, Files())
    return GuestLayout(
        artifacts_dir=artifacts,
        library_dir=target / "lib",
        requires_python=SpecifierSet() if requires_python is None else requires_python,
    )


def _read_guest(source: Path) -> dict[str, bytes]:
    package = source / "naiad_stub"
    # In the package, and not beside it as the utils: a wheel puts what is there into site-packages itself.
    own = package / "artifacts"
    files = {f"artifacts/{name}": own / name for name in (STUB_FILENAME, STUB_MANIFEST)}
    files[f"artifacts/{UTILS_FILENAME}"] = source / UTILS_FILENAME
    files |= {
        f"lib/{path.relative_to(source).as_posix()}": path
        for path in sorted(package.rglob("*"))
        if path.is_file() and path.suffix != ".pyc" and path.parent != own
    }
    try:
        return {name: path.read_bytes() for name, path in files.items()}
    except OSError as error:
        raise ResolutionError(
            f"the guest is not complete where naiad is installed: '{error.filename}': {error.strerror}; install "
            "naiad again"
        ) from error


def _digest(contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        # With the length, two files and their concatenation have different digests.
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _is_complete(target: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether all files exist: programs that clean caches may delete single old files."""
    try:
        return all((target / name).stat().st_size == len(content) for name, content in contents.items())
    except OSError:
        return False


def _write(target: Path, contents: Mapping[str, bytes]) -> None:
    """Write to a staging directory, then rename it: the target is complete as soon as it exists."""
    staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=target.parent))
    try:
        for name, content in contents.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        # mkdtemp makes a private directory; other users may share this cache.
        staging.chmod(0o755)
        (staging / "artifacts" / STUB_FILENAME).chmod(0o755)
        _replace(staging, target, contents)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(staging: Path, target: Path, contents: Mapping[str, bytes]) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not _is_complete(target, contents):
            # The target exists and is incomplete: move it away first.
            with tempfile.TemporaryDirectory(prefix=_STAGING_PREFIX, dir=target.parent) as aside:
                target.rename(Path(aside) / "broken")
    try:
        staging.rename(target)
    except OSError:
        # Another server was faster. The name is the hash of the content, so its content is the same.
        if not _is_complete(target, contents):
            raise


def _remove_stale_staging(cache_dir: Path) -> None:
    """Remove staging directories of killed servers; recent ones may belong to a server that is writing."""
    for entry in cache_dir.glob(f"{_STAGING_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
