"""Tensors in GPU memory of clients, in requests of a process to the coordinator: regions by their names.

Both processes know the regions (`shared_regions`). The owner makes the request with its own ones, which stay in use as
long as guests use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from naiad.frontends.regions import RegionPart
from naiad.protocol.device_bytes import DeviceBytes, DeviceUse, as_data, device_bytes
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.server.processes.messages import RegionUse


def split_regions(request: InferRequest, use: DeviceUse) -> tuple[list[InputTensor], RegionUse]:
    """The inputs of a request, without bytes where they are in GPU memory, and the regions of its tensors there."""
    inputs, places = [], {}
    for position, tensor in enumerate(request.inputs):
        device = device_bytes(tensor.data)
        if device is not None:
            places[position] = _region_of(device)
        inputs.append(tensor if device is None else replace(tensor, data=b""))
    return inputs, RegionUse(places, {name: _region_of(place) for name, place in use.places.items()})


def _region_of(device: DeviceBytes) -> tuple[str, int, int]:
    part = device.owner
    assert isinstance(part, RegionPart)
    return part.region.name, part.offset, part.byte_size


def join_regions(
    inputs: Sequence[InputTensor], use: RegionUse, find_part: Callable[[str, int, int], RegionPart]
) -> DeviceUse:
    """The GPU memory of a request, whose *inputs* there get their data; NaiadError if a region was unregistered."""
    for position, place in use.inputs.items():
        inputs[position].data = as_data(find_part(*place).device_bytes())
    places = {name: find_part(*place).device_bytes() for name, place in use.outputs.items()}
    return DeviceUse(has_inputs=bool(use.inputs), places=places)
