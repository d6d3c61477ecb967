"""Inference requests recognised by the bytes of their JSON.

Most clients send the same JSON over and over, around or before other tensors. The first such request is parsed and
checked. Each further one costs a look-up and little work per tensor:

- Where all tensors are binary, the whole JSON is recognised, and each tensor is a slice of what follows it.
- Where the body is JSON alone, the lists of data are cut out of it (`json_skeleton`). What is left is recognised from
  the third time on, and each list is parsed by itself.

Only short JSON is kept, without data, so that it cannot fill the memory. Clients that number their requests send
another `id` each time; an `id` at the beginning of the JSON is cut off before the look-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from naiad_stub.memo import Memo

from naiad.frontends.kserve_http.infer_request import NO_REGIONS, parse_infer
from naiad.frontends.kserve_http.json_skeleton import cut, is_certain, pieces_of, split
from naiad.frontends.kserve_http.json_tensors import UnusualListError, list_packer
from naiad.frontends.kserve_http.response_format import RepeatedResponses, ResponseFormat
from naiad.frontends.regions import TensorRegions
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InputTensor

_MAX_KNOWN = 1024
_MAX_JSON = 4096
_MAX_JSON_DIGITS = len(str(_MAX_JSON))
_ID = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*"([ !#-\[\]-~]{1,256})"[ \t\r\n]*,[ \t\r\n]*(?=")')
"""A first member `id` without escapes. What follows is no JSON by itself: `has_id` says where it was cut off."""


@dataclass(frozen=True, slots=True)
class _KnownRequest:
    """A request seen before, without the bytes of its tensors.

    Attributes:
        request: The request, without inputs and with the id of the first one.
        inputs: Name, datatype, shape, start and end of each input. Positions count from the end of the JSON.
        size: Bytes after the JSON.
        has_id: Whether an id was cut off the JSON that it is found by.
    """

    request: InferRequest
    inputs: tuple[tuple[str, Datatype, tuple[int, ...], int, int], ...]
    size: int
    form: ResponseFormat
    has_id: bool


@dataclass(frozen=True, slots=True)
class _KnownJson:
    """A request seen before whose data is in its JSON, without that data.

    Attributes:
        request: The request, without inputs and with the id of the first one.
        pieces: The JSON around its lists of data, without an id at its beginning.
        inputs: Name, datatype and shape of each input, and what gives the bytes of its list.
        has_id: Whether an id was cut off the JSON that the pieces are of.
    """

    request: InferRequest
    pieces: tuple[bytes, ...]
    inputs: tuple[tuple[str, Datatype, tuple[int, ...], Callable[[bytes], bytes]], ...]
    form: ResponseFormat
    has_id: bool


class InferRequestParser:
    """Parses the requests for one model and version."""

    def __init__(self, model_name: str, version: int, max_json: int, regions: TensorRegions = NO_REGIONS) -> None:
        self._model_name = model_name
        self._version = version
        self._max_json = max_json
        self._regions = regions
        self._known: Memo[bytes, _KnownRequest] = Memo(_MAX_KNOWN)
        self._skeletons: Memo[bytes, _KnownJson] = Memo(_MAX_KNOWN)
        self._seen_once: Memo[bytes, bool] = Memo(_MAX_KNOWN)
        self._latest: _KnownJson | None = None  # which most requests are like

    def parse(self, body: Buffer, header_length: bytes | None) -> tuple[InferRequest, ResponseFormat]:
        """As `infer_request.parse_infer`, which it calls for requests not seen before."""
        if header_length is None and len(body) <= self._max_json:
            return self._parse_json(bytes(body))
        size = _json_size(header_length)
        if size <= 0:
            return parse_infer(body, header_length, self._model_name, self._version, self._max_json, self._regions)
        text = bytes(body[:size])
        # First the whole text, as a client without ids sends it.
        known, found_id, key = self._known.get(text), None, text
        if known is None:
            found_id = _ID.match(text)
            if found_id is not None:
                key = text[found_id.end() :]
                known = self._known.get(key)
        if known is not None and len(body) == size + known.size and known.has_id is (found_id is not None):
            request_id = known.request.request_id if found_id is None else found_id[1].decode("ascii")
            return _repeat(known, body, size, request_id), known.form
        request, form = parse_infer(body, header_length, self._model_name, self._version, self._max_json, self._regions)
        self._remember(key, request, form, len(body) - size, has_id=found_id is not None)
        return request, form

    def _parse_json(self, text: bytes) -> tuple[InferRequest, ResponseFormat]:
        """As `parse`, for a body that is JSON alone."""
        # First as the latest request: then `cut` needs neither a search for an id nor a look-up.
        known, found_id, skeleton = self._latest, None, b""
        lists = None if known is None or known.has_id else cut(text, known.pieces)
        if lists is None:
            found_id = _ID.match(text)
            rest = text if found_id is None else text[found_id.end() :]
            if known is not None and known.has_id and found_id is not None:
                lists = cut(rest, known.pieces)
        if lists is None:
            skeleton, lists = split(rest)
            known = self._skeletons.get(skeleton)
            if known is not None and known.has_id is (found_id is not None):
                self._latest = known
            else:
                known = None
        if known is not None:
            try:
                inputs = [
                    InputTensor(name, datatype, shape, pack(data))
                    for (name, datatype, shape, pack), data in zip(known.inputs, lists)  # noqa: B905 - of equal length
                ]
            except UnusualListError:
                pass  # below it is read, or explained
            else:
                request_id = known.request.request_id if found_id is None else found_id[1].decode("ascii")
                return _like(known.request, inputs, request_id), known.form
        request, form = parse_infer(text, None, self._model_name, self._version, self._max_json, self._regions)
        if known is None and lists and len(skeleton) <= _MAX_JSON and self._is_seen_again(skeleton):
            self._remember_json(skeleton, lists, request, form, has_id=found_id is not None)
        return request, form

    def _is_seen_again(self, skeleton: bytes) -> bool:
        """Whether a skeleton is worth its cost, of two parsed requests: some clients send another one each time."""
        if skeleton in self._seen_once:
            return True
        self._seen_once[skeleton] = True
        return False

    def _remember_json(
        self, skeleton: bytes, lists: list[bytes], request: InferRequest, form: ResponseFormat, *, has_id: bool
    ) -> None:
        if form.requested is not None or not is_certain(skeleton, len(request.inputs)):
            return  # special forms refer to regions and labels, which change while the server runs
        inputs = []
        for tensor, data in zip(request.inputs, lists, strict=True):
            pack = list_packer(tensor.datatype, tensor.shape)
            try:
                if pack is None or pack(data) != tensor.data:
                    return
            except UnusualListError:
                return
            inputs.append((tensor.name, tensor.datatype, tensor.shape, pack))
        if all(tensor.datatype is not Datatype.BYTES for tensor in request.inputs):  # whose elements must be counted
            request.layout_key = object()
        form.repeated = RepeatedResponses()
        self._skeletons[skeleton] = self._latest = _KnownJson(
            replace(request, inputs=()), pieces_of(skeleton), tuple(inputs), form, has_id
        )

    def _remember(self, key: bytes, request: InferRequest, form: ResponseFormat, size: int, *, has_id: bool) -> None:
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
        self._known[key] = _KnownRequest(replace(request, inputs=()), tuple(inputs), size, form, has_id)


def _json_size(header_length: bytes | None) -> int:
    """The length of the JSON, or 0 where it is too long to be kept or not a plain number."""
    if header_length is None or not header_length.isdigit() or len(header_length) > _MAX_JSON_DIGITS:
        return 0
    size = int(header_length)
    return size if size <= _MAX_JSON else 0


def _repeat(known: _KnownRequest, body: Buffer, start: int, request_id: str) -> InferRequest:
    """The known request with the tensors of *body*, which begin at *start*."""
    view = memoryview(body)[start:]
    inputs = [InputTensor(name, datatype, shape, view[begin:end]) for name, datatype, shape, begin, end in known.inputs]
    return _like(known.request, inputs, request_id)


def _like(known: InferRequest, inputs: list[InputTensor], request_id: str) -> InferRequest:
    """A request that differs from *known* in its inputs and id alone."""
    return InferRequest(
        known.model_name,
        known.model_version,
        inputs,
        request_id,
        known.requested_outputs,
        known.parameters,
        known.correlation_id,
        known.flags,
        known.priority,
        known.timeout_us,
        known.layout_key,
    )
