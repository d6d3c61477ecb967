"""Numpy types of the datatypes, as a table for code that looks one up for each tensor.

Importing numpy takes a quarter of the processor time that a server needs until it is ready. Frontends therefore import
numpy, and this module, in the functions that need them. `app` and `further_process` import both on a thread before the
first port is open.
"""

from __future__ import annotations

import numpy as np

from naiad.protocol.datatypes import Datatype

NUMPY_TYPES: dict[Datatype, np.dtype[np.generic]] = {
    datatype: kind for datatype in Datatype if (kind := datatype.numpy) is not None
}
