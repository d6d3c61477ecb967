"""Inference requests recognised by their JSON.

Most clients send the same JSON over and over, with other tensor bytes behind it. The first such request is parsed and
checked; those after it cost a look-up and a slice per tensor. Only requests whose tensors are all binary, with no wish
for single outputs, are recognised, and only short JSON, so that data in JSON cannot fill the memory. What differs where
clients number their requests is the id at the beginning, which is cut off first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from naiad_stub.memo import Memo

from naiad.frontends.kserve_http.infer_request import NO_REGIONS, parse_infer
from naiad.frontends.kserve_http.outputs import OutputPlan
from naiad.frontends.regions import ClientRegions
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InputTensor

_KEPT = 1024
_LONGEST = 4096
# An id that stands for itself: nothing in it is escaped. What follows must begin with a quote, as no whole JSON does.
_ID = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*"([ !#-\[\]-~]{1,256})"[ \t\r\n]*,[ \t\r\n]*(?=")')


@dataclass(frozen=True, slots=True)
class _Known:
    """A request seen before: all of it but the bytes of its tensors.

    Attributes:
        request: The request, without inputs; its id is of the first one.
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
        self._known: Memo[bytes, _Known] = Memo(_KEPT)

    def parse(self, body: Buffer, header_length: bytes | None) -> tuple[InferRequest, OutputPlan]:
        """See `infer_request.parse_infer`."""
        size = _size(header_length)
        if size <= 0:
            return parse_infer(body, header_length, self._model_name, self._version, self._max_json, self._regions)
        text = bytes(body[:size])
        named = _ID.match(text)
        key = text if named is None else text[named.end() :]
        known = self._known.get(key)
        if known is not None and len(body) == size + known.size:
            request_id = known.request.request_id if named is None else named[1].decode("ascii")
            return _repeat(known, body, size, request_id), known.plan
        request, plan = parse_infer(body, header_length, self._model_name, self._version, self._max_json, self._regions)
        # The last of two ids counts, however it is written.
        if named is None or not (b'"id"' in key or b"\\" in key):
            self._remember(key, request, plan, len(body) - size)
        return request, plan

    def _remember(self, key: bytes, request: InferRequest, plan: OutputPlan, size: int) -> None:
        if sum([len(tensor.data) for tensor in request.inputs]) != size:
            return  # some of the data is in the JSON, or in a region
        if plan.requested is not None:
            return  # regions come and go, and so do labels
        inputs = []
        start = 0
        for tensor in request.inputs:
            end = start + len(tensor.data)
            inputs.append((tensor.name, tensor.datatype, tensor.shape, start, end))
            start = end
        request.layout_key = object()
        self._known[key] = _Known(replace(request, inputs=()), tuple(inputs), size, plan)


def _size(header_length: bytes | None) -> int:
    """The length of the JSON where it is worth recognising, else 0."""
    if header_length is None or not header_length.isdigit() or len(header_length) > len(str(_LONGEST)):
        return 0
    size = int(header_length)
    return size if size <= _LONGEST else 0


def _repeat(known: _Known, body: Buffer, start: int, request_id: str) -> InferRequest:
    view = memoryview(body)[start:]
    like = known.request
    return InferRequest(
        like.model_name,
        like.model_version,
        [InputTensor(name, datatype, shape, view[begin:end]) for name, datatype, shape, begin, end in known.inputs],
        request_id,
        like.requested_outputs,
        like.parameters,
        like.correlation_id,
        like.flags,
        like.priority,
        like.timeout_us,
        like.layout_key,
    )
