"""Which methods there are: by their paths, what answers their calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from naiad.frontends.grpc.call_head import CallHead
from naiad.frontends.grpc.calls import ControlCall, Serving
from naiad.frontends.http2.stream import Receiver, Stream
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.kserve_grpc.infer_call import InferCall
from naiad.frontends.kserve_grpc.service import InferenceService
from naiad.frontends.kserve_grpc.stream_call import StreamCall

_WIRE_NAMES = {"GRPCInferenceService": "inference.GRPCInferenceService", "Health": "grpc.health.v1.Health"}
"""Names of the services on the wire, by their names in service.proto."""


class Method(NamedTuple):
    """One method.

    Attributes:
        name: Its name.
        begin: Begins to answer a call of it.
    """

    name: str
    begin: Callable[[Stream, CallHead[Any], Serving], Receiver]


def methods_of(service: InferenceService) -> dict[bytes, Method]:
    """All methods by their paths."""
    return {
        f"/{wire_name}/{method.name}".encode(): _method(service, method.name, method.input_type.name)
        for name, wire_name in _WIRE_NAMES.items()
        for method in pb.DESCRIPTOR.services_by_name[name].methods
    }


def _method(service: InferenceService, name: str, request_type: str) -> Method:
    if name == "ModelInfer":
        return Method(name, InferCall)
    if name == "ModelStreamInfer":
        return Method(name, StreamCall)
    function = getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
    return Method(name, partial(ControlCall, request_type=getattr(pb, request_type), function=function))
