"""KServe v2 over HTTP with the extension for binary tensors: bodies of requests and responses."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Dict, List, Mapping, Tuple, Union

import numpy as np
import triton_python_backend_utils as pb_utils

from naiad_remote.wire import CODES, Buffer, Description, TensorDescription, WireRequest, WireResponse, WireTensor

_JSON_BYTES = 64 << 20  # most bytes of JSON in a response: it takes about ten times the memory once it is parsed
_NUMPY = {
    name[5:]: np.dtype(kind).newbyteorder("<")
    for name, kind in pb_utils.TRITON_STRING_TO_NUMPY.items()
    if name != "TYPE_STRING"
}


def encode_request(request: WireRequest) -> Tuple[bytes, List[Buffer]]:
    """The JSON of a request, and the buffers that follow it."""
    inputs: List[Dict[str, Any]] = []
    buffers: List[Buffer] = []
    for tensor in request.inputs:
        size = {"binary_data_size": tensor.size}
        inputs.append({"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype, "parameters": size})
        buffers += tensor.parts
    document: Dict[str, Any] = {
        "inputs": inputs,
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in request.outputs],
    }
    if request.request_id:
        document["id"] = request.request_id
    if request.parameters:
        document["parameters"] = request.parameters
    return json.dumps(document, separators=(",", ":")).encode(), buffers


def decode_response(body: Union[bytes, bytearray], json_size: int) -> WireResponse:
    """The response in a body whose first *json_size* bytes are JSON; ValueError if it is malformed."""
    if json_size > _JSON_BYTES:
        raise ValueError(f"its JSON has {json_size} bytes, more than {_JSON_BYTES}")
    document = json.loads(body[:json_size])
    if not isinstance(document, dict) or not isinstance(document.get("outputs", []), list):
        raise ValueError("it is not a JSON object with outputs")
    view = memoryview(body)
    position = json_size
    outputs = []
    for output in document.get("outputs", []):
        try:
            name, datatype = str(output["name"]), str(output["datatype"])
            shape = tuple(int(size) for size in output["shape"])
            size = output.get("parameters", {}).get("binary_data_size")
            data: Buffer
            if size is None:
                data = _encode_json_data(datatype, output["data"])
            else:
                if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                    raise ValueError(f"output '{name}' has the binary_data_size {size!r}")
                data = view[position : position + size]
                position += size
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"an output is malformed: {error!r}") from None
        tensor = WireTensor(name, datatype, shape, [data])
        tensor.check()
        outputs.append(tensor)
    if position != len(body):
        raise ValueError(f"it has {len(body)} bytes, but describes {position}")
    return WireResponse(outputs, _parameters(document.get("parameters")))


def _parameters(given: Any) -> Dict[str, Any]:
    """Those that a response of this server can have."""
    if not isinstance(given, dict):
        return {}
    return {name: value for name, value in given.items() if isinstance(value, (bool, int, str))}


def _encode_json_data(datatype: str, data: Any) -> bytes:
    """The bytes of elements that a server without the extension sent as JSON."""
    elements = _flatten(data)
    if datatype == "BYTES" and all(isinstance(each, str) for each in elements):
        return b"".join(len(each).to_bytes(4, "little") + each for each in map(str.encode, elements))
    if datatype in _NUMPY and all(isinstance(each, (int, float)) for each in elements):
        with contextlib.suppress(OverflowError, ValueError), np.errstate(all="ignore"):
            found = np.array(elements, np.object_).astype(_NUMPY[datatype])
            # Numbers of floating point are rounded, and others must be what they were.
            kept = np.isinf(found) <= np.isinf(np.array(elements, float)) if "FP" in datatype else found == elements
            if np.all(kept):
                return found.tobytes()
    raise ValueError(f"the JSON of an output has elements that are not of its datatype '{datatype}'")


def _flatten(data: Any) -> List[Any]:
    if not isinstance(data, list):
        return [data]
    return [element for each in data for element in _flatten(each)]


def error_text(body: Union[bytes, bytearray]) -> str:
    """The text of an error's body: that of JSON's `error` or `detail`, else the beginning of the body."""
    try:
        document = json.loads(body)
        if isinstance(document, dict):
            for key in ("error", "detail", "message"):
                if isinstance(document.get(key), str):
                    return str(document[key])
    except (ValueError, RecursionError):
        pass
    return body[:500].decode("utf-8", "replace").strip()


def describe_config(config: Mapping[str, Any]) -> Description:
    """The interface in a model's configuration (Triton's extension)."""
    inputs, outputs = (tuple(map(_describe_tensor, config.get(side, ()))) for side in ("input", "output"))
    is_decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
    return Description(int(config.get("max_batch_size", 0)), inputs, outputs, is_decoupled)


def _describe_tensor(tensor: Mapping[str, Any]) -> TensorDescription:
    return TensorDescription(
        str(tensor["name"]),
        str(tensor["data_type"]),
        tuple(int(size) for size in tensor.get("dims", ())),
        bool(tensor.get("optional", False)),
    )


def describe_metadata(metadata: Mapping[str, Any]) -> Description:
    """The interface in a model's metadata, whose shapes include the dimension of the batch, if there is one."""
    inputs, outputs = (tuple(map(_describe_metadata_tensor, metadata.get(side, ()))) for side in ("inputs", "outputs"))
    return Description(0, inputs, outputs, is_decoupled=False)


def _describe_metadata_tensor(tensor: Mapping[str, Any]) -> TensorDescription:
    datatype = str(tensor["datatype"])
    if datatype not in CODES:
        raise ValueError(f"tensor '{tensor['name']}' has datatype '{datatype}'")
    data_type = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return TensorDescription(str(tensor["name"]), data_type, tuple(int(size) for size in tensor["shape"]))
