"""Opening the store: the one among temporary files is created, for its user alone, and checked again.

Configuration only says where the store is (`config.server.store_location`). Another user may have made that folder
since.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from naiad.config.server.store_location import PRIVATE_MODE, find_store, private_store, require_private
from naiad.core.errors import OptionError


def open_store(store: Path) -> Path:
    """The folder of a store, which may be written to from now on; it need not exist.

    Raises:
        OptionError: If it is among temporary files, and its folder is not this user's alone; or if its path cannot be
            in PATH.
    """
    if os.pathsep in str(store):
        raise OptionError(
            f"the store of environments cannot be {store}: its path has a '{os.pathsep}', which separates the folders "
            "in PATH, so that models would run programs of other environments; name another directory with --env-store "
            "or NAIAD_STORE"
        )
    with contextlib.suppress(OSError):  # what cannot be created is reported by what writes there
        if store == private_store():
            with contextlib.suppress(FileExistsError):
                store.parent.mkdir(mode=PRIVATE_MODE)
            require_private(store.parent)
    return store


def open_store_of(named: str, environ: Mapping[str, str]) -> Path:
    """The store that `find_store` finds, opened, for programs without a log: the warning is printed to stderr."""
    location = find_store(named, environ)
    if location.warning:
        sys.stderr.write(f"warning: {location.warning}\n")
    return open_store(location.path)
