"""An `InferResponse` to the parts of an HTTP response: JSON, then binary outputs in order.

The order of members is the reference's (SRV src/http_server.cc, `FinalizeResponse`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from naiad.frontends.http1.messages import BINARY, JSON, response
from naiad.frontends.kserve_http.json_tensors import from_tensor
from naiad.frontends.kserve_http.outputs import OutputPlan
from naiad.frontends.regions import OutputRegion
from naiad.protocol.inference import Buffer, InferResponse

_HEADS_KEPT = 64
_NO_REGIONS: Mapping[str, OutputRegion] = {}
_HEADER = b"Inference-Header-Content-Length: %d\r\n"


def infer_response(answer: InferResponse, plan: OutputPlan) -> tuple[list[Buffer], bytes, bytes]:
    """The body of a response.

    Returns:
        Parts of the body, its content type and further header lines.

    Raises:
        NaiadError: If an output cannot be sent the way the client asked for.
    """
    regions = _NO_REGIONS
    if plan.requested is not None:
        answer = plan.requested.apply(answer)
        regions = plan.requested.regions
    document: dict[str, Any] = {"id": answer.request_id} if answer.request_id else {}
    document["model_name"] = answer.model_name
    document["model_version"] = str(answer.model_version)
    if answer.parameters:
        document["parameters"] = dict(answer.parameters)
    outputs = document["outputs"] = []
    blobs: list[Buffer] = []
    has_binary = False
    for tensor in answer.outputs:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype.name, "shape": tensor.shape}
        if tensor.name in regions:
            pass  # it is in the client's region, and name, datatype and shape are all there is to say
        elif plan.is_binary(tensor.name):
            has_binary = True
            entry["parameters"] = {"binary_data_size": len(tensor.data)}
            if len(tensor.data):
                blobs.append(tensor.data)
        else:
            entry["data"] = from_tensor(tensor, exact=True)
        outputs.append(entry)
    text = orjson.dumps(document)
    if not has_binary:
        return [text], JSON, b""
    return [text, *blobs], BINARY, _HEADER % len(text)


def write_infer(answer: InferResponse, plan: OutputPlan) -> list[Buffer]:
    """The whole response, uncompressed.

    Where all outputs are binary, responses to a repeated request (one plan) with outputs of one layout are equal up
    to the binary data, but for an id: that part is made once.
    """
    layout = answer.layout
    if layout is None or answer.parameters or plan.requested is not None:
        return _write(answer, plan)
    if answer.request_id:
        return _write_named(answer, plan, layout)
    head = plan.heads.get(layout)
    if head is not None:
        return [head, *[tensor.data for tensor in answer.outputs]]
    parts = _write(answer, plan)
    if _is_binary(answer, plan):
        _keep(plan.heads, layout, b"".join(parts[:2]))
    return parts


def _write_named(answer: InferResponse, plan: OutputPlan, layout: object) -> list[Buffer]:
    named = b'{"id":%b,' % orjson.dumps(answer.request_id)
    rest = plan.texts.get(layout)
    if rest is not None:
        text = named + rest
        body: list[Buffer] = [text, *[tensor.data for tensor in answer.outputs if len(tensor.data)]]
        return response(200, body, BINARY, _HEADER % len(text))
    body, content_type, extra = infer_response(answer, plan)
    if _is_binary(answer, plan):
        _keep(plan.texts, layout, bytes(body[0]).removeprefix(named))
    return response(200, body, content_type, extra)


def _is_binary(answer: InferResponse, plan: OutputPlan) -> bool:
    return bool(answer.outputs) and all(plan.is_binary(tensor.name) for tensor in answer.outputs)


def _keep(kept: dict[object, bytes], layout: object, made: bytes) -> None:
    if len(kept) >= _HEADS_KEPT:
        kept.clear()
    kept[layout] = made


def _write(answer: InferResponse, plan: OutputPlan) -> list[Buffer]:
    body, content_type, extra = infer_response(answer, plan)
    return response(200, body, content_type, extra)
