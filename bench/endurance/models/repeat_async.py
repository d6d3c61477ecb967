"""Sends the requested number of numbered responses from an event loop, in turn with all other requests."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*[self.answer(request, request.get_response_sender()) for request in requests])

    async def answer(self, request, sender):
        count, elements, tag = map(int, pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[:3])
        for number in range(count):
            if sender.is_cancelled():
                break
            values = np.full(elements, tag, np.int64)
            values[0] = number
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
            await asyncio.sleep(0)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
