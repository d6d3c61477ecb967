"""What models try out with tensors in GPU memory: each function answers a row of the check.

Copied beside the models that use it. Python 3.8 and numpy; frameworks are imported by the functions that use them.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import numpy as np

try:
    import triton_python_backend_utils as pb_utils
except ImportError:  # not in a model
    pb_utils = None


def versions() -> dict[str, str]:
    """The frameworks of this interpreter."""
    found = {"numpy": np.__version__}
    for name in ("torch", "jax", "cupy"):
        try:
            found[name] = __import__(name).__version__
        except Exception as error:
            found[name] = f"none ({type(error).__name__})"
    return found


def process_id() -> int:
    """That of the guest."""
    return os.getpid()


# -- frameworks -------------------------------------------------------------------------------------------------------


def on_device(framework: str, array: Any) -> Any:
    """A numpy array in GPU memory."""
    if framework == "torch":
        import torch

        return torch.from_numpy(array).cuda()
    if framework == "jax":
        import jax

        return jax.device_put(array, jax.devices("gpu")[0])
    if framework == "cupy":
        import cupy

        return cupy.asarray(array)
    from device_arrays import DeviceArray

    return DeviceArray.of(array)


def taken(framework: str, tensor: Any) -> Any:
    """A tensor of the server as an array of the framework in GPU memory."""
    if tensor.is_cpu():
        return on_device(framework, np.array(tensor.as_numpy()))
    if framework == "torch":
        import torch

        return torch.from_dlpack(tensor.to_dlpack())
    if framework == "jax":
        import jax

        return jax.dlpack.from_dlpack(tensor)
    if framework == "cupy":
        import cupy

        return cupy.from_dlpack(tensor)
    from device_arrays import DeviceArray

    return DeviceArray.from_dlpack(tensor)


def as_numpy(framework: str, array: Any) -> Any:
    """An array of the framework on the CPU."""
    if framework == "torch":
        return array.cpu().numpy()
    if framework == "jax":
        return np.asarray(array)
    if framework == "cupy":
        return array.get()
    return array.numpy()


def doubled(framework: str, tensor: Any, form: str) -> Any:
    """Twice *tensor* in GPU memory: as an object with `__dlpack__`, a capsule, or written on a stream of its own."""
    if framework == "torch" and form == "stream":
        import torch

        given = taken(framework, tensor)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)  # some 25 ms: who does not wait reads what was there before
            made = given * 2
            return torch.utils.dlpack.to_dlpack(made)
    if framework == "arrays":
        return on_device(framework, taken(framework, tensor).numpy() * 2)
    made = taken(framework, tensor) * 2
    if form == "part":
        made = on_device(framework, np.concatenate([np.zeros(5, np.float32), as_numpy(framework, made)]))[5:]
    return made if form != "capsule" else made.__dlpack__()


def same(array: Any, expected: Any) -> bool:
    """Whether both have the same elements."""
    return bool(np.array_equal(np.asarray(array), expected))


# -- rows -------------------------------------------------------------------------------------------------------------


def tensor_api(framework: str) -> dict[str, Any]:
    """What a tensor over the framework's array says and gives."""
    values = np.arange(3000, dtype=np.float32).reshape(3, 1000)
    array = on_device(framework, values)
    tensor = pb_utils.Tensor.from_dlpack("X", array)
    found: dict[str, Any] = {
        "is_cpu": tensor.is_cpu(),
        "device": list(map(int, tensor.__dlpack_device__())),
        "as_numpy": same(tensor.as_numpy(), values),
        "back by the tensor": same(as_numpy(framework, taken(framework, tensor)), values),
        "back by a capsule": same(pb_utils.Tensor.from_dlpack("Y", tensor.to_dlpack()).as_numpy(), values),
    }
    if framework == "torch":
        import torch

        half = pb_utils.Tensor.from_dlpack("X", torch.arange(4, dtype=torch.bfloat16, device="cuda"))
        found["bf16"] = torch.from_dlpack(half.to_dlpack()).tolist() == [0, 1, 2, 3]
    return found


