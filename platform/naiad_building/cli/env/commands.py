"""The commands of `naiad env`, in three groups: archives from recipes, archives for servers, the store.

Each command imports what it needs when it runs: these modules unpack, download and sign, and importing all of them
takes longer than most commands.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from naiad.cli.click_options import OrderedGroup, json_option, progress_printer
from naiad.cli.json_output import print_json
from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.server.env_build import EnvBuild
from naiad.core.quantities import counted, parse_seconds, parse_size, size_text

if TYPE_CHECKING:
    from naiad_building.cli.env.models import UsedEnvironment

_FOLDER = click.Path(file_okay=False, path_type=Path)
_EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


# -- options that several commands have -------------------------------------------------------------------------------


def _store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "The store; default: $NAIAD_STORE, else a folder in the user's cache."

    @functools.wraps(command)
    def explained_command(*arguments: Any, store: Path, **options: Any) -> Any:
        from naiad.environments.store.access import explained

        with explained(store):
            return command(*arguments, store=store, **options)

    return click.option("--env-store", "store", default="", callback=_find_store, help=text)(explained_command)


def _find_store(_context: click.Context, _parameter: click.Parameter, text: str) -> Path:
    from naiad.environments.store.opening import open_store_of

    return open_store_of(text, os.environ)


def _warn_of_closed_entries(store: Path) -> None:
    from naiad.environments.store.entries import explain_closed_entries

    if why := explain_closed_entries(store):
        click.echo(f"warning: {why}", err=True)


# -- from a recipe to an archive --------------------------------------------------------------------------------------


@click.command("build")
@click.argument("recipe", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to build in.")
@click.option(
    "--python",
    metavar="VERSION",
    help="Version of Python or path of an interpreter; default: the newest that the recipe and its lock are for.",
)
@click.option("--wheels", multiple=True, type=_FOLDER, help="Folder of wheels to search; may be repeated.")
@click.option("--offline", is_flag=True, help="Install from these folders only.")
@json_option
def _build(
    recipe: Path,
    output: Path,
    python: str | None,
    wheels: tuple[Path, ...],
    offline: bool,  # noqa: FBT001 - click passes options by name
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Build an environment from the folder RECIPE."""
    from naiad_building.build import build
    from naiad_building.uv_program import InstallOptions

    options = InstallOptions(wheels=wheels, offline=offline, progress=progress_printer(json=json))
    built = build(recipe, output, python=python, options=options)
    if json:
        packages = [{"name": name, "version": version} for name, version in built.packages]
        facts = {"prefix": built.prefix, "python": built.python, "version": built.version, "base": built.base}
        print_json({**facts, "packages": packages})
    else:
        click.echo(f"built {built.prefix} with Python {built.version} and {counted(len(built.packages), 'package')}")
    if not any(name.lower() == "numpy" for name, _ in built.packages):
        click.echo(f"warning: it has no numpy, which every model needs; add it to {recipe}", err=True)


