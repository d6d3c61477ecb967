"""Datatypes as numpy has them, in a table for who looks them up for each tensor.

Importing numpy takes a quarter of the processor time that a server needs until it answers. So what answers requests
imports it, and this, within the functions that need it, and `app` once all ports are open.
"""

from __future__ import annotations

import numpy as np

from naiad.protocol.datatypes import Datatype

__all__ = ["NUMPY_TYPES"]

NUMPY_TYPES: dict[Datatype, np.dtype[np.generic]] = {
    datatype: kind for datatype in Datatype if (kind := datatype.numpy) is not None
}
