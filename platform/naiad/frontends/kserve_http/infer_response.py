"""An `InferResponse` to the parts of an HTTP response: JSON, then binary outputs in order.

The order of members is the reference's (SRV src/http_server.cc, `FinalizeResponse`).
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import orjson

from naiad.frontends.http1.messages import BINARY, JSON, response
from naiad.frontends.kserve_http import json_tensors
from naiad.frontends.kserve_http.json_tensors import list_writer, rendered_steps
from naiad.frontends.kserve_http.response_format import Pieces, RepeatedResponses, ResponseFormat
from naiad.frontends.regions import RegionPart
from naiad.protocol.inference import Buffer, InferResponse, OutputTensor

_OK = 200
_NO_REGIONS: Mapping[str, RegionPart] = {}
_SHORT = 1 << 12  # bytes of all outputs below which nothing about them takes long
_HEADER = b"Inference-Header-Content-Length: %d\r\n"


def infer_response(result: InferResponse, form: ResponseFormat) -> tuple[list[Buffer], bytes, bytes]:
    """The parts of a response's body, its content type and further header lines."""
    regions = _NO_REGIONS
    if form.requested is not None:
        result = form.requested.apply(result)
        regions = form.requested.regions
    document = _document(result)
    outputs = document["outputs"] = []
    blobs: list[Buffer] = []
    has_binary = False
    for tensor in result.outputs:
        entry = _entry(tensor)
        if tensor.name in regions:
            pass  # the data is in the client's shared memory; the entry has no further member
        elif form.is_binary(tensor.name):
            has_binary = True
            entry["parameters"] = {"binary_data_size": len(tensor.data)}
            if len(tensor.data):
                blobs.append(tensor.data)
        else:
            entry["data"] = orjson.Fragment(list_writer(tensor.datatype, prod(tensor.shape))(tensor))
        outputs.append(entry)
    text = orjson.dumps(document)
    if not has_binary:
        return [text], JSON, b""
    return [text, *blobs], BINARY, _HEADER % len(text)


def is_long(result: InferResponse, form: ResponseFormat) -> bool:
    """Whether making the body of a response would take long: of outputs in JSON, as classes, or in regions."""
    size = 0
    for tensor in result.outputs:
        size += len(tensor.data)
    if size < _SHORT:
        return False
    outputs = result.outputs
    requested = form.requested
    if requested is not None:
        if requested.is_long(result):
            return True
        outputs = [
            tensor
            for tensor in outputs
            if tensor.name not in requested.regions and tensor.name not in requested.classes
        ]
    return json_tensors.is_long([tensor for tensor in outputs if not form.is_binary(tensor.name)])


def infer_response_steps(
    result: InferResponse, form: ResponseFormat
) -> Generator[None, None, tuple[list[Buffer], bytes, bytes]]:
    """As `infer_response`, in steps of about a millisecond; the JSON may be in many parts."""
    regions = _NO_REGIONS
    if form.requested is not None:
        result = yield from form.requested.apply_steps(result)
        regions = form.requested.regions
    text: list[bytes] = [orjson.dumps(_document(result))[:-1], b',"outputs":[']
    blobs: list[Buffer] = []
    has_binary = False
    for index, tensor in enumerate(result.outputs):
        entry = _entry(tensor)
        is_json = tensor.name not in regions and not form.is_binary(tensor.name)
        if tensor.name not in regions and not is_json:
            has_binary = True
            entry["parameters"] = {"binary_data_size": len(tensor.data)}
            if len(tensor.data):
                blobs.append(tensor.data)
        text += (b"," if index else b"", orjson.dumps(entry)[:-1])
        if is_json:
            text.append(b',"data":[')
            text += yield from rendered_steps(tensor, exact=True)
            text.append(b"]")
        text.append(b"}")
    text.append(b"]}")
    if not has_binary:
        return [*text], JSON, b""
    return [*text, *blobs], BINARY, _HEADER % sum(map(len, text))


def _document(result: InferResponse) -> dict[str, Any]:
    document: dict[str, Any] = {"id": result.request_id} if result.request_id else {}
    document["model_name"] = result.model_name
    document["model_version"] = str(result.model_version)
    if result.parameters:
        document["parameters"] = dict(result.parameters)
    return document


def _entry(tensor: OutputTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype.name, "shape": tensor.shape}


def write_infer(result: InferResponse, form: ResponseFormat) -> list[Buffer]:
    """The whole response, uncompressed.

    A repeated request has the same *form* object each time. If all its outputs are binary, or all in JSON, responses
    with outputs of one layout differ in nothing but the id and the data. The rest is made once and kept in
    `form.repeated`.
    """
    layout, repeated = result.layout, form.repeated
    if layout is None or repeated is None or result.parameters:
        return _write(result, form)
    pieces = repeated.documents.get(layout)
    if pieces is not None:
        return [_write_document(result, pieces)]
    if result.request_id:
        return _write_with_id(result, form, layout, repeated)
    head = repeated.heads.get(layout)
    if head is not None:
        return [head, *[tensor.data for tensor in result.outputs]]
    parts = _write(result, form)
    if _is_all_binary(result, form):
        repeated.heads[layout] = b"".join(parts[:2])
    elif _is_all_json(result, form):
        repeated.documents[layout] = _pieces(result)
    return parts


def _write_with_id(
    result: InferResponse, form: ResponseFormat, layout: Hashable, repeated: RepeatedResponses
) -> list[Buffer]:
    """As `write_infer`. The id changes Content-Length, so only the JSON after the id is kept, not the head."""
    id_member = b'{"id":%b,' % orjson.dumps(result.request_id)
    rest = repeated.texts.get(layout)
    if rest is not None:
        text = id_member + rest
        body: list[Buffer] = [text, *[tensor.data for tensor in result.outputs if len(tensor.data)]]
        return response(_OK, body, BINARY, _HEADER % len(text))
    body, content_type, extra = infer_response(result, form)
    if _is_all_binary(result, form):
        repeated.texts[layout] = bytes(body[0]).removeprefix(id_member)
    elif _is_all_json(result, form):
        repeated.documents[layout] = _pieces(result)
    return response(_OK, body, content_type, extra)


def _pieces(result: InferResponse) -> Pieces:
    """The JSON of a response around its lists of data, without its id, and what writes each of them."""
    pieces = []
    text = orjson.dumps(_document(replace(result, request_id="")))[1:-1] + b',"outputs":['
    for tensor in result.outputs:
        text += orjson.dumps(_entry(tensor))[:-1] + b',"data":'
        pieces.append((text, list_writer(tensor.datatype, prod(tensor.shape))))
        text = b"},"
    return tuple(pieces)


def _write_document(result: InferResponse, pieces: Pieces) -> bytes:
    """The whole response whose JSON has these *pieces*."""
    parts = [b'{"id":%b,' % orjson.dumps(result.request_id) if result.request_id else b"{"]
    for tensor, (text, write) in zip(result.outputs, pieces):  # noqa: B905 - of equal length, on the request path
        parts += (text, write(tensor))
    parts.append(b"}]}")
    body = b"".join(parts)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def _is_all_json(result: InferResponse, form: ResponseFormat) -> bool:
    return bool(result.outputs) and not any(form.is_binary(tensor.name) for tensor in result.outputs)


def _is_all_binary(result: InferResponse, form: ResponseFormat) -> bool:
    return bool(result.outputs) and all(form.is_binary(tensor.name) for tensor in result.outputs)


def _write(result: InferResponse, form: ResponseFormat) -> list[Buffer]:
    body, content_type, extra = infer_response(result, form)
    return response(_OK, body, content_type, extra)
