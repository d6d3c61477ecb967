"""What the backends for saved models share, where guests find it."""

from __future__ import annotations

import sys
from pathlib import Path

SHARED = Path(__file__).parents[3] / "backends" / "saved_models"
if str(SHARED) not in sys.path:
    sys.path.append(str(SHARED))
