"""Archives of bundles, written whole or not at all."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from naiad.core.errors import BundleError
from naiad.environments.archives.archive_writer import write_archive
from naiad.environments.progress import ProgressMeter, ProgressReporter
from naiad_operations.bundle.make import Bundle

__all__ = ["SUFFIXES", "write_bundle"]

SUFFIXES = (".tar.zst", ".tar.gz")
"""Suffixes of archives, the default first."""


def write_bundle(bundle: Bundle, output: Path, reporter: ProgressReporter) -> None:
    """Write a bundle as an archive; the file appears only when it is complete."""
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
                write_archive(unfinished, suffix[1:], members, meter.advance)
            unfinished.replace(output)
    except OSError as error:
        raise BundleError(f"cannot write {output}: {error.strerror or error}") from error
