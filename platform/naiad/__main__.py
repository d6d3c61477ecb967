"""`python -m naiad`: the command `naiad` of this interpreter, whatever is on the PATH."""

import sys

from naiad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
