import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The same numbers in every layout of memory."""

    def execute(self, requests):
        base = np.arange(12, dtype=np.float32).reshape(3, 4)
        wide = np.zeros((6, 8), np.float32)
        wide[::2, ::2] = base
        layouts = {
            "PLAIN": base,
            "FORTRAN": np.asfortranarray(base),
            "SLICED": wide[::2, ::2],
            "REVERSED": base[::-1, ::-1][::-1, ::-1],
            "SWAPPED": base.astype(">f4"),
            "BROADCAST": np.broadcast_to(np.float32(7), (3, 4)),
            "SCALAR": np.array(5, np.float32),
            "EMPTY": np.zeros((0, 4), np.float32),
        }
        return [pb_utils.InferenceResponse([pb_utils.Tensor(k, v) for k, v in layouts.items()]) for _ in requests]
