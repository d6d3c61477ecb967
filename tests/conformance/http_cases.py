"""Valid requests: each way to send and receive tensors, and the endpoints for metadata."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from math import inf, nan

from conformance.cases import Case, binary, infer, tensor

LEFT = tensor("INPUT0", [1.0, 2.0, 3.0, 4.0])
RIGHT = tensor("INPUT1", [0.5, 0.25, 0.125, 10.0])
BOTH = [LEFT, RIGHT]
FOUR_FLOATS = struct.pack("<4f", 1.5, -2.5, 1e30, 0.1)


def by_sized_bytes(*elements: bytes) -> bytes:
    """Encoded BYTES: each element follows its length."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def one(name: str, data: object, datatype: str, shape: tuple[int, ...] = (1,)) -> list[dict[str, object]]:
    return [tensor(name, data, datatype=datatype, shape=shape)]


_JSON_BOTH = json.dumps({"inputs": BOTH}).encode()
_INTEGERS = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")

ADD_SUB = [
    infer("tensors as JSON", {"inputs": BOTH}),
    infer("tensors as binary", {"inputs": [binary("INPUT0", 16), binary("INPUT1", 16)]}, tail=FOUR_FLOATS * 2),
    infer("one input as JSON and one as binary", {"inputs": [LEFT, binary("INPUT1", 16)]}, tail=FOUR_FLOATS),
    infer("inputs in another order", {"inputs": [RIGHT, LEFT]}),
    infer("all outputs as binary", {"inputs": BOTH, "parameters": {"binary_data_output": True}}),
    infer("one output asked for", {"inputs": BOTH, "outputs": [{"name": "OUTPUT1"}]}),
    infer("outputs in another order", {"inputs": BOTH, "outputs": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]}),
    infer(
        "one output as binary and one as JSON",
        {"inputs": BOTH, "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}]},
    ),
    infer(
        "binary_data_output does not touch listed outputs",
        {"inputs": BOTH, "outputs": [{"name": "OUTPUT0"}], "parameters": {"binary_data_output": True}},
    ),
    infer("an empty list of outputs", {"inputs": BOTH, "outputs": []}),
    infer("an id comes back", {"id": "my id \u00e9", "inputs": BOTH}),
    infer("an empty id", {"id": "", "inputs": BOTH}),
    infer("unknown keys are passed over", {"inputs": BOTH, "colour": "blue"}),
    infer("integers as JSON for floats", {"inputs": [tensor("INPUT0", [1, 2, 3, 4]), RIGHT]}),
    infer("JSON behind a byte order mark", b"\xef\xbb\xbf" + _JSON_BOTH),
    infer("a version in the path", {"inputs": BOTH}, path="/v2/models/add_sub/versions/1/infer"),
    infer("a gzip body", gzip.compress(_JSON_BOTH), headers={"Content-Encoding": "gzip"}),
    infer("a deflate body", zlib.compress(_JSON_BOTH), headers={"Content-Encoding": "deflate"}),
    infer("a body by identity", {"inputs": BOTH}, headers={"Content-Encoding": "identity"}),
    infer("a gzip answer", {"inputs": BOTH}, headers={"Accept-Encoding": "gzip"}),
    infer("a deflate answer", {"inputs": BOTH}, headers={"Accept-Encoding": "deflate"}),
    infer("the better of two encodings", {"inputs": BOTH}, headers={"Accept-Encoding": "gzip;q=0.5, deflate;q=0.9"}),
    infer("an encoding nobody knows", {"inputs": BOTH}, headers={"Accept-Encoding": "br"}),
    infer(
        "a binary gzip answer",
        {"inputs": BOTH, "parameters": {"binary_data_output": True}},
        headers={"Accept-Encoding": "gzip"},
    ),
    Case(
        name="a chunked body",
        headers={"Transfer-Encoding": "chunked"},
        content_length=None,
        body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(_JSON_BOTH), _JSON_BOTH),
    ),
]

BATCHES = [
    infer(
        f"a batch of {count}",
        {"inputs": [tensor(name, [0.5] * 4 * count, shape=(count, 4)) for name in ("INPUT0", "INPUT1")]},
        "batched",
    )
    for count in (1, 8)
] + [
    infer(
        "nested data",
        {"inputs": [tensor(name, [[1, 2, 3, 4], [5, 6, 7, 8]], shape=(2, 4)) for name in ("INPUT0", "INPUT1")]},
        "batched",
    ),
]

STRINGS = [
    infer("strings as JSON", {"inputs": one("INPUT0", ["a", "", "\u00fc\U0001f600"], "BYTES", (3,))}, "identity_bytes"),
    infer("no strings at all", {"inputs": one("INPUT0", [], "BYTES", (0,))}, "identity_bytes"),
    infer(
        "strings as binary",
        {"inputs": [binary("INPUT0", 11, datatype="BYTES", shape=(2,))], "parameters": {"binary_data_output": True}},
        "identity_bytes",
        tail=by_sized_bytes(b"a\xff\x00", b""),
    ),
    infer(
        "strings that are no text as JSON",
        {"inputs": [binary("INPUT0", 24, datatype="BYTES", shape=(3,))]},
        "identity_bytes",
        tail=by_sized_bytes(b'\xff"\\\n\x01', b"text", b"\xc3/\xa9"),
    ),
]

