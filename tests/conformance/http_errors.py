"""Invalid requests, each with one fault."""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

from conformance.cases import Case, binary, infer, tensor, without
from conformance.http_cases import BOTH, FOUR_FLOATS, LEFT, RIGHT, by_sized_bytes, one

_JSON_BOTH = json.dumps({"inputs": BOTH}).encode()
_NAMES = ("INPUT0", "INPUT1")
_PARSER = "failed to parse the request JSON buffer: "


def left(**changes: Any) -> dict[str, Any]:
    """A request whose first input is changed."""
    return {"inputs": [{**LEFT, **changes}, RIGHT]}


def left_without(key: str) -> dict[str, Any]:
    return {"inputs": [without(LEFT, key), RIGHT]}


def parameters(**values: Any) -> dict[str, Any]:
    return {"inputs": BOTH, "parameters": values}


def misbehave(mode: str) -> Case:
    return infer(f"a model that does {mode}", {"inputs": one("MODE", [mode], "BYTES")}, "misbehaves")


MODELS = [
    infer("an unknown model", {"inputs": BOTH}, "nothing_of_that_name"),
    infer("a model whose load failed", {"inputs": BOTH}, "fails_to_load"),
    infer("an unknown version", {"inputs": BOTH}, path="/v2/models/add_sub/versions/9/infer"),
    infer("version 0", {"inputs": BOTH}, path="/v2/models/add_sub/versions/0/infer"),
    infer("a version that is no number", {"inputs": BOTH}, path="/v2/models/add_sub/versions/one/infer"),
    infer("a negative version", {"inputs": BOTH}, path="/v2/models/add_sub/versions/-1/infer"),
    infer("a version beyond 64 bits", {"inputs": BOTH}, path="/v2/models/add_sub/versions/99999999999999999999/infer"),
    infer("a name in percent code", {"inputs": BOTH}, path="/v2/models/add%5Fsub/infer"),
    infer("a decoupled model", {"inputs": one("COUNT", [1], "INT32")}, "decoupled"),
]

BODIES = [
    infer("an empty body", b""),
    infer("an empty object", {}),
    infer("an array for a body", [1, 2]),
    infer("a string for a body", b'"text"'),
    infer("no JSON at all", b"this is not JSON", only_prefix=_PARSER),
    infer("JSON that ends early", _JSON_BOTH[:-2], only_prefix=_PARSER),
    infer("JSON with something behind it", _JSON_BOTH + b"x", only_prefix=_PARSER),
    infer("JSON nested too deep", b'{"inputs":' + b"[" * 200 + b"]" * 200 + b"}"),
    infer(
        "a Content-Length too small",
        _JSON_BOTH,
        content_length=str(len(_JSON_BOTH) - 5),
        only_prefix=_PARSER,
        cut_off=True,
    ),
    infer("a Content-Length too large", _JSON_BOTH, content_length=str(len(_JSON_BOTH) + 5), cut_off=True),
    infer("a negative Content-Length", _JSON_BOTH, content_length="-3", cut_off=True),
    infer("a Content-Length that is no number", _JSON_BOTH, content_length="many", cut_off=True),
    infer("an unknown Content-Encoding", _JSON_BOTH, headers={"Content-Encoding": "br"}),
    infer("a gzip body that is none", _JSON_BOTH, headers={"Content-Encoding": "gzip"}),
    infer("a gzip body that ends early", gzip.compress(_JSON_BOTH)[:-12], headers={"Content-Encoding": "gzip"}),
]

