"""Running totals of many sequences at once; the model keeps the state between requests."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Keeps state in an attribute: the server sends all requests of a sequence to one instance, in order."""

    def initialize(self, args):
        """Create the state; no sequence has begun."""
        self.states = {}  # total and count, by the sequence's id

    def execute(self, requests):
        """Process a batch; it holds at most one request of each sequence."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Add the amount to the sequence's total."""
        start, end, sequence, amount = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
            for name in ("START", "END", "ID", "AMOUNT")
        )
        # A sequence that exceeds its idle time ends without a request with the END flag. Its state stays here until a
        # sequence with the same id starts, so keep states small, or remove old ones from time to time.
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
