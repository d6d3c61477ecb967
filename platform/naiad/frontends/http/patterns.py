"""Inference requests recognised by their JSON.

Most clients send the same JSON over and over, with other tensor bytes behind it. The first such request is parsed and
checked; those after it cost a look-up and a slice per tensor. Only requests whose tensors are all binary, with no wish
for single outputs, are recognised, and only short JSON, so that unique ids or data in JSON cannot fill the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from naiad.frontends.http.infer_request import NO_REGIONS, parse_infer
from naiad.frontends.http.outputs import OutputPlan
from naiad.frontends.regions import ClientRegions
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InputTensor, RequestPattern

_KEPT = 1024
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class _Known:
    """A request seen before: all of it but the bytes of its tensors.

    Attributes:
        request: The request, without inputs.
        inputs: Name, datatype, shape, start and end behind the JSON of each input.
        size: Bytes behind the JSON.
        plan: How the client wants its outputs.
    """

    request: InferRequest
    inputs: tuple[tuple[str, Datatype, tuple[int, ...], int, int], ...]
    size: int
    plan: OutputPlan


class InferPatterns:
    """Parses requests for one model and version."""

    def __init__(self, model_name: str, version: int, max_json: int, regions: ClientRegions = NO_REGIONS) -> None:
        self._model_name = model_name
        self._version = version
        self._max_json = max_json
        self._regions = regions
        self._known: dict[bytes, _Known] = {}

    def parse(self, body: Buffer, header_length: bytes | None) -> tuple[InferRequest, OutputPlan]:
        """See `infer_request.parse_infer`."""
        size = _size(header_length)
        if size <= 0:
            return parse_infer(body, header_length, self._model_name, self._version, self._max_json, self._regions)
        text = bytes(body[:size])
        known = self._known.get(text)
        if known is not None and len(body) == size + known.size:
            return _repeat(known, body, size), known.plan
        request, plan = parse_infer(body, header_length, self._model_name, self._version, self._max_json, self._regions)
        self._remember(text, request, plan, len(body) - size)
        return request, plan

    def _remember(self, text: bytes, request: InferRequest, plan: OutputPlan, size: int) -> None:
        if sum([len(tensor.data) for tensor in request.inputs]) != size:
            return  # some of the data is in the JSON, or in a region
        if plan.wishes is not None:
            return  # regions come and go, and so do labels
        inputs = []
        start = 0
        for tensor in request.inputs:
            end = start + len(tensor.data)
            inputs.append((tensor.name, tensor.datatype, tensor.shape, start, end))
            start = end
        request.pattern = RequestPattern()
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[text] = _Known(replace(request, inputs=()), tuple(inputs), size, plan)


def _size(header_length: bytes | None) -> int:
    """The length of the JSON where it is worth recognising, else 0."""
    if header_length is None or not header_length.isdigit() or len(header_length) > len(str(_LONGEST)):
        return 0
    size = int(header_length)
    return size if size <= _LONGEST else 0


def _repeat(known: _Known, body: Buffer, start: int) -> InferRequest:
    view = memoryview(body)[start:]
    like = known.request
    return InferRequest(
        like.model_name,
        like.model_version,
        [InputTensor(name, datatype, shape, view[begin:end]) for name, datatype, shape, begin, end in known.inputs],
        like.request_id,
        like.requested_outputs,
        like.parameters,
        like.correlation_id,
        like.flags,
        like.priority,
        like.timeout_us,
        like.pattern,
    )
