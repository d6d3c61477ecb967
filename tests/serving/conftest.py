"""Lets tests import `bench`, which lies beside the package and is not installed with it."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
