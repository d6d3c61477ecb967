"""What naiad's extras bring, for messages that say what to install."""

from __future__ import annotations

import shlex
from importlib import metadata

from packaging.requirements import Requirement


def install_command(extra: str) -> str:
    """The command that installs what an extra of naiad needs: these packages by name, as naiad may be on no index."""
    try:
        found = [Requirement(text) for text in metadata.requires("naiad") or ()]
    except metadata.PackageNotFoundError:  # its files were copied
        found = []
    wanted = []
    for each in found:
        marker, each.marker = each.marker, None
        if marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra}):
            wanted.append(str(each))
    return f"pip install {shlex.join(wanted or [f'naiad[{extra}]'])}"
