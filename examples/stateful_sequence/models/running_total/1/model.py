"""Running totals of many sequences at once: what came before is kept between requests."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The server sends all requests of a sequence to one instance, in order: state is an ordinary attribute."""

    def initialize(self, args):
        """No sequence has begun."""
        self.amounts = {}  # by the sequence's number

    def execute(self, requests):
        """A batch holds requests of different sequences, never two of one."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Add the amount to what the sequence has so far."""
        start, end, sequence, amount = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
            for name in ("START", "END", "ID", "AMOUNT")
        )
        if start:
            # Also when the number was used before: its end may have been lost with a client that died.
            self.amounts[sequence] = []
        amounts = self.amounts[sequence]
        amounts.append(amount)
        if end:
            del self.amounts[sequence]
        outputs = [
            pb_utils.Tensor("TOTAL", np.array([[sum(amounts)]], dtype=np.int32)),
            pb_utils.Tensor("COUNT", np.array([[len(amounts)]], dtype=np.int32)),
        ]
        return pb_utils.InferenceResponse(outputs)
