"""`naiad serve --bundle=FILE`: the server that an archive holds, in the place of this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from naiad.bundle.program import RUN
from naiad.bundle.unpacking import unpacked
from naiad.config.server.store_location import store_path
from naiad.environments.progress import default_reporter
from naiad.errors import NaiadError

__all__ = ["start"]


def start(archive: Path, arguments: Sequence[str], store: str) -> int:
    """Start the server of a bundle in the place of this process; the exit code if that fails."""
    try:
        folder = unpacked(archive, store_path(store, os.environ), default_reporter())
        program = folder / RUN
        sys.stdout.flush()
        os.execv(program, [str(program), *arguments])  # noqa: S606 - the bundle's own program, by its full path
    except NaiadError as error:
        print(error.message, file=sys.stderr)
    except OSError as error:
        print(f"cannot start {archive}: {error}", file=sys.stderr)
    return 1
