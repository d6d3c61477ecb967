"""Inference requests recognised by the bytes of their JSON.

Most clients send the same JSON over and over, around or before other tensors. The first such request is parsed and
checked. Each further one costs a look-up and little work per tensor:

- Where all tensors are binary, the whole JSON is recognised, and each tensor is a slice of what follows it.
- Where the body is JSON alone, the lists of data are cut out of it (`split`). What is left, its skeleton, is recognised
  from the third time on, and each list is parsed by itself.

Only short JSON is kept, without data, so that it cannot fill the memory. Clients that number their requests send
another `id` each time; an `id` at the beginning of the JSON is cut off before the look-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from naiad_stub.memo import Memo

from naiad.frontends.kserve_http.infer_request import NO_REGIONS, parse_infer
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
    """A request seen before, without the bytes of its tensors."""

    request: InferRequest  # the request, without inputs and with the id of the first one
    # Name, datatype, shape, start and end of each input. Positions count from the end of the JSON.
    inputs: tuple[tuple[str, Datatype, tuple[int, ...], int, int], ...]
    size: int  # bytes after the JSON
    form: ResponseFormat
    has_id: bool  # whether an id was cut off the JSON that it is found by


@dataclass(frozen=True, slots=True)
class _KnownJson:
    """A request seen before whose data is in its JSON, without that data."""

    request: InferRequest  # the request, without inputs and with the id of the first one
    pieces: tuple[bytes, ...]  # the JSON around its lists of data, without an id at its beginning
    inputs: tuple[tuple[str, Datatype, tuple[int, ...], Callable[[bytes], bytes]], ...]  # and what packs its list
    form: ResponseFormat
    has_id: bool  # whether an id was cut off the JSON that the pieces are of


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


# Where one text was a valid request, and its lists were the data of its inputs (`is_certain`), the same holds for each
# text with this skeleton whose lists are valid: in JSON, a value may take the place of another. A text that `split`
# cuts in a wrong place has another skeleton, or a list that is not valid JSON.
_DATA = b'"data":'
_STRINGS = re.compile(rb'\s*\[\s*(?:"[^"\\]*(?:\\.[^"\\]*)*"\s*(?:,\s*|(?=\])))*\]', re.DOTALL)
"""A flat list of strings. No part of it can match in two ways, so that a search takes linear time."""
_DATA_MEMBER = re.compile(rb'"data"\s*:')
_OTHER_MEANINGS = (b"\\", b"binary_data_size", b"shared_memory_region")


def split(text: bytes) -> tuple[bytes, list[bytes]]:
    """The skeleton of *text*, and its lists of data in order; no lists for JSON without any."""
    first, *rest = text.split(_DATA)
    outside = [first]
    lists = []
    for part in rest:
        # Most lists have numbers, and are the last member of their input.
        end = part.find(b"}")
        data = part[:end]
        if b'"' in data:
            end = _end_of_list(part)
            data = part[:end]
        lists.append(data)
        outside.append(part[end:])
    return _DATA.join(outside), lists


def pieces_of(skeleton: bytes) -> tuple[bytes, ...]:
    """What is before, between and behind the lists of a text with this skeleton."""
    *pieces, last = skeleton.split(_DATA)
    return (*[piece + _DATA for piece in pieces], last)


def cut(text: bytes, pieces: tuple[bytes, ...]) -> list[bytes] | None:
    """The lists of a text with these pieces around them; None if it has others. In less time than `split` takes."""
    first, last = pieces[0], pieces[-1]
    if not (text.startswith(first) and text.endswith(last)):
        return None
    lists = []
    start = len(first)
    for piece in pieces[1:-1]:
        end = text.find(piece, start)
        if end < 0:
            return None
        lists.append(text[start:end])
        start = end + len(piece)
    lists.append(text[start : len(text) - len(last)])
    return lists if start + len(last) <= len(text) else None


def _end_of_list(part: bytes) -> int:
    """Where the list at the beginning of *part* ends: a list of strings, or one that another member follows."""
    strings = _STRINGS.match(part)
    return strings.end() if strings is not None else part.rfind(b",", 0, part.find(b'"'))


def is_certain(skeleton: bytes, count: int) -> bool:
    """Whether *count* lists that were cut out of a valid request with *count* inputs are the data of these inputs.

    Every input has one source of its data. If none of them is another one than `data`, and there are as many members
    `data` as inputs, each input has exactly one, in order, and nothing else has any. A backslash may spell a name in
    another way.
    """
    return len(_DATA_MEMBER.findall(skeleton)) == count and not any(each in skeleton for each in _OTHER_MEANINGS)
