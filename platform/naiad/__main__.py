"""`python -m naiad`: runs the command `naiad` with this interpreter, whichever one is first on the PATH."""

import sys

from naiad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
