"""From a server's options to a bundle: everything collected, described, and written as an archive or an image."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from naiad import __version__
from naiad.bundle.contents import Contents, collect_contents
from naiad.bundle.environments import BundledEnvironments
from naiad.bundle.host import HOST_FOLDER, copy_host, lock_text
from naiad.bundle.manifest import HERE, MANIFEST_NAME, BundleManifest, digests_of
from naiad.bundle.program import RUN, run_script
from naiad.config.server.flag import Flag, format_flag
from naiad.config.server.options import ServerOptions
from naiad.environments.archives.archive_writer import Packed
from naiad.environments.archives.manifest import Manifest, host_platform
from naiad.environments.building.elf import newest_glibc
from naiad.environments.progress import Reporter
from naiad.errors import BundleError

__all__ = ["LOCK_NAME", "Bundle", "Wishes", "make"]

LOCK_NAME = "naiad.lock"
_KEYS = "keys.toml"
# What these name is in the bundle, or has to be found anew where it is started.
_OWN = frozenset({"model-repository", "model-store", "backend-directory", "env-directory", "env-store", "env-trust"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was asked for beside the server's flags.

    Attributes:
        name: Of the bundle.
        platform: What it must be for; empty for this machine.
        glibc: The oldest glibc that it must run with; empty for any.
        packages: Further packages of the server's interpreter to take along.
    """

    name: str
    platform: str = ""
    glibc: str = ""
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle that is ready to be written.

    Attributes:
        manifest: What it says of itself.
        host: The server's interpreter and packages.
        environments: Archives of environments.
        models: Models, backends, and what starts them.
        notes: What its maker ought to know.
    """

    manifest: BundleManifest
    host: tuple[Packed, ...]
    environments: tuple[Packed, ...]
    models: tuple[Packed, ...]
    notes: tuple[str, ...]

    @property
    def members(self) -> list[Packed]:
        """Everything, the manifest first: whoever only wants that need not read the rest."""
        first = [one for one in self.models if one.name == MANIFEST_NAME]
        others = [one for one in self.models if one.name != MANIFEST_NAME]
        return [*first, *others, *self.environments, *self.host]


def make(
    options: ServerOptions, flags: Sequence[tuple[Flag, str]], wishes: Wishes, scratch: Path, reporter: Reporter
) -> Bundle:
    """Collect all that a server with these options needs.

    Args:
        options: The server's.
        flags: The flags that they come from.
        wishes: What else is asked for.
        scratch: An empty folder; the bundle's members lie in it until they are written.
        reporter: Whoever shows progress.

    Raises:
        BundleError: If something would not run from the bundle.
        NaiadError: If something cannot be read or packed.
        OSError: If something cannot be copied.
    """
    _check_platform(wishes.platform)
    if options.models.is_namespaced:
        raise BundleError("--model-namespacing=true names models by their repository's folder, which a bundle changes")
    # What is copied may need a newer one still, which is seen once it is; an interpreter that does is seen at once.
    _check_glibc(wishes.glibc, {HOST_FOLDER: newest_glibc((Path(sys.executable).resolve(),))})
    environments = BundledEnvironments(
        scratch / "environments", reporter, signed=options.environments.trusted_keys is not None
    )
    contents = collect_contents(options, environments, sys.version_info[:3])
    (scratch / HOST_FOLDER).mkdir()
    host, described = copy_host(scratch / HOST_FOLDER, wishes.packages)
    machine = {HOST_FOLDER: described, **environments.manifests}
    _check_glibc(wishes.glibc, {what: one.glibc for what, one in machine.items()})
    models = _sorted((*contents.members.values(), *_additional(options, described)))
    packed = _sorted(environments.members.values())
    manifest = BundleManifest(
        name=wishes.name,
        naiad=__version__,
        python=described.python,
        platform=host_platform(),
        glibc=max((one.glibc for one in machine.values() if one.glibc), key=Version, default=""),
        flags=tuple(_flags(options, flags, contents)),
        models=contents.models,
        environments=environments.facts,
        files=digests_of((*models, *packed, *host)),
    )
    first = Packed(name=MANIFEST_NAME, data=manifest.as_bytes())
    notes = tuple(_notes(contents, described, flags))
    return Bundle(manifest=manifest, host=tuple(host), environments=packed, models=(first, *models), notes=notes)


def _additional(options: ServerOptions, described: Manifest) -> Iterable[Packed]:
    yield Packed(name=RUN, data=run_script(host_platform()), executable=True)
    yield Packed(name=LOCK_NAME, data=lock_text(described).encode())
    if options.environments.trusted_keys is not None:
        yield Packed(name=_KEYS, data=options.environments.trusted_keys.read_bytes())


def _flags(options: ServerOptions, flags: Sequence[tuple[Flag, str]], contents: Contents) -> Iterable[str]:
    yield from (f"--model-repository={HERE}/{folder}" for folder in contents.repositories)
    yield from (f"--backend-directory={HERE}/{folder}" for folder in contents.backends)
    if options.environments.trusted_keys is not None:
        yield f"--env-trust={HERE}/{_KEYS}"
    for flag, text in flags:
        if flag.name not in _OWN:
            yield format_flag(flag, text)


def _notes(contents: Contents, described: Manifest, flags: Sequence[tuple[Flag, str]]) -> Iterable[str]:
    if contents.on_host:
        yield (
            f"{', '.join(contents.on_host)}: no environment is named, so the bundle's own Python {described.python} "
            "runs them, with numpy and what --with adds"
        )
    for flag, text in flags:
        if flag.name.endswith(("-cert", "-key", "-keys-file")):
            yield f"--{flag.name}={text} is not in the bundle: the file has to be there where it is started"


def _check_platform(wanted: str) -> None:
    here = host_platform()
    if wanted and wanted != here:
        raise BundleError(
            f"--platform={wanted}: a bundle holds a copy of this server's own interpreter, which is for {here}; make "
            "it on a machine of that kind"
        )


def _check_glibc(oldest: str, needed: dict[str, str]) -> None:
    if not oldest:
        return
    newer = {what: glibc for what, glibc in needed.items() if glibc and Version(glibc) > Version(oldest)}
    if newer:
        said = ", ".join(f"{what} needs {glibc}" for what, glibc in sorted(newer.items()))
        raise BundleError(
            f"--glibc={oldest}: {said}; make the bundle, or build the environment, on a machine with glibc {oldest} "
            "or an older one"
        )


def _sorted(members: Iterable[Packed]) -> tuple[Packed, ...]:
    return tuple(sorted(members, key=lambda member: member.name))
