"""Serve two models in this process and call them, without a port or a client library.

Written for Triton's `tritonserver` package; only the import is another.
"""

import asyncio
import sys
from pathlib import Path

import numpy as np

import naiad as tritonserver

EXAMPLES = Path(__file__).resolve().parents[1]


async def stream(model):
    """Print the responses of a decoupled model as they arrive."""
    inputs = {"VALUES": np.array([4, 2], np.int32), "PAUSE_MS": np.array([1], np.uint32)}
    async for response in model.async_infer(inputs=inputs, request_id="stream"):
        values = {name: int(np.from_dlpack(tensor)[0]) for name, tensor in response.outputs.items()}
        print("response  ", values or "none, but the end")


def main():
    server = tritonserver.Server(
        model_repository=[str(EXAMPLES / name / "models") for name in ("add_sub", "decoupled_repeat")],
        model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
        startup_models=["add_sub"],
    )
    server.start(wait_until_ready=True)
    print("models    ", sorted(name for name, _ in server.models(exclude_not_ready=True)))

    left, right = np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40], np.float32)
    (response,) = server.model("add_sub").infer(inputs={"LEFT": left, "RIGHT": right})
    total = np.from_dlpack(response.outputs["SUM"])
    print("sum       ", total.tolist())

    model = server.load("repeat")
    asyncio.run(stream(model))
    try:
        model.infer(inputs={"VALUES": left})
    except tritonserver.InvalidArgumentError as error:
        print("refused   ", error)
    server.unload(model, wait_until_unloaded=True)
    print("models    ", sorted(name for name, _ in server.models(exclude_not_ready=True)))
    server.stop()
    if not np.array_equal(total, left + right):
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
