"""Where indexes have the files of packages, which only uv finds, and downloading them for servers without a network."""

from __future__ import annotations

import netrc
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from packaging.utils import canonicalize_name

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.file_digest import file_digest
from naiad.core.toml import tomllib
from naiad.environments.fetching.download import download
from naiad.environments.progress import LogReporter
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.indexes import PackageIndexes
from naiad_building.lockfiles import Pin, file_name, file_rank
from naiad_building.pip_settings import read_pip_settings
from naiad_building.uv_program import PYLOCK_COMMAND, InstallOptions, run_uv


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFile:
    """A file of a package, in an index or a folder, with its SHA-256."""

    package: str
    version: str
    url: str
    digest: str

    @property
    def name(self) -> str:
        return file_name(self.url)


def locate_files(
    versions: Mapping[str, str],
    file: Path,
    base: BaseInterpreter,
    options: InstallOptions,
    accepted: Mapping[str, Iterable[str]] | None = None,
) -> list[PackageFile]:
    """The file of each package (versions by name) that would be installed for a Python of this machine.

    *accepted* has the digests of the files that may be taken, by package; None for any.
    """
    if not versions:
        return []
    with tempfile.TemporaryDirectory(prefix="naiad-files-") as folder:
        listed, target = Path(folder, "requirements.in"), Path(folder, "pylock.toml")
        listed.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()), encoding="utf-8")
        arguments = [*PYLOCK_COMMAND, "--no-deps", "-o", str(target), str(listed)]
        run_uv(arguments, file.name, file, base.executable, options)
        packages = tomllib.loads(target.read_text(encoding="utf-8"))["packages"]
    found: list[PackageFile] = []
    for package in packages:
        name = str(canonicalize_name(package["name"]))
        files = [
            PackageFile(package=name, version=package["version"], url=each["url"], digest=each["hashes"]["sha256"])
            for each in (*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ()))
        ]
        ranked = [
            (rank, each)
            for each in files
            if (rank := file_rank(each.name, base.version)) is not None
            and (accepted is None or each.digest in accepted[name])
        ]
        if not ranked:
            raise ExecutionEnvironmentError(
                f"cannot find a file of {name} {package['version']} for Python {base.version} with a digest of the "
                f"lock of {file}: the indexes have {', '.join(each.name for each in files) or 'none'}; lock again"
            )
        found.append(min(ranked, key=lambda one: one[0])[1])
    return found


def download_files(
    pins: Iterable[Pin], folder: Path, file: Path, base: BaseInterpreter, options: InstallOptions
) -> None:
    """Download a file of each locked package into a folder, unless it is there."""
    versions, accepted = {pin.name: pin.version for pin in pins}, {pin.name: pin.digests for pin in pins}
    settings = read_pip_settings(os.environ)
    os.environ.update(settings.variables)  # for the standard library: the proxy, and the certificates
    indexes = options.indexes.before(settings.indexes)
    for each in locate_files(versions, file, base, options, accepted):
        target = folder / each.name
        if target.is_file() and file_digest(target) == each.digest:
            continue
        options.progress(f"downloading {each.name}")
        with tempfile.TemporaryDirectory(prefix=".downloading-", dir=folder) as scratch:
            received = Path(scratch, each.name)
            if each.url.startswith("file:"):
                shutil.copyfile(unquote(urlsplit(each.url).path), received)
            else:
                download(_with_login(each.url, indexes), received, reporter=LogReporter())
            if (digest := file_digest(received)) != each.digest:
                raise ExecutionEnvironmentError(
                    f"cannot use {each.url}: its digest is {digest}, and the lock of {file} has {each.digest}; the "
                    "index has another file now, lock again if that is right"
                )
            received.replace(target)


def _with_login(url: str, indexes: PackageIndexes) -> str:
    """An address with the user and password of the index on that host, or of ~/.netrc: uv tells addresses without."""
    parts = urlsplit(url)
    for index in filter(None, (indexes.default, *indexes.extra)):
        login, at, host = urlsplit(index.url).netloc.rpartition("@")
        if at and host == parts.netloc:
            return parts._replace(netloc=f"{login}@{host}").geturl()
    try:
        known = netrc.netrc(os.environ.get("NETRC")).authenticators(parts.hostname or "")
    except (OSError, netrc.NetrcParseError):
        known = None
    if known is None:
        return url
    return parts._replace(netloc=f"{quote(known[0], '')}:{quote(known[2] or '', '')}@{parts.netloc}").geturl()
