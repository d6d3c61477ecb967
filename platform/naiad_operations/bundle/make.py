"""Collects a bundle: interpreter, models, backends and environments that a server with some options needs.

`archive` and `image` write the result. The members stay files of this machine until then, so a bundle of many gigabytes
is copied once.

A bundle contains its interpreter, because the other machine may have no Python and no network: a wheel and a lock would
need both, and minutes at the start. Environments stay packed: unpacked, each layer would be several times as large.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from naiad import __version__
from naiad.config.server.backend_settings import ENVIRONMENT_SETTING, PYTHON_SETTING
from naiad.config.server.flag import Flag, format_flag
from naiad.config.server.options import ServerOptions
from naiad.core.errors import BundleError
from naiad.environments.archives.archive_writer import OutputMember, write_archive
from naiad.environments.archives.manifest import Manifest, host_platform
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import store_policy
from naiad.environments.progress import ProgressMeter, ProgressReporter
from naiad.models.resolution.environment import names_environment
from naiad_operations.bundle.environments import BundledEnvironments
from naiad_operations.bundle.host import HOST_FOLDER, copy_host, lock_text, run_script
from naiad_operations.bundle.manifest import HERE, MANIFEST_NAME, RUN, BundleManifest, digests_of
from naiad_operations.bundle.models import CollectedModels, collect_models

LOCK_NAME = "naiad.lock"
_KEYS = "keys.toml"
# The bundle replaces the values of these flags with its own folders; the store is chosen on the other machine. Declared
# environments are built already, from wheels of this machine.
_REPLACED_FLAGS = frozenset(
    {"model-repository", "model-store", "backend-directory", "env-directory", "env-store", "env-trust"}
    | {"env-build", "env-wheels"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A collected bundle; its models' files may be copies that exist as long as this object."""

    manifest: BundleManifest
    host: tuple[OutputMember, ...]
    environments: tuple[OutputMember, ...]
    models: tuple[OutputMember, ...]
    notes: tuple[str, ...]
    collected: CollectedModels

    @property
    def members(self) -> list[OutputMember]:
        """All members, the manifest first: a reader of the archive finds it without unpacking the rest."""
        first = [member for member in self.models if member.name == MANIFEST_NAME]
        others = [member for member in self.models if member.name != MANIFEST_NAME]
        return [*first, *others, *self.environments, *self.host]


def make_bundle(
    name: str,
    options: ServerOptions,
    flags: Sequence[tuple[Flag, str]],
    packages: Sequence[str],
    scratch: Path,
    reporter: ProgressReporter,
) -> Bundle:
    """The bundle of a server; *scratch* is empty, gets members, and must exist until the bundle is written."""
    if options.models.is_namespaced:
        raise BundleError(
            "cannot bundle with --model-namespacing=true: namespaces are the folders of repositories, which a bundle "
            "renames"
        )
    manager = EnvironmentManager(options.environments.store, reporter=reporter, policy=store_policy(options))
    environments = BundledEnvironments(
        scratch / "environments", reporter, manager, signed=options.environments.trusted_keys is not None
    )
    collected = collect_models(options, environments, sys.version_info[:3])
    (scratch / HOST_FOLDER).mkdir()
    host, described = copy_host(scratch / HOST_FOLDER, packages)
    needed = [part.glibc for part in (described, *environments.manifests) if part.glibc]
    models = _sorted((*collected.members.values(), *_server_files(options, described)))
    packed = _sorted(environments.members.values())
    manifest = BundleManifest(
        name=name,
        naiad=__version__,
        python=described.python,
        platform=host_platform(),
        glibc=max(needed, key=Version, default=""),
        flags=tuple(_flags(options, flags, collected)),
        models=collected.models,
        environments=environments.facts,
        files=digests_of((*models, *packed, *host), environments.facts),
    )
    first = OutputMember(name=MANIFEST_NAME, data=manifest.as_bytes())
    notes = (*environments.notes, *_notes(collected, described, flags))
    return Bundle(
        manifest=manifest,
        host=tuple(host),
        environments=packed,
        models=(first, *models),
        notes=notes,
        collected=collected,
    )


def _server_files(options: ServerOptions, described: Manifest) -> Iterable[OutputMember]:
    yield OutputMember(name=RUN, data=run_script(host_platform()), executable=True)
    yield OutputMember(name=LOCK_NAME, data=lock_text(described).encode())
    if options.environments.trusted_keys is not None:
        yield OutputMember(name=_KEYS, data=options.environments.trusted_keys.read_bytes())


def _flags(options: ServerOptions, flags: Sequence[tuple[Flag, str]], collected: CollectedModels) -> Iterable[str]:
    yield from (f"--model-repository={HERE}/{folder}" for folder in collected.repositories)
    yield from (f"--backend-directory={HERE}/{folder}" for folder in collected.backends)
    if options.environments.trusted_keys is not None:
        yield f"--env-trust={HERE}/{_KEYS}"
    for flag, text in flags:
        if flag.name not in _REPLACED_FLAGS and not _names_default_environment(flag, text):
            yield format_flag(flag, text)


def _names_default_environment(flag: Flag, text: str) -> bool:
    """Whether a flag names an environment for all models: in the bundle, the models' configurations name it."""
    key, _, value = text.rpartition(",")[2].partition("=")
    is_one = key == ENVIRONMENT_SETTING or (key == PYTHON_SETTING and names_environment(value))
    return flag.name == "backend-config" and is_one and text.startswith(("python,", f"{key}="))


def _notes(collected: CollectedModels, described: Manifest, flags: Sequence[tuple[Flag, str]]) -> Iterable[str]:
    if collected.on_host:
        yield (
            f"{', '.join(collected.on_host)}: no environment is named, so the bundle's own Python {described.python} "
            "runs them, with numpy and the packages of --with"
        )
    for flag, text in flags:
        if flag.name.endswith(("-cert", "-key", "-keys-file")):
            yield f"--{flag.name}={text} is not in the bundle: put the file at that path on the other machine"


def _sorted(members: Iterable[OutputMember]) -> tuple[OutputMember, ...]:
    return tuple(sorted(members, key=lambda member: member.name))


SUFFIXES = (".tar.zst", ".tar.gz")  # suffixes of archives, the default first


def write_bundle(bundle: Bundle, output: Path, reporter: ProgressReporter) -> str:
    """Write a bundle as an archive, which appears only when it is complete; returns its SHA-256."""
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
                digest = write_archive(unfinished, suffix[1:], members, meter.advance)
            unfinished.replace(output)
        return digest
    except OSError as error:
        raise BundleError(f"cannot write {output}: {error.strerror or error}") from error
