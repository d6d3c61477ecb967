"""Starts the server of a bundle: `naiad serve --bundle=FILE`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from naiad.config.server.flag import Flag, format_flag
from naiad.config.server.store_location import store_path
from naiad.core.errors import NaiadError
from naiad.environments.progress import default_reporter
from naiad_operations.bundle.archive import unpack_bundle
from naiad_operations.bundle.manifest import RUN

__all__ = ["exec_bundle"]

_ENV_STORE = "env-store"


def exec_bundle(archive: Path, flags: Sequence[tuple[Flag, str]]) -> int:
    """Replace this process with the server of a bundle; returns the exit code only if that fails."""
    store = next((text for flag, text in reversed(flags) if flag.name == _ENV_STORE), "")
    try:
        program = unpack_bundle(archive, store_path(store, os.environ), default_reporter()) / RUN
        sys.stdout.flush()
        arguments = [format_flag(flag, text) for flag, text in flags]
        os.execv(program, [str(program), *arguments])  # noqa: S606 - the bundle's own program, by its full path
    except NaiadError as error:
        print(error.message, file=sys.stderr)
    except OSError as error:
        print(f"cannot start the bundle {archive}: {error}", file=sys.stderr)
    return 1
