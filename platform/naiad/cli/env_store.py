"""`naiad env list | inspect | verify | gc | remove`: what to do with environments that are packed or unpacked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from naiad.config.server.quantities import parse_seconds, parse_size, size_text

if TYPE_CHECKING:
    from naiad.environments.archives.signatures import TrustedKeys

__all__ = ["STORE_COMMANDS", "json_option", "read_keys", "store_option", "trust_option"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def store_option(command: _Command) -> _Command:
    """`--env-store`, as every command here has it."""
    text = "The store, instead of $NAIAD_STORE or the one in the user's cache."
    return click.option("--env-store", "store", default="", callback=_store, help=text)(command)


def json_option(command: _Command) -> _Command:
    """`--json`."""
    return click.option("--json", "json", is_flag=True, help="Print JSON.")(command)


def trust_option(command: _Command) -> _Command:
    """`--env-trust`."""
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option("--env-trust", "trust", type=kind, help="File of public keys, as the server's.")(command)


def read_keys(path: Path | None) -> TrustedKeys | None:
    """The trusted keys, if a file of them is named.

    Raises:
        ExecutionEnvironmentError: If they cannot be read.
    """
    from naiad.environments.archives.signatures import read_trusted_keys

    return None if path is None else read_trusted_keys(path)


def _store(_context: click.Context, _parameter: click.Parameter, text: str) -> Path:
    from naiad.config.server.store_location import store_path

    return store_path(text, os.environ)


@click.command("list")
@store_option
@json_option
def _list(store: Path, json: bool) -> None:  # noqa: FBT001 - click's way
    """List the environments that were unpacked for servers."""
    from naiad.cli.env_tables import ENTRY_HEADERS, as_json, entry_rows, print_table
    from naiad.environments.store.entries import read_entries

    entries = read_entries(store)
    if json:
        click.echo(as_json({"store": store, "environments": entries}))
    elif entries:
        print_table(ENTRY_HEADERS, entry_rows(entries, time.time()), title=f"environments in {store}")
        click.echo(f"{len(entries)} environments, {size_text(sum(entry.size for entry in entries))}")
    else:
        click.echo(f"no environments in {store}")


@click.command("inspect", short_help="Say what an archive, directory or digest is.")
@click.argument("environment")
@click.option(
    "--model-repository",
    "repositories",
    multiple=True,
    help="Say which models in it use the environment; repeat it for several.",
)
@store_option
@json_option
def _inspect(environment: str, repositories: tuple[str, ...], store: Path, json: bool) -> None:  # noqa: FBT001
    """Say what ENVIRONMENT is: an archive, a directory, or a digest in the store."""
    from naiad.cli.env_models import models_using, server_options
    from naiad.cli.env_tables import as_json, inspection_text
    from naiad.environments.archives.inspection import inspect_environment
    from naiad.environments.progress import default_reporter

    found = inspect_environment(environment, store, default_reporter())
    models = models_using(found, server_options(store, repositories) if repositories else None)
    if json:
        click.echo(as_json({"environment": found, "models": models}))
    else:
        click.echo(inspection_text(found, models), nl=False)


@click.command("verify", short_help="Check archives, or what is in the store.")
@click.argument("environments", nargs=-1)
@trust_option
@store_option
@json_option
def _verify(environments: tuple[str, ...], trust: Path | None, store: Path, json: bool) -> int:  # noqa: FBT001
    """Check ENVIRONMENTS: archives by unpacking and starting them, entries of the store file by file.

    Without arguments, everything in the store. The exit code is 1 if anything is wrong.
    """
    from naiad.cli.env_tables import VERDICT_HEADERS, as_json, print_table, verdict_rows
    from naiad.environments.progress import default_reporter
    from naiad.environments.store.verification import verify_archive, verify_entries

    archives = [Path(name) for name in environments if Path(name).is_file()]
    names = tuple(name for name in environments if not Path(name).is_file())
    keys = read_keys(trust)
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


@click.command("gc")
@click.option("--older-than", metavar="TIME", help="Remove what was not used for so long: 30d, 12h, 2w.")
@click.option("--keep-bytes", metavar="SIZE", help="Then remove the least recently used down to this size: 10GB.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@store_option
@json_option
def _gc(older_than: str | None, keep_bytes: str | None, dry_run: bool, store: Path, json: bool) -> None:  # noqa: FBT001
    """Remove environments that nobody uses, and what crashes left.

    What a running server uses stays. Without a limit, only leftovers go.
    """
    from naiad.cli.env_tables import as_json, print_table
    from naiad.environments.store.eviction import collect_garbage

    done = collect_garbage(
        store,
        older_than=None if older_than is None else parse_seconds(older_than),
        keep_bytes=None if keep_bytes is None else parse_size(keep_bytes),
        dry_run=dry_run,
    )
    if json:
        click.echo(as_json({"store": store, "dry_run": dry_run, **done.as_json()}))
        return
    rows = [(one.entry.archive, size_text(one.entry.size), one.reason, one.entry.digest[:12]) for one in done.removed]
    if rows:
        print_table(("Archive", "Size", "Why", "Digest"), rows)
    freed = size_text(sum(one.entry.size for one in done.removed) + done.leftover_bytes)
    verb = "would remove" if dry_run else "removed"
    click.echo(f"{verb} {len(rows)} environments and {done.leftovers} leftovers, {freed}; {done.kept} stay")


@click.command("remove", short_help="Remove environments from the store.")
@click.argument("environments", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@store_option
def _remove(environments: tuple[str, ...], dry_run: bool, store: Path) -> int:  # noqa: FBT001
    """Remove ENVIRONMENTS from the store, by digest or by archive; none that a running server uses."""
    from naiad.environments.progress import LogReporter
    from naiad.environments.store.entries import find_entry
    from naiad.environments.store.eviction import remove_entry
    from naiad.environments.store.leases import EntryLeases
    from naiad.environments.store.store import Store

    code = 0
    for entry in [find_entry(store, name) for name in environments]:
        what = f"{entry.digest[:12]} of {entry.archive} ({size_text(entry.size)})"
        if dry_run and not entry.in_use:
            click.echo(f"would remove {what}")
        elif not dry_run and remove_entry(Store(store, LogReporter()), EntryLeases(store), entry.digest):
            click.echo(f"removed {what}")
        else:
            code = 1
            used = ", ".join(using.model for using in entry.models) or "a model nobody noted"
            click.echo(f"kept {what}: a running server uses it (last for {used}); unload its models first", err=True)
    return code


STORE_COMMANDS: tuple[click.Command, ...] = (_inspect, _verify, _list, _gc, _remove)
"""The commands of this module, in the order in which the overview lists them."""