INPUTS = [
    infer("inputs that are no list", {"inputs": 7}),
    infer("an input that is no object", {"inputs": [7]}),
    infer("no inputs", {"inputs": []}),
    infer("an input missing", {"inputs": [LEFT]}),
    infer("an input too many", {"inputs": [*BOTH, tensor("INPUT2", [1, 2, 3, 4])]}),
    infer("an unknown input for a known one", {"inputs": [LEFT, tensor("INPUT9", [1, 2, 3, 4])]}),
    infer("an input twice", {"inputs": [LEFT, LEFT]}),
    infer("an input twice and the other", {"inputs": [LEFT, LEFT, RIGHT]}),
    infer("a missing optional model's input", {"inputs": []}, "optional_input"),
    infer(
        "too many inputs for a model with an optional one",
        {"inputs": [*one("INPUT0", [1, 2], "INT32", (2,)), *one("INPUT7", [1, 2], "INT32", (2,))]},
        "optional_input",
    ),
    infer("an input without name", left_without("name")),
    infer("an input without datatype", left_without("datatype")),
    infer("an input without shape", left_without("shape")),
    infer("an input without data", left_without("data")),
    infer("an input with a name alone", {"inputs": [{"name": "INPUT0"}, RIGHT]}),
    infer("an input without name and data", {"inputs": [without(without(LEFT, "name"), "data"), RIGHT]}),
    infer("a name that is a number", left(name=7)),
    infer("a datatype that is a number", left(datatype=7)),
    infer("an unknown datatype", left(datatype="FP33")),
    infer("another datatype than the model's", left(datatype="INT32", data=[1, 2, 3, 4])),
    infer("a shape that is no list", left(shape=4)),
    infer("a shape with a string", left(shape=["4"])),
    infer("a shape with a fraction", left(shape=[4.0])),
    infer("a negative shape", left(shape=[-4])),
    infer("a shape of -1", left(shape=[-1])),
    infer("a shape beyond 64 bits of bytes", left(shape=[2**62, 2**3])),
    infer("a shape too small", left(shape=[3], data=[1, 2, 3])),
    infer("a shape of too many dimensions", left(shape=[2, 2])),
    infer("an empty shape", left(shape=[], data=[1])),
    infer("too few data", left(data=[1, 2, 3])),
    infer("too many data", left(data=[1, 2, 3, 4, 5])),
    infer("data of a string among numbers", left(data=[1, 2, 3, "4"])),
    infer("data with null", left(data=[1, 2, 3, None])),
    infer("data that are no list", left(data=5)),
    infer("data that are an object", left(data={"a": 1})),
    infer("data of a fraction for integers", {"inputs": one("INPUT0", [0.5, 2], "INT32", (2,))}, "optional_input"),
    infer("data of a number for strings", {"inputs": one("INPUT0", [7], "BYTES")}, "identity_bytes"),
    infer("data of a number for BOOL", {"inputs": one("IN_BOOL", [1], "BOOL")}, "all_types"),
    infer("FP16 in JSON", {"inputs": one("INPUT0", [1.0], "FP16")}, "identity_fp16"),
    infer("BF16 in JSON", {"inputs": one("IN_BF16", [1.0], "BF16")}, "all_types"),
    infer(
        "FP16 out as JSON",
        {"inputs": [binary("INPUT0", 2, datatype="FP16", shape=(1,))]},
        "identity_fp16",
        tail=b"\0\0",
    ),
    infer("a batch too large", {"inputs": [tensor(n, [1.0] * 36, shape=(9, 4)) for n in _NAMES]}, "batched"),
    infer(
        "two batch sizes",
        {"inputs": [tensor("INPUT0", [1.0] * 8, shape=(2, 4)), tensor("INPUT1", [1.0] * 4, shape=(1, 4))]},
        "batched",
        unordered=_NAMES,
    ),
    infer("no batch dimension", {"inputs": BOTH}, "batched", unordered=_NAMES),
    infer("a batch of nothing", {"inputs": [tensor(n, [], shape=(0, 4)) for n in _NAMES]}, "batched", unordered=_NAMES),
    infer(
        "shapes that do not fit a batch",
        {"inputs": [tensor(n, [1.0] * 6, shape=(2, 3)) for n in _NAMES]},
        "batched",
        unordered=_NAMES,
    ),
    infer(
        "shared memory that was never registered",
        {
            "inputs": [
                {**without(LEFT, "data"), "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}},
                RIGHT,
            ]
        },
    ),
]

_TWO = {"inputs": [binary("INPUT0", 16), binary("INPUT1", 16)]}

_ABOVE = {"Inference-Header-Content-Length": str(10**6)}

BINARY = [
    infer("binary parts too short", _TWO, tail=FOUR_FLOATS),
    infer("binary parts that lack three bytes", _TWO, tail=(FOUR_FLOATS * 2)[:-3]),
    infer("binary parts too long", _TWO, tail=FOUR_FLOATS * 2 + b"xyz"),
    infer("no binary parts", _TWO),
    infer("a header length beyond the body", {"inputs": BOTH}, headers=_ABOVE),
    infer("a header length below zero", {"inputs": BOTH}, headers={"Inference-Header-Content-Length": "-1"}),
    infer("a header length that is no number", {"inputs": BOTH}, headers={"Inference-Header-Content-Length": "ten"}),
    infer("a header length with a rest", {"inputs": BOTH}, headers={"Inference-Header-Content-Length": "10x"}),
    infer(
        "a header length too small for the JSON",
        {"inputs": BOTH},
        headers={"Inference-Header-Content-Length": "20"},
        only_prefix=_PARSER,
    ),
    infer("a binary size that is text", {"inputs": [binary("INPUT0", "16"), RIGHT]}, tail=FOUR_FLOATS),
    infer("a binary size below zero", {"inputs": [binary("INPUT0", -1), RIGHT]}, tail=FOUR_FLOATS),
    infer("a binary size too small for the shape", {"inputs": [binary("INPUT0", 12), RIGHT]}, tail=FOUR_FLOATS[:12]),
    infer(
        "a binary size too large for the shape", {"inputs": [binary("INPUT0", 20), RIGHT]}, tail=FOUR_FLOATS + b"four"
    ),
    infer(
        "data and a binary size",
        {"inputs": [{**LEFT, "parameters": {"binary_data_size": 16}}, RIGHT]},
        tail=FOUR_FLOATS,
    ),
    infer("a raw body for a model of two inputs", FOUR_FLOATS, headers={"Inference-Header-Content-Length": "0"}),
    infer("a raw body for several strings", b"a", "identity_bytes", headers={"Inference-Header-Content-Length": "0"}),
    infer(
        "a raw body for two variable dimensions",
        FOUR_FLOATS,
        "identity_matrix",
        headers={"Inference-Header-Content-Length": "0"},
    ),
    infer(
        "a raw body that is no whole number of elements",
        FOUR_FLOATS[:-1],
        "identity_fp32",
        headers={"Inference-Header-Content-Length": "0"},
    ),
    *(
        infer(
            name,
            {"inputs": [binary("INPUT0", len(tail), datatype="BYTES", shape=(2,))]},
            "identity_bytes",
            tail=tail,
        )
        for name, tail in (
            ("a string longer than its tensor", by_sized_bytes(b"a") + struct.pack("<I", 100) + b"b"),
            ("a string's length cut off", by_sized_bytes(b"a") + b"\x01\x00"),
            ("fewer strings than the shape", by_sized_bytes(b"a")),
            ("more strings than the shape", by_sized_bytes(b"a", b"b", b"c")),
        )
    ),
]

OUTPUTS = [
    infer("outputs that are no list", {"inputs": BOTH, "outputs": 7}),
    infer("an output that is no object", {"inputs": BOTH, "outputs": ["OUTPUT0"]}),
    infer("an output without name", {"inputs": BOTH, "outputs": [{}]}),
    infer("an unknown output", {"inputs": BOTH, "outputs": [{"name": "OUTPUT9"}]}),
    infer("an output twice", {"inputs": BOTH, "outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]}),
    infer(
        "binary_data of an output that is text",
        {"inputs": BOTH, "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": "yes"}}]},
    ),
]