def call(
    model: str, framework: str, size: int, count: int, where: str, start: str = "gpu", expected: str = ""
) -> dict[str, Any]:
    """Microseconds of calls to *model* with a tensor of *size* bytes: the first, the median; and where the output was.

    Args:
        model: It answers with its input.
        framework: Makes and takes the tensors.
        size: Bytes.
        count: Calls.
        where: "gpu", "cpu" or "": the preferred memory of the outputs.
        start: Where the input is.
        expected: Where the last output has to be, "GPU" or "CPU"; empty for anywhere.
    """
    values = np.random.default_rng(1).random(size // 4, np.float32)
    array = on_device(framework, values) if start == "gpu" else values
    times = []
    on_cpu = output = None
    for _ in range(count):
        began = time.perf_counter()
        tensor = pb_utils.Tensor.from_dlpack("IN", array) if start == "gpu" else pb_utils.Tensor("IN", array)
        response = _request(model, tensor, where).exec()
        if response.has_error():
            raise RuntimeError(response.error().message())
        given = pb_utils.get_output_tensor_by_name(response, "OUT")
        on_cpu = given.is_cpu()
        output = taken(framework, given) if start == "gpu" else given
        times.append((time.perf_counter() - began) * 1e6)
    result = as_numpy(framework, output) if start == "gpu" else output.as_numpy()
    later = sorted(times[1:]) or times
    place = "CPU" if on_cpu else "GPU"
    return {
        "first_us": round(times[0]),
        "p50_us": round(later[len(later) // 2]),
        "right": same(result, values) and expected in ("", place),
        "output": place,
    }


def _request(model: str, tensor: Any, where: str) -> Any:
    options = {}
    if where:
        kind = pb_utils.TRITONSERVER_MEMORY_GPU if where == "gpu" else pb_utils.TRITONSERVER_MEMORY_CPU
        options["preferred_memory"] = pb_utils.PreferredMemory(kind, 0)
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=[tensor], **options)


def call_async(model: str, framework: str, size: int, count: int) -> dict[str, Any]:
    """Calls at the same time by `async_exec`."""
    values = [np.full(size // 4, index, np.float32) for index in range(count)]

    async def run() -> list[Any]:
        tensors = [pb_utils.Tensor.from_dlpack("IN", on_device(framework, each)) for each in values]
        return await asyncio.gather(*(_request(model, each, "gpu").async_exec() for each in tensors))

    responses = asyncio.run(run())
    return {"right": [_is_right(framework, each, value) for each, value in zip(responses, values)]}


def call_decoupled(model: str, framework: str, size: int) -> dict[str, Any]:
    """A call with several responses."""
    values = np.arange(size // 4, dtype=np.float32)
    tensor = pb_utils.Tensor.from_dlpack("IN", on_device(framework, values))
    responses = [each for each in _request(model, tensor, "gpu").exec(decoupled=True) if each.output_tensors()]
    return {"count": len(responses), "right": [_is_right(framework, each, values) for each in responses]}


def _is_right(framework: str, response: Any, values: Any) -> Any:
    if response.has_error():
        return response.error().message()
    tensor = pb_utils.get_output_tensor_by_name(response, "OUT")
    return same(as_numpy(framework, taken(framework, tensor)), values)


def out_of_memory(framework: str) -> dict[str, Any]:
    """A model that asks for more memory than the device has gets an exception, and can go on."""
    try:
        if framework == "torch":
            import torch

            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
        else:
            on_device(framework, np.zeros(1)).__class__((1 << 42,), np.uint8)
        told = "nothing was raised"
    except Exception as error:
        told = f"{type(error).__name__}: {error}"[:100]
    return {"pid": os.getpid(), "told": told, "goes on": tensor_api(framework)["as_numpy"]}


def expandable_segments(size: int) -> dict[str, Any]:
    """Torch's allocations of the virtual memory API, which no other process can open."""
    import torch

    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        torch.cuda.empty_cache()
        values = np.arange(size // 4, dtype=np.float32)
        found = call("echo", "torch", size, 3, "gpu")
        tensor = pb_utils.Tensor.from_dlpack("X", torch.from_numpy(values).cuda())
        return {**found, "as_numpy": same(tensor.as_numpy(), values)}
    finally:
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")
