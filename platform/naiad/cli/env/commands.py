"""The commands of `naiad env`, in three groups: archives from recipes, archives for servers, the store.

Each command imports what it needs when it runs: these modules unpack, download and sign, and importing all of them
takes longer than most commands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.server.quantities import parse_seconds, parse_size, size_text

if TYPE_CHECKING:
    from naiad.environments.archives.signatures import TrustedKeys

__all__ = ["ENV_COMMANDS"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_FOLDER = click.Path(file_okay=False, path_type=Path)
_EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


# -- options that several commands have -------------------------------------------------------------------------------


def _store_option(command: _Command) -> _Command:
    text = "The store; default: $NAIAD_STORE, else a folder in the user's cache."
    return click.option("--env-store", "store", default="", callback=_find_store, help=text)(command)


def _find_store(_context: click.Context, _parameter: click.Parameter, text: str) -> Path:
    from naiad.config.server.store_location import store_path

    return store_path(text, os.environ)


def _json_option(command: _Command) -> _Command:
    return click.option("--json", "json", is_flag=True, help="Print JSON.")(command)


def _trust_option(command: _Command) -> _Command:
    text = "File of public keys, as for the server."
    return click.option("--env-trust", "trust", type=_EXISTING_FILE, help=text)(command)


def _python_option(command: _Command) -> _Command:
    text = "Version of Python or path of an interpreter; default: the recipe's."
    return click.option("--python", metavar="VERSION", help=text)(command)


_recipe_argument = click.argument("recipe", type=click.Path(exists=True, file_okay=False, path_type=Path))


def _read_keys(path: Path | None) -> TrustedKeys | None:
    """The trusted keys of a file; None without a file.

    Raises:
        ExecutionEnvironmentError: If the file cannot be read.
    """
    from naiad.environments.archives.signatures import read_trusted_keys

    return None if path is None else read_trusted_keys(path)


# -- from a recipe to an archive --------------------------------------------------------------------------------------


@click.command("lock", short_help="Write the exact packages of a recipe, with digests.")
@_recipe_argument
@click.option(
    "--python", "pythons", metavar="VERSION", multiple=True, help="Resolve for this version only; may be repeated."
)
def _lock(recipe: Path, pythons: tuple[str, ...]) -> None:
    """Resolve the folder RECIPE for each Python it supports, and write the exact packages with their digests.

    Without --python, resolve for each version on this machine that the recipe supports. Builds then install exactly
    these packages.
    """
    from naiad.environments.building.locking import lock

    file, chosen = lock(recipe, pythons=pythons, progress=click.echo)
    held = ", ".join(f"{len(pins)} packages for Python {python}" for python, pins in chosen.items())
    click.echo(f"wrote {file}: {held}")


@click.command("download", short_help="Download a recipe's wheels, to build without a network.")
@_recipe_argument
@click.option("-o", "--output", required=True, type=_FOLDER, help="Folder for the wheels.")
@_python_option
def _download(recipe: Path, output: Path, python: str | None) -> None:
    """Download the wheels of the folder RECIPE, for `naiad env build --offline --wheels` on another machine."""
    from naiad.environments.building.build import fetch_wheels
    from naiad.environments.progress import default_reporter

    version = fetch_wheels(recipe, output, python=python, progress=click.echo, reporter=default_reporter())
    click.echo(f"fetched {len(list(output.iterdir()))} files for Python {version} into {output}")


@click.command("build")
@_recipe_argument
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to build in.")
@_python_option
@click.option("--wheels", multiple=True, type=_FOLDER, help="Folder of wheels to search; may be repeated.")
@click.option("--offline", is_flag=True, help="Install from these folders only.")
@click.option(
    "--installer",
    type=click.Choice(["auto", "pip", "uv"]),
    default="auto",
    help="What installs packages; auto: uv if it is installed, else pip.",
)
def _build(
    recipe: Path,
    output: Path,
    python: str | None,
    wheels: tuple[Path, ...],
    offline: bool,  # noqa: FBT001 - click passes options by name
    installer: str,
) -> None:
    """Build an environment from the folder RECIPE."""
    from naiad.environments.building.build import build
    from naiad.environments.building.installers import InstallOptions
    from naiad.environments.progress import default_reporter

    options = InstallOptions(installer=installer, wheels=wheels, offline=offline)
    built = build(recipe, output, python=python, options=options, progress=click.echo, reporter=default_reporter())
    click.echo(f"built {built.prefix} with Python {built.version} and {len(built.packages)} packages")


@click.command("pack", short_help="Pack an environment into an archive.")
@click.argument("prefix", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Archive to write; default: ENV.tar.zst.")
@click.option(
    "--format",
    "archive_format",
    type=click.Choice(["tar.zst", "tar.gz", "tar.bz2", "tar.xz", "tar", "zip"]),
    help="Format of the archive; default: by its name.",
)
@click.option("--force", is_flag=True, help="Replace an existing archive.")
def _pack(
    prefix: Path,
    output: Path | None,
    archive_format: str | None,
    force: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Pack the environment in PREFIX into an archive that any machine of the same platform can unpack.

    PREFIX may be a conda environment, a venv, an output of `naiad env build`, or a Python with its packages.
    """
    from naiad.environments.building.pack import default_output, pack
    from naiad.environments.progress import default_reporter

    archive = output or default_output(prefix, archive_format)
    packed = pack(prefix, archive, format=archive_format, force=force, reporter=default_reporter())
    for warning in packed.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"packed {packed.archive} ({packed.size / 1e6:.0f} MB), sha256:{packed.digest}")