PARAMETERS = [
    infer("a reserved parameter", parameters(triton_secret=1)),
    infer("a parameter that is a list", parameters(mine=[1])),
    infer("a parameter that is an object", parameters(mine={"a": 1})),
    infer("a parameter that is null", parameters(mine=None)),
    infer("parameters that are no object", {"inputs": BOTH, "parameters": [1]}),
    infer("sequence_id that is a fraction", parameters(sequence_id=1.5)),
    infer("sequence_id of 128 characters", parameters(sequence_id="x" * 128)),
    infer("sequence_id of 129 characters", parameters(sequence_id="x" * 129)),
    infer("sequence_start that is text", parameters(sequence_start="yes")),
    infer("sequence_end that is a number", parameters(sequence_end=1)),
    infer("priority that is text", parameters(priority="high")),
    infer("timeout below zero", parameters(timeout=-1)),
    infer("binary_data_output that is text", parameters(binary_data_output="yes")),
    infer("headers as a parameter", parameters(headers="a")),
    infer("an id that is a number", {"id": 7, "inputs": BOTH}),
]

MISBEHAVIOUR = [
    misbehave("raise_value_error:on purpose"),
    misbehave("raise_model_exception:on purpose"),
    *(
        misbehave(f"error_with_code:{code}")
        for code in (
            "UNKNOWN",
            "INTERNAL",
            "NOT_FOUND",
            "INVALID_ARG",
            "UNAVAILABLE",
            "UNSUPPORTED",
            "ALREADY_EXISTS",
            "CANCELLED",
        )
    ),
    misbehave("error_without_code:"),
    misbehave("answer_with_a_tuple:"),
    misbehave("answer_too_often:"),
    misbehave("answer_with_text:"),
    misbehave("answer_an_unknown_output:"),
]

