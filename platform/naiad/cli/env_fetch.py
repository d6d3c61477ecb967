"""`naiad env prefetch | sign | keygen`: environments brought here before a server needs them, and signed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from naiad.cli.env_store import json_option, read_keys, store_option, trust_option
from naiad.config.model.environment_source import EnvironmentSource

__all__ = ["FETCHING_COMMANDS"]


@click.command("prefetch", short_help="Bring environments into the store before a start.")
@click.argument("environments", nargs=-1)
@click.option(
    "--model-repository", "repositories", multiple=True, help="Also all that its models need; repeat it for several."
)
@click.option(
    "--env-directory",
    "directories",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where env://NAME is; repeat it to search several.",
)
@trust_option
@click.option("--env-require-digest", "require_digest", is_flag=True, help="Refuse URIs without @sha256.")
@click.option("--accept-changed", is_flag=True, help="Take what a URI names now, also if it named something else.")
@store_option
@json_option
def _prefetch(
    environments: tuple[str, ...],
    repositories: tuple[str, ...],
    directories: tuple[Path, ...],
    trust: Path | None,
    require_digest: bool,  # noqa: FBT001 - click's way
    accept_changed: bool,  # noqa: FBT001
    store: Path,
    json: bool,  # noqa: FBT001
) -> int:
    """Bring ENVIRONMENTS into the store, so that servers start without waiting or network.

    Each is named as EXECUTION_ENV_PATH names it: a path, env://NAME, or a URI.
    """
    from naiad.cli.env_tables import as_json
    from naiad.environments.manager import EnvironmentManager
    from naiad.environments.policy import StorePolicy
    from naiad.errors import NaiadError

    policy = StorePolicy(trust=read_keys(trust), require_digest=require_digest)
    manager = EnvironmentManager(store, policy=policy)
    done: list[dict[str, str]] = []
    for source in dict.fromkeys(_sources(environments, repositories, directories, store)):
        uri = source.uri if isinstance(source, EnvironmentSource) else ""
        if accept_changed and uri:
            manager.accept(uri)
        try:
            ready = manager.prepare(source)
        except NaiadError as error:
            done.append({"environment": str(source), "error": error.message})
            continue
        done.append(
            {
                "environment": str(source),
                "digest": ready.digest or "",
                "prefix": str(ready.prefix),
                "python": ".".join(map(str, ready.version)),
            }
        )
    if json:
        click.echo(as_json(done))
    else:
        _say(done)
    return 1 if any("error" in one for one in done) else 0


def _sources(
    environments: tuple[str, ...], repositories: tuple[str, ...], directories: tuple[Path, ...], store: Path
) -> Iterator[Path | EnvironmentSource]:
    from naiad.cli.env_models import environments_of, server_options
    from naiad.resolution.environment_names import Places, locate
    from naiad.resolution.files import RealFiles

    places = Places(base=Path.cwd(), directories=tuple(directory.absolute() for directory in directories))
    for text in environments:
        yield locate(text, "naiad env prefetch", places, RealFiles())[0]
    if repositories:
        options = server_options(store, repositories, *(f"--env-directory={directory}" for directory in directories))
        for _, source in environments_of(options):
            yield source


def _say(done: list[dict[str, str]]) -> None:
    for one in done:
        if "error" in one:
            click.echo(one["error"], err=True)
        else:
            digest = f" sha256:{one['digest']}" if one["digest"] else ""
            click.echo(f"ready: {one['environment']}{digest}, Python {one['python']} in {one['prefix']}")
    if not done:
        click.echo("nothing to prefetch: name environments, or a --model-repository whose models have some")


@click.command("keygen", short_help="Make a key to sign archives with.")
@click.argument("private", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", default="", help="Name of the key, for messages; the file's unless given.")
def _keygen(private: Path, name: str) -> None:
    """Make a key to sign with in the file PRIVATE, and print what --env-trust needs of it."""
    from naiad.environments.archives.signatures import create_key

    public = create_key(private)
    click.echo(f'[[keys]]\nname = "{name or private.stem}"\npublic = "{public}"')
    click.echo(f"wrote the private key to {private}; append the lines above to the server's --env-trust file", err=True)


@click.command("sign", short_help="Sign an archive.")
@click.argument("archive", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--key", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The private key."
)
@store_option
def _sign(archive: Path, key: Path, store: Path) -> None:
    """Sign ARCHIVE: writes ARCHIVE.sig, which has to go wherever the archive goes."""
    from naiad.environments.archives.signatures import sign
    from naiad.environments.progress import default_reporter
    from naiad.environments.store.archive_digest import digest_of

    digest = digest_of(archive.absolute(), store / "index", reporter=default_reporter())
    written, key_id = sign(archive, digest, key)
    click.echo(f"signed {archive} (sha256:{digest}) with key {key_id}: {written}")


FETCHING_COMMANDS: tuple[click.Command, ...] = (_prefetch, _sign, _keygen)
"""The commands of this module, in the order in which the overview lists them."""