# -- archives for servers: fetched before the start, signed -----------------------------------------------------------


@click.command("prefetch", short_help="Put environments into the store before a server starts.")
@click.argument("environments", nargs=-1)
@click.option(
    "--model-repository", "repositories", multiple=True, help="Add the environments of its models; may be repeated."
)
@click.option(
    "--env-directory",
    "directories",
    multiple=True,
    type=_FOLDER,
    help="Folder to search for env://NAME; may be repeated.",
)
@_trust_option
@click.option("--env-require-digest", "require_digest", is_flag=True, help="Reject URIs without @sha256.")
@click.option("--accept-changed", is_flag=True, help="Accept a URI's content even if it has changed.")
@_store_option
@_json_option
def _prefetch(
    environments: tuple[str, ...],
    repositories: tuple[str, ...],
    directories: tuple[Path, ...],
    trust: Path | None,
    require_digest: bool,  # noqa: FBT001 - click passes options by name
    accept_changed: bool,  # noqa: FBT001 - click passes options by name
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Put ENVIRONMENTS into the store, so that servers start without downloading or unpacking them.

    Each is named as in EXECUTION_ENV_PATH: a path, env://NAME, or a URI.
    """
    from naiad.cli.env.tables import as_json
    from naiad.environments.manager import EnvironmentManager
    from naiad.environments.policy import StorePolicy
    from naiad.errors import NaiadError

    policy = StorePolicy(trust=_read_keys(trust), require_digest=require_digest)
    manager = EnvironmentManager(store, policy=policy)
    results: list[dict[str, str]] = []
    for source in dict.fromkeys(_sources(environments, repositories, directories, store)):
        uri = source.uri if isinstance(source, EnvironmentSource) else ""
        if accept_changed and uri:
            manager.accept_changed(uri)
        try:
            ready = manager.prepare(source)
        except NaiadError as error:
            results.append({"environment": str(source), "error": error.message})
            continue
        results.append(
            {
                "environment": str(source),
                "digest": ready.digest or "",
                "prefix": str(ready.prefix),
                "python": ".".join(map(str, ready.version)),
            }
        )
    if json:
        click.echo(as_json(results))
    else:
        _print_prefetched(results)
    return 1 if any("error" in result for result in results) else 0


def _sources(
    environments: tuple[str, ...], repositories: tuple[str, ...], directories: tuple[Path, ...], store: Path
) -> Iterator[Path | EnvironmentSource]:
    from naiad.cli.env.models import environments_of, server_options
    from naiad.resolution.environment import EnvironmentSearch, locate_environment
    from naiad.resolution.files import RealFiles

    places = EnvironmentSearch(base=Path.cwd(), directories=tuple(directory.absolute() for directory in directories))
    for text in environments:
        yield locate_environment(text, "naiad env prefetch", places, RealFiles())[0]
    if repositories:
        options = server_options(store, repositories, *(f"--env-directory={directory}" for directory in directories))
        for _, source in environments_of(options):
            yield source


def _print_prefetched(results: list[dict[str, str]]) -> None:
    for result in results:
        if "error" in result:
            click.echo(result["error"], err=True)
        else:
            digest = f" sha256:{result['digest']}" if result["digest"] else ""
            click.echo(f"ready: {result['environment']}{digest}, Python {result['python']} in {result['prefix']}")
    if not results:
        click.echo("nothing to prefetch: name environments, or a --model-repository whose models have environments")


@click.command("sign", short_help="Sign an archive.")
@click.argument("archive", type=_EXISTING_FILE)
@click.option("--key", required=True, type=_EXISTING_FILE, help="The private key.")
@_store_option
def _sign(archive: Path, key: Path, store: Path) -> None:
    """Sign ARCHIVE: writes ARCHIVE.sig, which must be kept beside the archive wherever it is copied."""
    from naiad.environments.archives.signatures import sign
    from naiad.environments.progress import default_reporter
    from naiad.environments.store.archive_digest import digest_of

    digest = digest_of(archive.absolute(), store / "index", reporter=default_reporter())
    signature, key_id = sign(archive, digest, key)
    click.echo(f"signed {archive} (sha256:{digest}) with key {key_id}: {signature}")


@click.command("keygen", short_help="Create a key to sign archives with.")
@click.argument("private", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", default="", help="Name of the key in messages; default: the file's name.")
def _keygen(private: Path, name: str) -> None:
    """Create a private key in the file PRIVATE, and print its entry for a file of --env-trust."""
    from naiad.environments.archives.signatures import create_key

    public = create_key(private)
    click.echo(f'[[keys]]\nname = "{name or private.stem}"\npublic = "{public}"')
    click.echo(f"wrote the private key to {private}; append the lines above to the server's --env-trust file", err=True)


# -- the store --------------------------------------------------------------------------------------------------------


@click.command("inspect", short_help="Show the contents of an archive, folder or store entry.")
@click.argument("environment")
@click.option(
    "--model-repository",
    "repositories",
    multiple=True,
    help="Show which of its models use the environment; may be repeated.",
)
@_store_option
@_json_option
def _inspect(
    environment: str,
    repositories: tuple[str, ...],
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Show the contents of ENVIRONMENT: an archive, a folder, or the digest of a store entry."""
    from naiad.cli.env.models import models_using, server_options
    from naiad.cli.env.tables import as_json, inspection_text
    from naiad.environments.archives.inspection import inspect_environment
    from naiad.environments.progress import default_reporter

    inspection = inspect_environment(environment, store, default_reporter())
    models = models_using(inspection, server_options(store, repositories) if repositories else None)
    if json:
        click.echo(as_json({"environment": inspection, "models": models}))
    else:
        click.echo(inspection_text(inspection, models), nl=False)


@click.command("verify", short_help="Check archives, or entries of the store.")
@click.argument("environments", nargs=-1)
@_trust_option
@_store_option
@_json_option
def _verify(
    environments: tuple[str, ...],
    trust: Path | None,
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Check ENVIRONMENTS: unpack and start archives, compare entries of the store file by file.

    Without arguments, check the whole store. The exit code is 1 if a check fails.
    """
    from naiad.cli.env.tables import VERDICT_HEADERS, as_json, print_table, verdict_rows
    from naiad.environments.progress import default_reporter
    from naiad.environments.store.verification import verify_archive, verify_entries

    archives = [Path(name) for name in environments if Path(name).is_file()]
    names = tuple(name for name in environments if not Path(name).is_file())
    keys = _read_keys(trust)
    verdicts = [verify_archive(archive, store, default_reporter(), keys) for archive in archives]
    if names or not archives:
        verdicts += verify_entries(store, names)
    if json:
        click.echo(as_json(verdicts))
    elif verdicts:
        print_table(VERDICT_HEADERS, verdict_rows(verdicts))
    else:
        click.echo(f"no environments in {store}")
    return 0 if all(verdict.is_intact for verdict in verdicts) else 1


@click.command("list")
@_store_option
@_json_option
def _list(store: Path, json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """List the unpacked environments in the store."""
    from naiad.cli.env.tables import ENTRY_HEADERS, as_json, entry_rows, print_table
    from naiad.environments.store.entries import read_entries

    entries = read_entries(store)
    if json:
        click.echo(as_json({"store": store, "environments": entries}))
    elif entries:
        print_table(ENTRY_HEADERS, entry_rows(entries, time.time()), title=f"environments in {store}")
        click.echo(f"{len(entries)} environments, {size_text(sum(entry.size for entry in entries))}")
    else:
        click.echo(f"no environments in {store}")


@click.command("gc")
@click.option("--older-than", metavar="TIME", help="Remove entries not used for this time: 30d, 12h, 2w.")
@click.option("--keep-bytes", metavar="SIZE", help="Then remove the least recently used down to this size: 10GB.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
@_store_option
@_json_option
def _gc(
    older_than: str | None,
    keep_bytes: str | None,
    dry_run: bool,  # noqa: FBT001 - click passes options by name
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Remove unused environments, and files that crashes left.

    Environments of running servers are kept. Without a limit, only files of crashes are removed.
    """
    from naiad.cli.env.tables import as_json, print_table
    from naiad.environments.store.eviction import collect_garbage

    collected = collect_garbage(
        store,
        older_than=None if older_than is None else parse_seconds(older_than),
        keep_bytes=None if keep_bytes is None else parse_size(keep_bytes),
        dry_run=dry_run,
    )
    if json:
        click.echo(as_json({"store": store, "dry_run": dry_run, **collected.as_json()}))
        return
    rows = [
        (removed.entry.archive, size_text(removed.entry.size), removed.reason, removed.entry.digest[:12])
        for removed in collected.removed
    ]
    if rows:
        print_table(("Archive", "Size", "Why", "Digest"), rows)
    freed = size_text(sum(removed.entry.size for removed in collected.removed) + collected.leftover_bytes)
    verb = "would remove" if dry_run else "removed"
    click.echo(f"{verb} {len(rows)} environments and {collected.leftovers} leftovers, {freed}; {collected.kept} stay")


@click.command("remove", short_help="Remove environments from the store.")
@click.argument("environments", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
@_store_option
def _remove(environments: tuple[str, ...], dry_run: bool, store: Path) -> int:  # noqa: FBT001 - click passes options by name
    """Remove ENVIRONMENTS from the store, named by digest or archive; those of running servers are kept."""
    from naiad.environments.progress import LogReporter
    from naiad.environments.store.entries import find_entry
    from naiad.environments.store.eviction import remove_entry
    from naiad.environments.store.leases import EntryLeases
    from naiad.environments.store.store import Store

    code = 0
    for entry in [find_entry(store, name) for name in environments]:
        label = f"{entry.digest[:12]} of {entry.archive} ({size_text(entry.size)})"
        if dry_run and not entry.in_use:
            click.echo(f"would remove {label}")
        elif not dry_run and remove_entry(Store(store, LogReporter()), EntryLeases(store), entry.digest):
            click.echo(f"removed {label}")
        else:
            code = 1
            used = ", ".join(using.model for using in entry.models) or "an unknown model"
            click.echo(f"kept {label}: a running server uses it (last for {used}); unload its models first", err=True)
    return code


ENV_COMMANDS: tuple[click.Command, ...] = (
    *(_lock, _download, _build, _pack),
    *(_prefetch, _sign, _keygen),
    *(_inspect, _verify, _list, _gc, _remove),
)
"""The sub-commands of `naiad env`, in the order of the overview."""