ROUTES = [
    *(
        Case(name=f"{method} {path}", method=method, path=path)
        for method, path in (
            ("GET", "/"),
            ("GET", "/v1"),
            ("GET", "/v2/"),
            ("GET", "/v2/nothing"),
            ("GET", "/v2/health/nothing"),
            ("POST", "/v2/health/live"),
            ("POST", "/v2"),
            ("DELETE", "/v2/health/ready"),
            ("GET", "/v2/health/ready"),
            ("GET", "/v2/models/add_sub/infer"),
            ("PUT", "/v2/models/add_sub/infer"),
            ("POST", "/v2/models/add_sub/config"),
            ("POST", "/v2/models/add_sub/nothing"),
            ("GET", "/v2/models/unknown"),
            ("GET", "/v2/models/unknown/ready"),
            ("GET", "/v2/models/unknown/config"),
            ("GET", "/v2/models/unknown/stats"),
            ("GET", "/v2/models/add_sub/versions/9"),
            ("GET", "/v2/models/add_sub/versions/9/ready"),
            ("GET", "/v2/models/add_sub/versions/9/config"),
            ("GET", "/v2/models/add_sub/versions/9/stats"),
            ("GET", "/v2/models/fails_to_load"),
            ("GET", "/v2/models/fails_to_load/ready"),
            ("GET", "/v2/models/fails_to_load/config"),
            ("GET", "/v2/repository/index"),
            ("POST", "/v2/repository/models/add_sub/load"),
            ("POST", "/v2/repository/models/add_sub/unload"),
            ("POST", "/v2/repository/somewhere/index"),
            ("GET", "/metrics"),
        )
    ),
    Case(name="an index asked with text for ready", path="/v2/repository/index", body=b'{"ready": "yes"}'),
    Case(name="an index asked with no JSON", path="/v2/repository/index", body=b"ready?", only_prefix=_PARSER),
]

CASES = [*MODELS, *BODIES, *INPUTS, *BINARY, *OUTPUTS, *PARAMETERS, *MISBEHAVIOUR, *ROUTES]
