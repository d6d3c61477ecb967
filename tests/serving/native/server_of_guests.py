"""`tritonserver` whose native guests run under the interpreter of an environment: the first argument is its folder.

They run under the server's own, which may be any of these versions; this server runs under that of the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

from naiad.cli.main import main_tritonserver
from naiad.environments.manager import EnvironmentManager


def main() -> int:
    folder = Path(sys.argv.pop(1))
    EnvironmentManager._prepare_installed = lambda manager, *_: manager._prepare_directory(folder)
    return main_tritonserver()


if __name__ == "__main__":
    sys.exit(main())
