"""`NamedTuple` that may be generic: Python 3.10's own may not."""

import sys

if sys.version_info >= (3, 11):
    from typing import NamedTuple
else:
    from typing_extensions import NamedTuple

__all__ = ["NamedTuple"]
