"""`naiad bundle`: writes a server with its models into one archive or image, or checks the files of one."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from naiad.cli.command_line import CommandLine, is_directory, own_flags, run_command, stray_argument, with_help
from naiad.cli.json_output import JSON_FLAG, print_json
from naiad.cli.serve import with_default_build
from naiad.config.server.command_line import read_options
from naiad.config.server.env_build import EnvBuild
from naiad.config.server.flag import Flag, Kind, UsageError
from naiad.core.errors import BundleError
from naiad.core.quantities import counted, size_text
from naiad.environments.archives.manifest import host_platform
from naiad.environments.progress import default_reporter, steps_shown
from naiad.environments.store.placement import spread
from naiad_operations.bundle.image import check_base, write_image
from naiad_operations.bundle.make import SUFFIXES, Bundle, make_bundle, write_bundle
from naiad_operations.bundle.manifest import RUN, find_damage, read_manifest

_PROGRAM = "naiad bundle --output=FILE"
_GROUP = "Bundle (also takes all flags of the server; the bundle starts with them)"
_OUTPUT = Flag("output", "Archive to write: .tar.zst or .tar.gz.")
_OCI = Flag("oci", "Folder to write an OCI image layout into, instead of or beside the archive.")
_BASE = Flag("base", "OCI image layout to build the image on; default: this machine's libraries.")
_NAME = Flag("name", "Name of the bundle; default: the archive's name.")
_WITH = Flag("with", "Additional package of the server's interpreter to include.", repeatable=True)
_FORCE = Flag("force", "Replace an existing archive or layout.", Kind.NOTHING)
_VERIFY = Flag("verify", "Check the files of this unpacked bundle; write nothing.")
OWN_FLAGS = own_flags(_GROUP, _OUTPUT, _OCI, _BASE, _NAME, _WITH, _FORCE, _VERIFY, JSON_FLAG)
_SHOWN_FLAGS = with_help(OWN_FLAGS, _GROUP)


def bundle(arguments: Sequence[str]) -> int:
    """Make or check a bundle; returns the exit code."""
    return run_command(arguments, OWN_FLAGS, _SHOWN_FLAGS, _PROGRAM, "make the bundle", _bundle)


def _bundle(line: CommandLine) -> int:
    if line.positional:
        raise stray_argument(line.positional[0], is_repository=is_directory(line.positional[0]))
    return _verify(line) if line.has(_VERIFY) else _make(line)


def _verify(line: CommandLine) -> int:
    place = Path(line.last(_VERIFY))
    differences = find_damage(place, read_manifest(place))
    if line.has(JSON_FLAG):
        print_json({"bundle": place, "differences": differences})
        return 1 if differences else 0
    for difference in differences:
        print(difference)
    print(
        f"{place}: {f'{len(differences)} files differ from the manifest' if differences else 'all files are unchanged'}"
    )
    return 1 if differences else 0


@steps_shown()
def _make(line: CommandLine) -> int:
    archive, layout = (Path(line.last(flag)) if line.has(flag) else None for flag in (_OUTPUT, _OCI))
    outputs = [path for path in (archive, layout) if path is not None]
    if not outputs:
        raise UsageError("cannot make a bundle: no output is named; add --output=FILE.tar.zst, --oci=FOLDER or both")
    for path in outputs:
        if path.exists() and not line.has(_FORCE):
            raise BundleError(f"cannot write {path}: it exists; choose another name, or add --force")
    base = Path(line.last(_BASE)) if line.has(_BASE) else None
    if layout is not None and base is not None:
        check_base(base, host_platform())
    name = line.last(_NAME) or _default_name(outputs[0])
    options = with_default_build(read_options(line.server, environ=os.environ), EnvBuild.ALLOWED)
    reporter = default_reporter()
    logging.getLogger("naiad").setLevel(logging.WARNING)
    # Scratch files are hundreds of megabytes, and are moved into place at the end: they need the output's file system.
    output_folder = outputs[0].absolute().parent
    output_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_folder, prefix=".naiad-bundle-") as scratch:
        spread(Path(scratch))
        digest = image = ""
        made = make_bundle(name, options, line.server, line.all(_WITH), Path(scratch), reporter)
        if archive is not None:
            digest = write_bundle(made, archive, reporter)
            if not line.has(JSON_FLAG):
                print(f"wrote {archive} ({size_text(archive.stat().st_size)}), sha256:{digest}")
        if layout is not None:
            image = str(write_image(made, options, layout, base=base))
            if not line.has(JSON_FLAG):
                print(f"wrote {layout}: image {image}")
        if line.has(JSON_FLAG):
            _print_json(made, archive, digest, layout, image)
        else:
            _print_summary(made, archive, layout)
    return 0


def _print_json(made: Bundle, archive: Path | None, digest: str, layout: Path | None, image: str) -> None:
    manifest = made.manifest
    print_json(
        {
            "archive": archive,
            "size": None if archive is None else archive.stat().st_size,
            "digest": digest or None,
            "layout": layout,
            "image": image or None,
            "models": manifest.models,
            "environments": len(manifest.environments),
            "python": manifest.python,
            "platform": manifest.platform,
            "glibc": manifest.glibc,
            "notes": made.notes,
        }
    )


def _print_summary(made: Bundle, archive: Path | None, layout: Path | None) -> None:
    manifest = made.manifest
    glibc = f", glibc {manifest.glibc} or newer" if manifest.glibc else ""
    print(
        f"{counted(len(manifest.models), 'model')}, {counted(len(manifest.environments), 'environment')}, "
        f"Python {manifest.python}, "
        f"for {manifest.platform}{glibc}"
    )
    for note in made.notes:
        print(f"note: {note}")
    if layout is not None:
        print(f"next, to a registry:\n    skopeo copy oci:{layout} docker://REGISTRY/{manifest.name}:TAG")
    if archive is not None:
        print(f"next, on the other machine:\n    tar -xf {archive.name}\n    {manifest.name}/{RUN}")


def _default_name(path: Path) -> str:
    return next((path.name.removesuffix(suffix) for suffix in SUFFIXES if path.name.endswith(suffix)), path.name)
