"""Calls two slow models concurrently, so that both calls take as long as one."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Calls other models from a coroutine."""

    async def execute(self, requests):
        """A coroutine: while one request waits for its calls, the other requests make their calls."""
        return await asyncio.gather(*[self.answer(request) for request in requests])

    async def answer(self, request):
        """Make both calls, then wait for both."""
        operands = [pb_utils.get_input_tensor_by_name(request, name) for name in ("LEFT", "RIGHT")]
        answers = await asyncio.gather(
            *[
                pb_utils.InferenceRequest(
                    model_name=model, requested_output_names=["RESULT"], inputs=operands
                ).async_exec()
                for model in ("slow_add", "slow_multiply")
            ]
        )
        for answer in answers:
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
        # The outputs of the called models have other names than those of this model, so new tensors are created.
        total, product = (pb_utils.get_output_tensor_by_name(answer, "RESULT").as_numpy() for answer in answers)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total), pb_utils.Tensor("PRODUCT", product)])
