"""Inference requests recognised by the bytes of their JSON.

Most clients send the same JSON over and over, followed by other tensor bytes. The first such request is parsed and
checked. Each further one costs a look-up and a slice per tensor.

Only requests whose tensors are all binary are recognised, and only short JSON, so that data in JSON cannot fill the
memory. Clients that number their requests send another `id` each time; an `id` at the beginning of the JSON is cut off
before the look-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from naiad_stub.memo import Memo

from naiad.frontends.kserve_http.infer_request import NO_REGIONS, parse_infer
from naiad.frontends.kserve_http.response_format import RepeatedResponses, ResponseFormat
from naiad.frontends.regions import TensorRegions
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InputTensor

_MAX_KNOWN = 1024
_MAX_JSON = 4096
_MAX_JSON_DIGITS = len(str(_MAX_JSON))
_ID = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*"([ !#-\[\]-~]{1,256})"[ \t\r\n]*,[ \t\r\n]*(?=")')
"""A first member `id` without escapes. The quote that must follow keeps the rest apart from JSON without such an id,
which begins with a brace."""


@dataclass(frozen=True, slots=True)
class _KnownRequest:
    """A request seen before, without the bytes of its tensors.

    Attributes:
        request: The request, without inputs and with the id of the first one.
        inputs: Name, datatype, shape, start and end of each input. Positions count from the end of the JSON.
        size: Bytes after the JSON.
        form: How the client wants the response.
    """

    request: InferRequest
    inputs: tuple[tuple[str, Datatype, tuple[int, ...], int, int], ...]
    size: int
    form: ResponseFormat


class InferRequestParser:
    """Parses the requests for one model and version."""

    def __init__(self, model_name: str, version: int, max_json: int, regions: TensorRegions = NO_REGIONS) -> None:
        self._model_name = model_name
        self._version = version
        self._max_json = max_json
        self._regions = regions
        self._known: Memo[bytes, _KnownRequest] = Memo(_MAX_KNOWN)

    def parse(self, body: Buffer, header_length: bytes | None) -> tuple[InferRequest, ResponseFormat]:
        """As `infer_request.parse_infer`, which it calls for requests not seen before."""
        size = _json_size(header_length)
        if size <= 0:
            return parse_infer(body, header_length, self._model_name, self._version, self._max_json, self._regions)
        text = bytes(body[:size])
        # First the whole text: a key without its id begins with a quote, so no text with an id is found.
        known, found_id, key = self._known.get(text), None, text
        if known is None:
            found_id = _ID.match(text)
            if found_id is not None:
                key = text[found_id.end() :]
                known = self._known.get(key)
        if known is not None and len(body) == size + known.size:
            request_id = known.request.request_id if found_id is None else found_id[1].decode("ascii")
            return _repeat(known, body, size, request_id), known.form
        request, form = parse_infer(body, header_length, self._model_name, self._version, self._max_json, self._regions)
        # Of two members `id` the last one counts. It may be spelled with escapes, so a backslash is enough to give up.
        if found_id is None or not (b'"id"' in key or b"\\" in key):
            self._remember(key, request, form, len(body) - size)
        return request, form

    def _remember(self, key: bytes, request: InferRequest, form: ResponseFormat, size: int) -> None:
        if sum([len(tensor.data) for tensor in request.inputs]) != size:
            return  # some of the data is in the JSON, or in shared memory
        if form.requested is not None:
            return  # it refers to regions and labels, which change while the server runs
        inputs = []
        start = 0
        for tensor in request.inputs:
            end = start + len(tensor.data)
            inputs.append((tensor.name, tensor.datatype, tensor.shape, start, end))
            start = end
        request.layout_key = object()
        form.repeated = RepeatedResponses()
        self._known[key] = _KnownRequest(replace(request, inputs=()), tuple(inputs), size, form)


def _json_size(header_length: bytes | None) -> int:
    """The length of the JSON, or 0 where it is too long to be kept or not a plain number."""
    if header_length is None or not header_length.isdigit() or len(header_length) > _MAX_JSON_DIGITS:
        return 0
    size = int(header_length)
    return size if size <= _MAX_JSON else 0


def _repeat(known: _KnownRequest, body: Buffer, start: int, request_id: str) -> InferRequest:
    """The known request with the tensors of *body*, which begin at *start*."""
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
