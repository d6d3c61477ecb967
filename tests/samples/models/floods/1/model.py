"""Answers [responses, elements] with that many responses of that many elements, as fast as it may, and says how far it is."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        progress = Path(pb_utils.get_model_dir(), "progress")
        for request in requests:
            sender = request.get_response_sender()
            responses, elements = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().astype(int)
            for number in range(responses):
                output = pb_utils.Tensor("OUT", np.full(elements, number, np.float32))
                sender.send(pb_utils.InferenceResponse([output]))
                progress.write_text(str(number + 1))
                if sender.is_cancelled():
                    break
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            progress.write_text("cancelled" if sender.is_cancelled() else "done")
