"""Running totals of many sequences at once: what came before is kept between requests."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The server sends all requests of a sequence to one instance, in order: state is an ordinary attribute."""

    def initialize(self, args):
        """No sequence has begun."""
        self.states = {}  # total and count by the sequence's number

    def execute(self, requests):
        """A batch holds requests of different sequences, never two of one."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Add the amount to what the sequence has so far."""
        start, end, sequence, amount = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
            for name in ("START", "END", "ID", "AMOUNT")
        )
        # A sequence that falls silent ends without a request that says so. What it left is kept until its number begins
        # anew, so keep little, or look for what is old from time to time.
        total, count = (0, 0) if start else self.states[sequence]
        total, count = total + amount, count + 1
        if end:
            self.states.pop(sequence, None)
        else:
            self.states[sequence] = total, count
        outputs = [
            pb_utils.Tensor("TOTAL", np.array([[total]], dtype=np.int32)),
            pb_utils.Tensor("COUNT", np.array([[count]], dtype=np.int32)),
        ]
        return pb_utils.InferenceResponse(outputs)
