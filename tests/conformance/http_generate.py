"""Valid and invalid requests of the generate extension."""

from __future__ import annotations

import json
from typing import Any

from conformance.cases import Case

_FOUR = [1, 2, 3, 4]
_PARSER = "failed to parse the request JSON buffer: "


def generate(name: str, content: Any, model: str, *, kind: str = "generate", **other: Any) -> Case:
    """A request to generate, or with another `kind` to generate_stream."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Case(name=f"{kind}: {name}", path=f"/v2/models/{model}/{kind}", body=body, **other)


def stream(name: str, content: Any, model: str, **other: Any) -> Case:
    return generate(name, content, model, kind="generate_stream", **other)


def of_type(name: str, value: Any) -> Case:
    return generate(f"{name} of {json.dumps(value)}", {f"IN_{name}": value}, "all_types")


RIGHT = [
    generate("tensors", {"INPUT0": _FOUR, "INPUT1": [0.5, 0.25, 0.125, 10.0]}, "add_sub"),
    generate("tensors within parameters", {"INPUT0": _FOUR, "parameters": {"INPUT1": _FOUR}}, "add_sub"),
    generate("a version in the path", {"INPUT0": _FOUR, "INPUT1": _FOUR}, "add_sub/versions/1"),
    generate("a batch of one", {"INPUT0": _FOUR, "INPUT1": _FOUR}, "batched"),
    generate("a batch of two", {"INPUT0": _FOUR * 2, "INPUT1": _FOUR * 2}, "batched"),
    generate("an optional input left out", {"INPUT0": [1, 2]}, "optional_input"),
    generate("an optional input given", {"INPUT0": [1, 2], "INPUT1": [3, 4]}, "optional_input"),
    generate("a text", {"INPUT0": "hello"}, "identity_bytes"),
    generate("texts", {"INPUT0": ["a", "", 'q"\\\n\u0000\u00fc\U0001f600']}, "identity_bytes"),
    generate("a text in a nested list", {"INPUT0": [["a"]]}, "identity_bytes"),
    generate("no text at all", {"INPUT0": []}, "identity_bytes"),
    generate("no number at all", {"INPUT0": []}, "identity_fp32"),
    generate("numbers in nested lists", {"INPUT0": [[1], [2]]}, "identity_fp32"),
    generate("an id", {"id": "seven \u00fc", "INPUT0": "x"}, "identity_bytes"),
    generate("an empty id", {"id": "", "INPUT0": "x"}, "identity_bytes"),
    generate(
        "unknown keys",
        {"id": "seven", "INPUT0": 1, "i": 2, "b": True, "s": "t", "f": 1.5, "parameters": {"n": -1}},
        "echo_parameters",
    ),
    generate(
        "names that are reserved elsewhere",
        {"INPUT0": 1, "timeout": 5, "sequence_id": "a", "priority": "x", "triton_x": 1, "binary_data_output": True},
        "echo_parameters",
    ),
    generate("an id within parameters", {"INPUT0": 1, "parameters": {"id": "inner"}}, "echo_parameters"),
    generate("the highest version", {"INPUT0": 1}, "versions"),
    of_type("BOOL", [True, False]),
    of_type("UINT8", [1, 300]),
    of_type("INT8", [-1, -200]),
    of_type("UINT64", 2**64 - 1),
    of_type("INT64", [-(2**63), 2**63 - 1]),
    of_type("FP64", [0.1, 1e300, 1.0]),
    of_type("FP32", [0.1, 100]),
    generate("a body by identity", {"INPUT0": "x"}, "identity_bytes", headers={"Content-Encoding": "identity"}),
    generate("an answer is never compressed", {"INPUT0": "x"}, "identity_bytes", headers={"Accept-Encoding": "gzip"}),
    generate(
        "a header for infer alone", {"INPUT0": "x"}, "identity_bytes", headers={"Inference-Header-Content-Length": "3"}
    ),
    generate("outputs of another datatype", {"MODE": "answer_another_datatype"}, "misbehaves"),
    generate("outputs of another shape", {"MODE": "answer_another_shape"}, "misbehaves"),
    generate("no output", {"MODE": "answer_no_output"}, "misbehaves"),
    stream("one event", {"INPUT0": ["a", "b"], "id": "seven"}, "identity_bytes"),
    stream("no output", {"MODE": "answer_no_output"}, "misbehaves"),
]

WRONG = [
    generate("an unknown model", {}, "nothing_of_that_name"),
    generate("an unknown version", {}, "add_sub/versions/9"),
    generate("an unknown model and coding", {}, "nothing_of_that_name", headers={"Content-Encoding": "gzip"}),
    generate("a gzip body", {"INPUT0": "x"}, "identity_bytes", headers={"Content-Encoding": "gzip"}),
    generate("an unknown coding", {"INPUT0": "x"}, "identity_bytes", headers={"Content-Encoding": "br"}),
    generate("an empty body", b"", "add_sub", only_prefix=_PARSER),
    generate("no JSON at all", b"garbage", "add_sub", only_prefix=_PARSER),
    generate("JSON with something behind it", b"{} x", "add_sub", only_prefix=_PARSER),
    generate("an array for a body", [1], "add_sub"),
    generate("no inputs", {}, "add_sub"),
    generate("an input missing", {"INPUT0": _FOUR}, "batched"),
    generate("an input twice", {"id": "seven", "INPUT0": 1, "parameters": {"INPUT0": 2}}, "echo_parameters"),
    generate("too few elements", {"INPUT0": [1, 2, 3], "INPUT1": _FOUR}, "add_sub"),
    generate("a nested list for a batch", {"INPUT0": [_FOUR, _FOUR], "INPUT1": _FOUR}, "batched"),
    generate(
        "batches that differ",
        {"INPUT0": _FOUR, "INPUT1": _FOUR * 2},
        "batched",
        unordered=("INPUT0", "INPUT1"),
    ),
    generate("a batch too large", {"INPUT0": _FOUR * 9, "INPUT1": _FOUR * 9}, "batched"),
    generate("more elements than the outer list has", {"INPUT0": [[1, 2]]}, "identity_fp32"),
    generate("more texts than the outer list has", {"INPUT0": [["a", "b"]]}, "identity_bytes"),
    *(of_type("INT64", value) for value in ("1", 1.5, True, None, {"x": 1}, 2**63)),
    *(of_type("UINT64", value) for value in (-1, 1.0, [1, True])),
    *(of_type("FP32", value) for value in ("x", [1, False])),
    *(of_type("BOOL", value) for value in (1, "true")),
    *(of_type("BYTES", value) for value in (1, ["a", 1])),
    of_type("FP16", 1.0),
    of_type("BF16", 1.0),
    *(generate(f"an id of {json.dumps(value)}", {"id": value}, "add_sub") for value in (5, None)),
    *(generate(f"parameters of {json.dumps(value)}", {"parameters": value}, "add_sub") for value in (5, [1], None)),
    *(generate(f"a parameter of {json.dumps(value)}", {"x": value}, "add_sub") for value in (None, [1], {"y": 1})),
    generate("a parameter of a list within", {"parameters": {"x": [1]}}, "add_sub"),
    generate("parameters within parameters", {"parameters": {"parameters": {}}}, "add_sub"),
    *(
        generate(f"a model that does {mode}", {"MODE": mode}, "misbehaves")
        for mode in ("raise_value_error:on purpose", "error_with_code:UNAVAILABLE", "error_without_code")
    ),
    *(
        stream(f"a model that does {mode}", {"MODE": mode}, "misbehaves")
        for mode in ("raise_value_error:on purpose", "error_with_code:UNAVAILABLE")
    ),
    stream("an unknown model", {}, "nothing_of_that_name"),
    stream("no JSON at all", b"garbage", "add_sub", only_prefix=_PARSER),
    *(
        Case(name=f"{method} {kind}", method=method, path=f"/v2/models/add_sub/{kind}")
        for kind in ("generate", "generate_stream")
        for method in ("GET", "HEAD", "PUT")
    ),
]

DECOUPLED = [
    *(generate(f"{count} responses", {"COUNT": count}, "decoupled") for count in (0, 1, 2)),
    *(stream(f"{count} responses", {"COUNT": count, "id": "seven"}, "decoupled") for count in (0, 1, 3)),
    stream("a list for a number", {"COUNT": [1]}, "decoupled"),
    stream("a count that is text", {"COUNT": "x"}, "decoupled"),
]

CASES = [*RIGHT, *WRONG, *DECOUPLED]
