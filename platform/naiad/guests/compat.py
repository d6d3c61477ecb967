"""Names of `typing` that Python 3.10 does not have."""

import sys

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

__all__ = ["assert_never"]
