"""`naiad env pin`: writes the digests of a repository's remote environments beside its models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.config.model.environment_pins import PINS_FILE, format_pins, parse_pins
from naiad.config.model.environment_source import EnvironmentSource, redact
from naiad.config.server.options import ServerOptions
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.manager import EnvironmentManager
from naiad_building.cli.env.models import environments_of, server_options


@dataclass(frozen=True, slots=True)
class PinnedUri:
    """The digest of one URI, and the one that was pinned before; empty for none."""

    uri: str
    digest: str
    before: str


def pin_repository(
    repository: Path, manager: EnvironmentManager, *, update: bool, directories: Sequence[Path] = ()
) -> list[PinnedUri]:
    """Write the digests of URIs that a repository's models name without one; *update* renews those written.

    *directories* are the folders of `env://` names, which have no digest here.
    """
    file = repository / PINS_FILE
    known = parse_pins(file.read_text(encoding="utf-8"), str(file)) if file.exists() else {}
    flags = [f"--env-directory={directory}" for directory in directories]
    pins = []
    for uri in sorted(set(_unpinned(server_options(manager.store_root, [str(repository)], *flags), known))):
        before = known.get(uri, "")
        digest = before
        if update or not before:
            # What the store knows of the URI may be older than what it names now.
            manager.accept_changed(uri)
            digest = manager.prepare(EnvironmentSource(uri=uri)).digest or ""
        pins.append(PinnedUri(uri, digest, before))
    _write(file, {pin.uri: pin.digest for pin in pins})
    return pins


def _unpinned(options: ServerOptions, known: dict[str, str]) -> Iterator[str]:
    """The URIs that models name without `@sha256`."""
    for _, source, *_ in environments_of(options):
        is_remote = isinstance(source, EnvironmentSource) and source.uri and not source.is_mutable
        if isinstance(source, EnvironmentSource) and is_remote and source.digest in {"", known.get(source.uri)}:
            yield source.uri


def _write(file: Path, pins: dict[str, str]) -> None:
    unfinished = file.with_name(f".{file.name}.new")
    try:
        if not pins:
            file.unlink(missing_ok=True)
            return
        unfinished.write_text(format_pins(pins), encoding="utf-8")
        unfinished.replace(file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ExecutionEnvironmentError(f"cannot write {redact(str(file))}: {error.strerror or error}") from error
