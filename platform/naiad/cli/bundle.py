"""`naiad bundle`: a server with its models in one archive or image."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from naiad.bundle.make import Bundle, Wishes, make
from naiad.bundle.oci import check_base, write_image
from naiad.bundle.program import RUN
from naiad.bundle.unpacking import SUFFIXES, verify, write_bundle
from naiad.cli.usage import report, usage, with_help
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import Flag, Kind, UsageError
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.options import SERVER_FLAGS
from naiad.config.server.quantities import size_text
from naiad.config.server.store_location import store_path
from naiad.environments.archives.manifest import host_platform
from naiad.environments.progress import default_reporter
from naiad.environments.store.archive_digest import digest_of
from naiad.environments.store.placement import spread
from naiad.errors import BundleError, NaiadError

__all__ = ["bundle"]

_PROGRAM = "naiad bundle --output=FILE"
_GROUP = "Bundle (all flags of the server work, too: it will be started with those)"
_OUTPUT = Flag("output", Kind.STRING, "", "The archive to write: .tar.zst or .tar.gz.")
_OCI = Flag("oci", Kind.STRING, "", "Folder to write an OCI image layout into, instead of or beside the archive.")
_BASE = Flag("base", Kind.STRING, "", "OCI image layout to build the image on; else libraries of this machine.")
_NAME = Flag("name", Kind.STRING, "", "Name of the bundle; that of the archive unless given.")
_PLATFORM = Flag("platform", Kind.STRING, "", "Fail unless the bundle is for this, such as linux-x86_64.")
_GLIBC = Flag("glibc", Kind.STRING, "", "Fail unless all of it runs with a glibc as old as this, such as 2.28.")
_WITH = Flag("with", Kind.STRING, "", "A package of this server to take along.", repeatable=True)
_FORCE = Flag("force", Kind.NOTHING, "", "Replace an existing archive or layout.")
_VERIFY = Flag("verify", Kind.STRING, "", "Make nothing; check the files of this bundle.")
_OWN_FLAGS = tuple(
    replace(flag, group=_GROUP, own=True)
    for flag in (_OUTPUT, _OCI, _BASE, _NAME, _PLATFORM, _GLIBC, _WITH, _FORCE, _VERIFY)
)


def bundle(arguments: Sequence[str]) -> int:
    """Make a bundle, or check one; the exit code."""
    try:
        found, others = split_arguments(arguments, (*_OWN_FLAGS, *SERVER_FLAGS), _PROGRAM)
        if any(flag.name == HELP for flag, _ in found):
            print(usage(_PROGRAM, with_help(_OWN_FLAGS, _GROUP)), end="")
            return 0
        if others:
            raise UsageError(f"Unexpected argument: {others[0]}")
        own = {flag.name for flag in _OWN_FLAGS}
        asked: dict[str, list[str]] = {}
        for flag, text in found:
            asked.setdefault(flag.name, []).append(text)
        flags = [(flag, text) for flag, text in found if flag.name not in own]
        if _VERIFY.name in asked:
            return _verify(Path(asked[_VERIFY.name][-1]), flags)
        return _make(asked, flags)
    except UsageError as error:
        return report(error, _PROGRAM, with_help(_OWN_FLAGS, _GROUP))
    except NaiadError as error:
        print(error.message, file=sys.stderr)
    except OSError as error:
        print(f"cannot make the bundle: {error}", file=sys.stderr)
    return 1


def _verify(place: Path, flags: Sequence[tuple[Flag, str]]) -> int:
    store = next((text for flag, text in flags if flag.name == "env-store"), "")
    wrong = verify(place, store_path(store, os.environ), default_reporter())
    for line in wrong:
        print(line)
    print(f"{place}: {f'{len(wrong)} files are not as they were made' if wrong else 'as it was made'}")
    return 1 if wrong else 0


def _make(asked: dict[str, list[str]], flags: list[tuple[Flag, str]]) -> int:
    archive, layout = (Path(asked[one.name][-1]) if one.name in asked else None for one in (_OUTPUT, _OCI))
    if archive is None and layout is None:
        raise UsageError("say where to: --output=FILE.tar.zst, or --oci=FOLDER, or both")
    for path in (archive, layout):
        if path is not None and path.exists() and _FORCE.name not in asked:
            raise BundleError(f"{path} is there already; name another, or give --force")
    base = Path(asked[_BASE.name][-1]) if _BASE.name in asked else None
    if layout is not None and base is not None:
        check_base(base, host_platform())
    wishes = Wishes(
        name=asked[_NAME.name][-1] if _NAME.name in asked else _default_name(archive or layout or Path()),
        platform=asked.get(_PLATFORM.name, [""])[-1],
        glibc=asked.get(_GLIBC.name, [""])[-1],
        packages=tuple(asked.get(_WITH.name, ())),
    )
    options = read_options(flags, environ=os.environ)
    reporter = default_reporter()
    logging.getLogger("naiad").setLevel(logging.WARNING)
    beside = (archive or layout or Path()).absolute().parent
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=beside, prefix=".naiad-bundle-") as scratch:
        spread(Path(scratch))
        made = make(options, flags, wishes, Path(scratch), reporter)
        if archive is not None:
            write_bundle(made, archive, reporter)
            digest = digest_of(archive.absolute(), Path(scratch, "index"), reporter=reporter)
            print(f"wrote {archive} ({size_text(archive.stat().st_size)}), sha256:{digest}")
        if layout is not None:
            print(f"wrote {layout}: image {write_image(made, options, layout, base=base)}")
        _say(made, archive)
    return 0


def _say(made: Bundle, archive: Path | None) -> None:
    said = made.manifest
    glibc = f", glibc {said.glibc} or newer" if said.glibc else ""
    print(
        f"{len(said.models)} models, {len(said.environments)} environments, Python {said.python}, "
        f"for {said.platform}{glibc}"
    )
    for note in made.notes:
        print(f"note: {note}")
    if archive is not None:
        print(f"next, on the other machine:\n    tar -xf {archive.name}\n    {said.name}/{RUN}")


def _default_name(path: Path) -> str:
    return next((path.name.removesuffix(suffix) for suffix in SUFFIXES if path.name.endswith(suffix)), path.name)
