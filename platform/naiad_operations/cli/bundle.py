"""`naiad bundle`: writes a server with its models into one archive or image, or checks the files of one."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.cli.command_line import CommandLine, is_directory, run_command, stray_argument
from naiad.cli.json_output import json_option, print_json
from naiad.cli.serve import with_default_build
from naiad.config.server.command_line import read_options
from naiad.config.server.env_build import EnvBuild
from naiad.config.server.flag import UsageError
from naiad.config.server.option_group import flags_of, own_option, own_path, own_switch
from naiad.core.errors import BundleError
from naiad.core.quantities import counted, size_text
from naiad.environments.archives.manifest import host_platform
from naiad.environments.progress import default_reporter, steps_shown
from naiad.environments.store.placement import spread
from naiad_operations.bundle.image import check_base, write_image
from naiad_operations.bundle.make import SUFFIXES, Bundle, make_bundle, write_bundle
from naiad_operations.bundle.manifest import RUN, find_damage, read_manifest

_PROGRAM = "naiad bundle --output=FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """The flags of `naiad bundle`."""

    archive: Path | None = own_path("output", "Archive to write: .tar.zst or .tar.gz.")
    layout: Path | None = own_path("oci", "Folder to write an OCI image layout into, instead of or beside the archive.")
    base: Path | None = own_path("base", "OCI image layout to build the image on; default: this machine's libraries.")
    name: str = own_option("name", "Name of the bundle; default: the archive's name.")
    packages: list[str] = own_option(
        "with", "Additional package of the server's interpreter to include.", repeatable=True
    )
    replaces: bool = own_switch("force", "Replace an existing archive or layout.")
    verified: Path | None = own_path("verify", "Check the files of this unpacked bundle; write nothing.")
    is_json: bool = json_option()


OWN_FLAGS = flags_of("Bundle (also takes all flags of the server; the bundle starts with them)", BundleOptions)


def bundle(arguments: Sequence[str]) -> int:
    """Make or check a bundle; returns the exit code."""
    return run_command(arguments, BundleOptions, OWN_FLAGS, _PROGRAM, "make the bundle", _bundle)


def _bundle(line: CommandLine, own: BundleOptions) -> int:
    if line.positional:
        raise stray_argument(line.positional[0], is_repository=is_directory(line.positional[0]))
    return _make(line, own) if own.verified is None else _verify(own.verified, is_json=own.is_json)


def _verify(place: Path, *, is_json: bool) -> int:
    differences = find_damage(place, read_manifest(place))
    if is_json:
        print_json({"bundle": place, "differences": differences})
        return 1 if differences else 0
    for difference in differences:
        print(difference)
    print(
        f"{place}: {f'{len(differences)} files differ from the manifest' if differences else 'all files are unchanged'}"
    )
    return 1 if differences else 0


@steps_shown()
def _make(line: CommandLine, own: BundleOptions) -> int:
    archive, layout = own.archive, own.layout
    outputs = [path for path in (archive, layout) if path is not None]
    if not outputs:
        raise UsageError("cannot make a bundle: no output is named; add --output=FILE.tar.zst, --oci=FOLDER or both")
    for path in outputs:
        if path.exists() and not own.replaces:
            raise BundleError(f"cannot write {path}: it exists; choose another name, or add --force")
    if layout is not None and own.base is not None:
        check_base(own.base, host_platform())
    name = own.name or _default_name(outputs[0])
    options = with_default_build(read_options(line.server, environ=os.environ), EnvBuild.ALLOWED)
    reporter = default_reporter()
    logging.getLogger("naiad").setLevel(logging.WARNING)
    # Scratch files are hundreds of megabytes, and are moved into place at the end: they need the output's file system.
    output_folder = outputs[0].absolute().parent
    output_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_folder, prefix=".naiad-bundle-") as scratch:
        spread(Path(scratch))
        digest = image = ""
        made = make_bundle(name, options, line.server, own.packages, Path(scratch), reporter)
        if archive is not None:
            digest = write_bundle(made, archive, reporter)
            if not own.is_json:
                print(f"wrote {archive} ({size_text(archive.stat().st_size)}), sha256:{digest}")
        if layout is not None:
            image = str(write_image(made, options, layout, base=own.base))
            if not own.is_json:
                print(f"wrote {layout}: image {image}")
        if own.is_json:
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
