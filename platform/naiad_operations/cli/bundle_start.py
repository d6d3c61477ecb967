"""The program that `./run` of an unpacked bundle starts: its server, with the bundle's flags and those given now."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from naiad.core.errors import NaiadError
from naiad.core.standard_streams import open_standard_streams
from naiad.environments.archives.manifest import require_compatible_host
from naiad_operations.bundle.manifest import read_manifest

_PROGRAM = "run"


def main(arguments: Sequence[str]) -> int:
    """Serve the bundle in the folder `arguments[0]`, or run `doctor` on it; returns the exit code.

    `tritonserver` as the first of the other arguments runs that program, with the flags that follow and none of the
    bundle's: the entry point of Triton's images runs its arguments, and Kubernetes files rely on it.
    """
    open_standard_streams()
    folder = Path(arguments[0])
    try:
        manifest = read_manifest(folder)
        require_compatible_host(manifest.platform, manifest.glibc, where=f"the bundle {manifest.name}")
    except NaiadError as error:
        print(error.message, file=sys.stderr)
        return 1
    flags = manifest.flags_in(folder)
    # The bundle's flags come first: of a flag that is given twice, the last one counts.
    match list(arguments[1:]):
        case ["tritonserver" | "/opt/tritonserver/bin/tritonserver", *rest]:
            from naiad.cli.main import main_tritonserver

            return main_tritonserver(rest)
        case ["doctor", *rest]:
            from naiad_operations.cli.doctor import doctor

            return doctor([*flags, *rest])
        case rest:
            from naiad.cli.serve import serve

            return serve([*flags, *rest], _PROGRAM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