TYPES = [
    *(
        infer(f"{name} as JSON", {"inputs": one(f"IN_{name}", [0, 1, 100], name, (3,))}, "all_types")
        for name in _INTEGERS
    ),
    infer("the ends of INT64", {"inputs": one("IN_INT64", [-(2**63), 2**63 - 1], "INT64", (2,))}, "all_types"),
    infer("both ends of UINT64", {"inputs": one("IN_UINT64", [0, 1, 2**64 - 1], "UINT64", (3,))}, "all_types"),
    infer("what JSON does not have", {"inputs": one("IN_FP32", [nan, inf, -inf, 1.5], "FP32", (4,))}, "all_types"),
    infer("NaN where text is", {"inputs": one("IN_BYTES", [nan], "BYTES")}, "all_types"),
    infer("NaN for an integer", {"inputs": one("IN_INT32", [nan], "INT32")}, "all_types"),
    infer("the end of UINT64", {"inputs": one("IN_UINT64", [2**64 - 1], "UINT64")}, "all_types"),
    infer("BOOL as JSON", {"inputs": one("IN_BOOL", [True, False], "BOOL", (2,))}, "all_types"),
    infer("FP64 as JSON", {"inputs": one("IN_FP64", [0.1, -1e300], "FP64", (2,))}, "all_types"),
    infer("an integer too wide for UINT8", {"inputs": one("IN_UINT8", [300], "UINT8")}, "all_types"),
    infer("an integer below INT8", {"inputs": one("IN_INT8", [-200], "INT8")}, "all_types"),
    infer(
        "FP16 as binary",
        {
            "inputs": [binary("INPUT0", 4, datatype="FP16", shape=(2,))],
            "parameters": {"binary_data_output": True},
        },
        "identity_fp16",
        tail=struct.pack("<2e", 1.5, -0.1),
    ),
    infer("a tensor without elements", {"inputs": one("INPUT0", [], "FP32", (0,))}, "identity_fp32"),
    infer(
        "a binary tensor without elements",
        {"inputs": [binary("INPUT0", 0, shape=(0,))], "parameters": {"binary_data_output": True}},
        "identity_fp32",
        tail=b"",
    ),
]

RAW_BINARY = [
    infer("a raw body", FOUR_FLOATS, "identity_fp32", headers={"Inference-Header-Content-Length": "0"}),
    infer("a raw body that is a string", b"fine", "misbehaves", headers={"Inference-Header-Content-Length": "0"}),
]

MODELS = [
    infer("an optional input left out", {"inputs": one("INPUT0", [1, 2], "INT32", (2,))}, "optional_input"),
    infer(
        "an optional input given",
        {"inputs": one("INPUT0", [1, 2], "INT32", (2,)) + one("INPUT1", [10, 20], "INT32", (2,))},
        "optional_input",
    ),
    infer(
        "parameters reach the model",
        {
            "id": "seven",
            "parameters": {"an_int": 7, "a_bool": True, "a_string": "s"},
            "outputs": [{"name": "SEEN"}],
            "inputs": one("INPUT0", [0], "INT32"),
        },
        "echo_parameters",
    ),
    infer(
        "a parameter of type double",
        {"parameters": {"a_double": 1.5}, "inputs": one("INPUT0", [0], "INT32")},
        "echo_parameters",
    ),
    infer(
        "priority and timeout",
        {"parameters": {"priority": 1, "timeout": 50000000}, "inputs": one("INPUT0", [0], "INT32")},
        "echo_parameters",
    ),
    infer("the highest version answers", {"inputs": one("INPUT0", [0], "INT32")}, "versions"),
    infer(
        "an older version by path", {"inputs": one("INPUT0", [0], "INT32")}, path="/v2/models/versions/versions/1/infer"
    ),
    *(
        infer(f"a model that does {mode}", {"inputs": one("MODE", [f"{mode}:{detail}"], "BYTES")}, "misbehaves")
        for mode, detail in (
            ("answer_another_datatype", ""),
            ("answer_another_shape", ""),
            ("answer_no_output", ""),
        )
    ),
]

DESCRIPTIONS = [
    Case(name=f"GET {path}", method="GET", path=path, volatile=volatile)
    for path, volatile in (
        ("/v2", ("version",)),
        ("/v2/health/live", ()),
        ("/v2/models/add_sub", ()),
        ("/v2/models/batched", ()),
        ("/v2/models/versions", ()),
        ("/v2/models/versions/versions/3", ()),
        ("/v2/models/all_types", ()),
        ("/v2/models/auto_completed", ()),
        ("/v2/models/add_sub/ready", ()),
        ("/v2/models/versions/versions/1/ready", ()),
        *((f"/v2/models/{name}/config", ()) for name in ("add_sub", "batched", "versions", "decoupled")),
        *((f"/v2/models/{name}/config", ()) for name in ("optional_input", "auto_completed")),
        ("/v2/models/auto_completed/stats", ()),
    )
] + [
    Case(name="the index", path="/v2/repository/index", body=b""),
    Case(name="the index of what is ready", path="/v2/repository/index", body=b'{"ready": true}'),
]

CASES = [*ADD_SUB, *BATCHES, *STRINGS, *TYPES, *RAW_BINARY, *MODELS, *DESCRIPTIONS]
