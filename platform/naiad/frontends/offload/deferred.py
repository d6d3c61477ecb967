"""Placeholders in the offload process for objects of the host, and a request on its way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NoReturn, cast

from naiad.core.errors import InvalidRequestError
from naiad.frontends.offload.messages import Deferred, long_buffer
from naiad.frontends.regions import RegionPart, TensorRegions
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InputTensor
from naiad.protocol.strings import scan_strings

_MAX_PARAMETERS = 4096  # parameters of a long request: each is an object in the host


class DeferredBody:
    """A placeholder for a body; this process has only a part of it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> Buffer:
        return cast("Buffer", Deferred(("body", part.start, part.stop)))


class DeferredRegions:
    """A placeholder for the regions, which only the host has."""

    def part(self, name: str, offset: int, byte_size: int) -> RegionPart:
        """A placeholder for the part of a region that a tensor is in."""
        return cast("RegionPart", Deferred(("region", name, offset, byte_size)))

    def check(self, name: str) -> None:
        """Leave the check to the host."""


def deferred_values(count: int) -> list[Buffer]:
    """Placeholders for *count* buffers that the host has."""
    return [cast("Buffer", Deferred(("value", index))) for index in range(count)]


def prepare(request: InferRequest) -> InferRequest:
    """The request as it is sent to the host: elements of BYTES are counted, long buffers are not copied again."""
    check_parameter_count(len(request.parameters))
    return replace(
        request,
        inputs=[_prepared(tensor) for tensor in request.inputs],
        parameters=dict(request.parameters),
        propagated={},
    )


def check_parameter_count(count: int) -> None:
    """Reject a request with too many parameters."""
    if count > _MAX_PARAMETERS:
        raise InvalidRequestError(
            f"cannot use the request: it has {count} parameters; at most {_MAX_PARAMETERS} are supported"
        )


def resolver(
    regions: TensorRegions, *, body: Buffer = b"", values: Sequence[Buffer] = ()
) -> Callable[[tuple[Any, ...]], Any]:
    """A function that returns, in the host, the object for the key of a `Deferred`."""
    kinds: Mapping[str, Callable[..., Any]] = {
        "body": lambda start, end: memoryview(body)[start:end],
        "value": values.__getitem__,
        "region": regions.part,
    }
    return lambda key: kinds[key[0]](*key[1:])


def no_deferred(key: tuple[Any, ...]) -> NoReturn:
    """The resolver of results in which nothing is deferred."""
    raise ValueError(f"unexpected reference {key!r}")


def _prepared(tensor: InputTensor) -> InputTensor:
    data: object = tensor.data
    if isinstance(data, Deferred):
        return tensor
    strings = scan_strings(tensor.data, prod(tensor.shape)) if tensor.datatype is Datatype.BYTES else None
    return replace(tensor, data=long_buffer(tensor.data), strings=strings)
