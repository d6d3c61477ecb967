"""A link of a chain: two concurrent calls with `async_exec`; one passes negative values, to tell the results apart."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.next = config["parameters"]["next"]["string_value"]
        self.step = int(config["parameters"]["step"]["string_value"])
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.is_next_decoupled = config["parameters"]["next_is_decoupled"]["string_value"] == "1"

    async def execute(self, requests):
        responses = await asyncio.gather(*[self.answer(request) for request in requests])
        return None if self.is_decoupled else list(responses)

    async def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        there, back = await asyncio.gather(self.ask(values, request), self.ask(-values, request))
        step = there - values
        if (step != step[0]).any() or (back != step - values).any():
            raise ValueError(f"answers of two calls are mixed up: {values[:4]}, {there[:4]}, {back[:4]}")
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.add(there, self.step))])
        if not self.is_decoupled:
            return response
        sender = request.get_response_sender()
        sender.send(response)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    async def ask(self, values, request):
        call = pb_utils.InferenceRequest(
            model_name=self.next,
            request_id=request.request_id(),
            requested_output_names=["OUT"],
            inputs=[pb_utils.Tensor("IN", values)],
        )
        found = await call.async_exec(decoupled=self.is_next_decoupled)
        responses = [found] if not self.is_next_decoupled else [response async for response in found]
        for response in responses:
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
        outputs = [response for response in responses if response.output_tensors()]
        if len(outputs) != 1:
            raise ValueError(f"one answer was to come, {len(outputs)} came")
        return pb_utils.get_output_tensor_by_name(outputs[0], "OUT").as_numpy()
