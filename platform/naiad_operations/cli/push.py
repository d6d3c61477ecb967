"""`naiad push`: sends a model repository with its backends and environments to a registry."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from naiad.cli.command_line import CommandLine, run_command, server_flag
from naiad.cli.json_output import json_option, print_json
from naiad.cli.serve import with_default_build
from naiad.config.server.command_line import read_options
from naiad.config.server.env_build import EnvBuild
from naiad.config.server.flag import UsageError
from naiad.config.server.flag_values import FlagValues
from naiad.config.server.option_group import flags_of, own_option, own_path
from naiad.core.errors import BundleError
from naiad.core.quantities import size_text
from naiad.environments.archives.manifest import host_platform
from naiad.environments.progress import default_reporter, steps_shown
from naiad.environments.store.opening import open_store
from naiad.environments.store.placement import spread
from naiad.sources.registry.client import open_registry
from naiad.sources.registry.references import parse_reference
from naiad_operations.bundle.image import check_base
from naiad_operations.bundle.records import PushRecords, StaleRecordError
from naiad_operations.bundle.repository_image import write_repository
from naiad_operations.bundle.sending import Transfer, send_image

_log = logging.getLogger("naiad.bundle")
_PROGRAM = "naiad push oci://REGISTRY/NAME:TAG MODEL_REPOSITORY"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """The flags of `naiad push`."""

    keys: tuple[Path, ...] = own_option(
        "key", "Private key to sign with (`naiad env keygen`).", repeatable=True, read=FlagValues.paths
    )
    base: Path | None = own_path("base", "OCI image layout to put the layers on; KServe's modelcars need a shell.")
    is_json: bool = json_option()


OWN_FLAGS = flags_of(
    "Push (also takes all flags of the server; give those that name backends and environments)", PushOptions
)


def push(arguments: Sequence[str]) -> int:
    """Send a repository to a registry; returns the exit code."""
    return run_command(arguments, PushOptions, OWN_FLAGS, _PROGRAM, "push", _push)


@steps_shown()
def _push(line: CommandLine, own: PushOptions) -> int:
    if len(line.positional) != 2:  # noqa: PLR2004 - the reference and the repository
        raise UsageError(f"cannot push: give a reference and a model repository: {_PROGRAM}")
    target, repository = line.positional
    reference = parse_reference(target)
    if reference.digest:
        raise BundleError(f"cannot push to {reference}: a digest is the result of a push; name a tag")
    if own.base is not None:
        check_base(own.base, host_platform())
    options = read_options([(server_flag("model-repository"), repository), *line.server], environ=os.environ)
    options = with_default_build(options, EnvBuild.ALLOWED)
    reporter = default_reporter()
    logging.getLogger("naiad").setLevel(logging.WARNING)
    store = open_store(options.environments.store.expanduser().absolute())
    client = open_registry(reference)
    folder = store / "artifacts" / "records"
    transfers: list[tuple[str, int, Transfer]] = []

    def report(name: str, size: int, transfer: Transfer) -> None:
        transfers.append((name, size, transfer))
        if not own.is_json:
            print(f"{name}: {size_text(size)}, {transfer.value}")

    def send(records: PushRecords) -> tuple[str, Sequence[str]]:
        with _scratch_folder(store / "artifacts" / "pushes") as scratch:
            image = write_repository(
                options, scratch, reporter, reference=reference, keys=own.keys, base=own.base, records=records
            )
            return send_image(client, image, store, reporter, report), image.notes

    try:
        digest, notes = send(PushRecords(folder))
    except StaleRecordError as error:
        _log.warning("%s; everything is packed again", error)
        transfers.clear()
        digest, notes = send(PushRecords(folder, is_read=False))
    if own.is_json:
        blobs = [{"name": name, "size": size, "transfer": transfer.value} for name, size, transfer in transfers]
        pushed = str(reference.pinned(digest))
        print_json({"reference": pushed, "digest": digest, "blobs": blobs, "notes": notes})
        return 0
    for note in notes:
        print(f"note: {note}")
    print(f"pushed {reference.pinned(digest)}")
    return 0


@contextmanager
def _scratch_folder(parent: Path) -> Iterator[Path]:
    """An empty folder in the store: layers are as large as the repository, and may not fit into the system's own.

    Its lock is held as long as it is used, so that the next push can remove what a killed one left.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for path in parent.glob("*.lock"):
        with suppress(TimeoutError), FileLock(path, timeout=0):
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            path.unlink(missing_ok=True)
    folder = parent / uuid.uuid4().hex
    lock = folder.with_suffix(".lock")
    with FileLock(lock):
        folder.mkdir()
        spread(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)