@click.command("pack", short_help="Pack an environment into an archive.")
@click.argument("prefix", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Archive to write, .tar.zst or .tar.gz; default: ENV.tar.zst.",
)
@click.option("--force", is_flag=True, help="Replace an existing archive.")
@json_option
def _pack(
    prefix: Path,
    output: Path | None,
    force: bool,  # noqa: FBT001 - click passes options by name
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Pack the environment in PREFIX into an archive that any machine of the same platform can unpack.

    PREFIX may be a conda environment, a venv, an output of `naiad env build`, or a Python with its packages.
    """
    from naiad.core.errors import ExecutionEnvironmentError
    from naiad.environments.progress import default_reporter, steps_shown
    from naiad_building.pack import default_output, pack

    output = output or default_output(prefix)
    if not output.parent.is_dir():
        # Not created: folders that root makes for a mistyped path would be in the way of their user.
        raise ExecutionEnvironmentError(
            f"cannot write {output}: there is no folder {output.parent}; create it, or name another --output"
        )
    with steps_shown():
        packed = pack(prefix, output, force=force, reporter=default_reporter())
    for warning in packed.warnings:
        click.echo(f"warning: {warning}", err=True)
    if not any(package.name.lower() == "numpy" for package in packed.manifest.packages):
        click.echo(f"warning: it has no numpy, which every model needs; add it to {prefix} and pack it again", err=True)
    if json:
        facts = {"archive": packed.archive, "format": packed.format, "size": packed.size, "digest": packed.digest}
        print_json({**facts, "warnings": packed.warnings})
    else:
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
@click.option(
    "--backend-config",
    "settings",
    multiple=True,
    help="Setting of a backend that names an environment, as for the server; may be repeated.",
)
@click.option("--env-trust", "trust", type=_EXISTING_FILE, help="File of public keys, as for the server.")
@click.option("--env-require-digest", "require_digest", is_flag=True, help="Reject URIs without @sha256.")
@click.option("--accept-changed", is_flag=True, help="Accept a URI's content even if it has changed.")
@click.option(
    "--env-build",
    "build",
    type=click.Choice([each.value for each in EnvBuild]),
    default=EnvBuild.LOCKED.value,
    show_default=True,
    help="Packages that models declare: use what is in the store, install from locks, or resolve without.",
)
@click.option(
    "--env-wheels", "wheels", multiple=True, type=_FOLDER, help="Folder of wheels to install from; may be repeated."
)
@click.option("--offline", is_flag=True, help="Download nothing.")
@_store_option
@json_option
def _prefetch(
    environments: tuple[str, ...],
    repositories: tuple[str, ...],
    directories: tuple[Path, ...],
    settings: tuple[str, ...],
    trust: Path | None,
    require_digest: bool,  # noqa: FBT001 - click passes options by name
    accept_changed: bool,  # noqa: FBT001 - click passes options by name
    build: str,
    wheels: tuple[Path, ...],
    offline: bool,  # noqa: FBT001 - click passes options by name
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Put ENVIRONMENTS into the store, so that servers start without downloading or unpacking them.

    Each is named as in EXECUTION_ENV_PATH: a path, env://NAME, or a URI. A file that declares an environment is built.
    """
    from naiad.config.server.store_location import guest_directory
    from naiad.core.errors import ExecutionEnvironmentError, NaiadError
    from naiad.core.signatures import read_trusted_keys
    from naiad.environments.manager import EnvironmentManager
    from naiad.environments.policy import StorePolicy
    from naiad.environments.progress import steps_shown
    from naiad.models.resolution.layout import lay_out_guest

    policy = StorePolicy(
        trust=None if trust is None else read_trusted_keys(trust),
        require_digest=require_digest,
        build=EnvBuild(build),
        wheels=tuple(folder.absolute() for folder in wheels),
        offline=offline,
    )
    manager = EnvironmentManager(store, policy=policy)
    # Whoever uses the store may not be allowed to write into it.
    lay_out_guest(guest_directory(store))
    results: list[dict[str, str]] = []
    flags = (
        *(f"--env-directory={directory}" for directory in directories),
        *(f"--backend-config={setting}" for setting in settings),
    )
    used = _used_environments(environments, repositories, directories, flags, store)
    for _, source, python, origin in dict.fromkeys(each._replace(model="") for each in used):
        uri = source.uri if isinstance(source, EnvironmentSource) else ""
        if accept_changed and uri:
            manager.accept_changed(uri)
        try:
            with steps_shown():
                ready = manager.prepare(source, python=python, python_origin=origin)
            if changed := manager.explain_changed(source):
                raise ExecutionEnvironmentError(changed)
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
        print_json(results)
    else:
        _print_prefetched(results)
    return 1 if any("error" in result for result in results) else 0


def _used_environments(
    environments: tuple[str, ...],
    repositories: tuple[str, ...],
    directories: tuple[Path, ...],
    flags: tuple[str, ...],
    store: Path,
) -> Iterator[UsedEnvironment]:
    from naiad.models.resolution.environment import EnvironmentSearch, locate_environment
    from naiad.models.resolution.files import Files
    from naiad_building.cli.env.models import UsedEnvironment, environments_of, server_options

    places = EnvironmentSearch(base=Path.cwd(), directories=tuple(directory.absolute() for directory in directories))
    for text in environments:
        source, _ = locate_environment(text, "naiad env prefetch", places, Files())
        yield UsedEnvironment("", source, None, "")
    if repositories:
        options = server_options(store, repositories, *flags)
        yield from environments_of(options)


def _print_prefetched(results: list[dict[str, str]]) -> None:
    for result in results:
        if "error" in result:
            click.echo(result["error"], err=True)
        else:
            digest = f" sha256:{result['digest']}" if result["digest"] else ""
            click.echo(f"ready: {result['environment']}{digest}, Python {result['python']} in {result['prefix']}")
    if not results:
        click.echo("nothing to prefetch: name environments, or a --model-repository whose models have environments")


@click.command("pin", short_help="Write the digests of remote environments into a repository.")
@click.argument("repository", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--update", is_flag=True, help="Pin the present content of URIs that are pinned, too.")
@click.option(
    "--env-directory",
    "directories",
    multiple=True,
    type=_FOLDER,
    help="Folder to search for env://NAME; may be repeated.",
)
@_store_option
@json_option
def _pin(
    repository: Path,
    update: bool,  # noqa: FBT001 - click passes options by name
    directories: tuple[Path, ...],
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Write REPOSITORY/environments.lock: the digest of each URI that its models name without @sha256.

    Every server then uses exactly these archives. URIs that are in the file keep their digest without --update.
    """
    from naiad.config.model.environment_pins import PINS_FILE
    from naiad.config.model.environment_source import redact
    from naiad.environments.manager import EnvironmentManager
    from naiad_building.cli.env.pin import pin_repository

    pins = pin_repository(repository, EnvironmentManager(store), update=update, directories=directories)
    if json:
        print_json({"file": repository / PINS_FILE, "pins": pins})
        return
    for pin in pins:
        what = "unchanged" if pin.before == pin.digest else f"was sha256:{pin.before}" if pin.before else "new"
        click.echo(f"{redact(pin.uri)} sha256:{pin.digest} ({what})")
    if pins:
        click.echo(f"wrote {repository / PINS_FILE}: {counted(len(pins), 'environment')}")
    else:
        click.echo(f"nothing to pin: no model of {repository} names a URI without @sha256")


@click.command("sign", short_help="Sign an archive.")
@click.argument("archive", type=_EXISTING_FILE)
@click.option("--key", required=True, type=_EXISTING_FILE, help="The private key.")
@_store_option
@json_option
def _sign(archive: Path, key: Path, store: Path, json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Sign ARCHIVE: writes ARCHIVE.sig, which must be kept beside the archive wherever it is copied."""
    from naiad.core.signatures import sign
    from naiad.environments.progress import default_reporter
    from naiad.environments.store.archive_digest import digest_of

    digest = digest_of(archive.absolute(), store / "index", reporter=default_reporter())
    signature, key_id = sign(archive, digest, key)
    if json:
        print_json({"archive": archive, "digest": digest, "key_id": key_id, "signature": signature})
        return
    click.echo(f"signed {archive} (sha256:{digest}) with key {key_id}: {signature}")


@click.command("keygen", short_help="Create a key to sign archives with.")
@click.argument("private", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", default="", help="Name of the key in messages; default: the file's name.")
@click.option(
    "--algorithm",
    type=click.Choice(["ed25519", "p256"]),
    default="ed25519",
    help="Kind of key; p256 is what tools of the OpenSSF's model signing read.",
)
@json_option
def _keygen(private: Path, name: str, algorithm: str, json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Create a private key in the file PRIVATE, and print its entry for a file of --env-trust."""
    from naiad.core.signatures import create_key

    public = create_key(private, algorithm)
    if json:
        print_json({"private": private, "name": name or private.stem, "public": public})
        return
    click.echo(f'[[keys]]\nname = "{name or private.stem}"\npublic = "{public}"')
    click.echo(f"wrote the private key to {private}; append the lines above to the server's --env-trust file", err=True)


# -- the store --------------------------------------------------------------------------------------------------------


@click.command("inspect", short_help="Show the contents of an archive, folder or store entry.")
@click.argument("environment")
@_store_option
@json_option
def _inspect(
    environment: str,
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Show the contents of ENVIRONMENT: an archive, a folder, or the digest of a store entry.

    The exit code is 1 if the archive is damaged or unsafe.
    """
    from naiad.environments.progress import default_reporter
    from naiad.environments.store.inspection import inspect_environment
    from naiad_building.cli.env.tables import inspection_text

    inspection = inspect_environment(environment, store, default_reporter())
    models = sorted({using.model for using in inspection.entry.models} if inspection.entry else ())
    if json:
        print_json({"environment": inspection, "models": models})
    else:
        click.echo(inspection_text(inspection, models), nl=False)
    return 1 if inspection.problems else 0


@click.command("verify", short_help="Check entries of the store.")
@click.argument("environments", nargs=-1)
@_store_option
@json_option
def _verify(environments: tuple[str, ...], store: Path, json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Compare ENVIRONMENTS of the store, named by digest, file by file with what was unpacked.

    Without arguments, check the whole store. The exit code is 1 if a check fails.
    """
    from naiad.environments.store.verification import verify_entries
    from naiad_building.cli.env.tables import VERDICT_HEADERS, print_table, verdict_rows

    _warn_of_closed_entries(store)
    verdicts = verify_entries(store, environments)
    if json:
        print_json(verdicts)
    elif verdicts:
        print_table(VERDICT_HEADERS, verdict_rows(verdicts))
    else:
        click.echo(f"no environments in {store}")
    return 0 if all(verdict.is_intact for verdict in verdicts) else 1


@click.command("list", short_help="List environments and pulled repositories in the store.")
@_store_option
@json_option
def _list(store: Path, json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """List the environments in the store, and the repositories that were pulled.

    Models are those whose last load used an entry; "before" precedes those of an entry that all have left. Long lists
    are shortened; --json has all. Files that several share count once in the total.
    """
    from naiad.environments.store.entries import read_entries
    from naiad.environments.store.eviction import disk_usage
    from naiad.environments.store.pulled import read_pulled
    from naiad_building.cli.env.tables import ENTRY_HEADERS, PULLED_HEADERS, entry_rows, print_table, pulled_rows

    _warn_of_closed_entries(store)
    entries, pulled = read_entries(store), read_pulled(store)
    total = disk_usage([*entries, *pulled]).total
    if json:
        print_json({"store": store, "environments": entries, "repositories": pulled, "total": total})
        return
    if entries:
        print_table(ENTRY_HEADERS, entry_rows(entries, time.time()), title=f"environments in {store}")
    if pulled:
        print_table(PULLED_HEADERS, pulled_rows(pulled, time.time()), title=f"repositories pulled into {store}")
    if not entries and not pulled:
        click.echo(f"no environments in {store}")
        return
    counts = [counted(len(entries), "environment")]
    counts += [f"{len(pulled)} pulled {'repository' if len(pulled) == 1 else 'repositories'}"] if pulled else []
    click.echo(f"{', '.join(counts)}, {size_text(total)}")


@click.command("gc", short_help="Remove what is unused, and files that crashes left.")
@click.option("--older-than", metavar="TIME", help="Remove entries not used for this time: 30d, 12h, 2w.")
@click.option("--keep-bytes", metavar="SIZE", help="Then remove the least recently used down to this size: 10GB.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
@_store_option
@json_option
def _gc(
    older_than: str | None,
    keep_bytes: str | None,
    dry_run: bool,  # noqa: FBT001 - click passes options by name
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Remove unused environments and repositories that were pulled, and files that crashes left.

    What stays is shown with the reason; what running servers use always stays. Without a limit, only files of crashes
    are removed. The exit code is 1 if something cannot be removed.
    """
    from naiad.environments.store.entries import short_digests
    from naiad.environments.store.pulled import PulledRepository
    from naiad.models.artifacts.garbage import collect_garbage
    from naiad_building.cli.env.tables import print_table

    _warn_of_closed_entries(store)
    collected = collect_garbage(
        store,
        older_than=None if older_than is None else parse_seconds(older_than),
        keep_bytes=None if keep_bytes is None else parse_size(keep_bytes),
        dry_run=dry_run,
    )
    if json:
        print_json({"store": store, "dry_run": dry_run, **collected.as_json()})
        return 1 if collected.failed else 0
    verb = "would remove" if dry_run else "removed"
    short = short_digests(each.entry.digest for each in (*collected.removed, *collected.stays))
    rows = [
        (short[each.entry.digest], each.entry.archive, size_text(each.entry.size), what, each.reason)
        for what, group in ((verb, collected.removed), ("stays", collected.stays))
        for each in group
    ]
    if rows:
        print_table(("Digest", "Archive", "Size", "What", "Why"), rows)
    pulled = sum(isinstance(removal.entry, PulledRepository) for removal in collected.removed)
    counts = [counted(len(collected.removed) - pulled, "environment")]
    counts += [f"{pulled} pulled {'repository' if pulled == 1 else 'repositories'}"] if pulled else []
    click.echo(
        f"{verb} {', '.join(counts)} and {counted(collected.leftovers, 'leftover')}, "
        f"{size_text(collected.freed_bytes)}; {collected.kept} {'stays' if collected.kept == 1 else 'stay'}"
    )
    return 1 if collected.failed else 0


def _remove_entry(store: Path, digest: str) -> bool:
    """Remove an entry; False if a process uses it.

    Raises:
        ExecutionEnvironmentError: If its files cannot be removed.
    """
    from naiad.core.errors import ExecutionEnvironmentError
    from naiad.environments.progress import LogReporter
    from naiad.environments.store.eviction import remove_entry
    from naiad.environments.store.leases import EntryLeases
    from naiad.environments.store.store import Store

    try:
        return remove_entry(Store(store, LogReporter()), EntryLeases(store), digest)
    except OSError as error:
        raise ExecutionEnvironmentError(
            f"cannot remove the environment {digest[:12]} from {store}: {error.strerror or error}; run this as a "
            "user who may write there"
        ) from error


@click.command("remove", short_help="Remove environments from the store.")
@click.argument("environments", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
@_store_option
@json_option
def _remove(
    environments: tuple[str, ...],
    dry_run: bool,  # noqa: FBT001 - click passes options by name
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Remove ENVIRONMENTS from the store, named by digest or archive; those of running servers are kept.

    A repository that was pulled into the store is removed in the same way, by its digest or reference.
    """
    from naiad.environments.store.entries import find_entry
    from naiad.environments.store.leases import list_models
    from naiad.environments.store.pulled import PulledRepository, find_pulled, remove_pulled

    results: list[dict[str, Any]] = []
    for entry in [find_pulled(store, name) or find_entry(store, name) for name in environments]:
        label = f"{entry.digest[:12]} of {entry.archive} ({size_text(entry.size)})"
        remove = remove_pulled if isinstance(entry, PulledRepository) else _remove_entry
        is_removed = not entry.in_use if dry_run else remove(store, entry.digest)
        results.append({"digest": entry.digest, "archive": entry.archive, "size": entry.size, "removed": is_removed})
        if is_removed and not json:
            click.echo(f"{'would remove' if dry_run else 'removed'} {label}")
        elif not is_removed:
            used = list_models(entry.models) or "an unknown model"
            click.echo(f"kept {label}: a running server uses it (last for {used}); unload its models first", err=True)
    if json:
        print_json({"store": store, "dry_run": dry_run, "environments": results})
    return 0 if all(result["removed"] for result in results) else 1


@click.command("diff", short_help="Compare two archives, folders or store entries.")
@click.argument("before")
@click.argument("after")
@_store_option
@json_option
def _diff(
    before: str,
    after: str,
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Show what AFTER has that BEFORE has not: packages, sizes and files.

    Each is an archive, a folder, or the digest of a store entry. The exit code is 1 if they differ.
    """
    from naiad.environments.progress import default_reporter
    from naiad_building.cli.env.tables import difference_text
    from naiad_building.comparison import compare_environments

    found = compare_environments(before, after, store, default_reporter())
    if json:
        print_json({"before": before, "after": after, "difference": found})
    else:
        click.echo(difference_text(found), nl=False)
    return 0 if found.is_empty else 1


@click.command("why", short_help="Show which packages require another one.")
@click.argument("package")
@click.argument("environment")
@_store_option
@json_option
def _why(
    package: str,
    environment: str,
    store: Path,
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Show which packages of ENVIRONMENT require PACKAGE, and which require these.

    ENVIRONMENT is an archive, a folder, or the digest of a store entry.
    """
    from naiad_building.cli.env.tables import dependants_text
    from naiad_building.comparison import find_dependants

    found = find_dependants(package, environment, store)
    if json:
        print_json({"environment": environment, "package": found})
    else:
        click.echo(dependants_text(found), nl=False)


@click.group("env", cls=OrderedGroup)
def env_group() -> None:
    """Build, pack, check and clean up execution environments."""


_COMMANDS: tuple[click.Command, ...] = (
    *(_build, _pack),
    *(_prefetch, _pin, _sign, _keygen),
    *(_inspect, _diff, _why, _verify, _list, _gc, _remove),
)
for _command in _COMMANDS:
    env_group.add_command(_command)
