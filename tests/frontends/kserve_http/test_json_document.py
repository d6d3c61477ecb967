"""The JSON of requests: what the reference reads beyond standard JSON is read, and the rest is refused by its place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from naiad.core.errors import Code, InvalidRequestError, MalformedRequestError
from naiad.frontends.kserve_http.infer_request import parse_infer
from naiad.frontends.kserve_http.infer_request_parser import InferRequestParser
from naiad.frontends.kserve_http.json_document import may_repeat_names, parse_json
from naiad.protocol.inference import InferRequest
from naiad.protocol.model_names import LATEST


def infer(text: bytes) -> InferRequest:
    return parse_infer(text, None, "m", LATEST, 1 << 20)[0]


def tensor(datatype: str, data: str, count: int) -> bytes:
    return f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[{count}],"data":[{data}]}}]}}'.encode("latin-1")


def elements(request: InferRequest) -> bytes:
    return bytes(request.inputs[0].data)


def test_bytes_that_are_not_utf8_are_elements_of_tensors_unchanged() -> None:
    request = infer(tensor("BYTES", '"\xff\xfea","\\u00e9","\xe9\\n"', 3))

    assert elements(request) == b"\x03\0\0\0\xff\xfea" + b"\x02\0\0\0\xc3\xa9" + b"\x02\0\0\0\xe9\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b'{"id":"a\xff","inputs":[]}', "a\\xff"),
        (b'{"inputs":[{"name":"\xc3","datatype":"BYTES","shape":[1],"data":["\xff"]}]}', "\\xc3"),
        (b'{"inputs":[],"parameters":{"k\x80":1}}', "k\\x80"),
        (b'{"inputs":[],"parameters":{"k":"\x80"}}', "\\x80"),
        (b'{"inputs":[],"outputs":[{"name":"\x80"}]}', "\\x80"),
    ],
)
def test_all_other_text_must_be_utf8(text: bytes, shown: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        infer(text)

    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.message == (
        f"cannot read the request JSON buffer: '{shown}' is not UTF-8; only elements of BYTES tensors may have other bytes"
    )


def test_numbers_that_are_not_finite_are_read_by_all_their_names() -> None:
    words = "NaN,-NaN,Inf,-Inf,Infinity,-Infinity, Inf ,1.5"
    request = infer(tensor("FP64", words, 8))

    values = memoryview(elements(request)).cast("d").tolist()
    assert [math.isnan(value) for value in values] == [True, True] + [False] * 6
    assert values[2:] == [math.inf, -math.inf, math.inf, -math.inf, math.inf, 1.5]


def test_these_names_in_strings_are_text() -> None:
    text = b'{"id":"Inf \\"NaN\\" \\\\","inputs":[{"name":"-Inf","datatype":"FP32","shape":[1],"data":[-Inf]}]}'

    request = infer(text)

    assert (request.request_id, request.inputs[0].name) == ('Inf "NaN" \\', "-Inf")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a":[NaN,}', "unexpected character, expected a JSON value at 10"),
        (b'{"a":[1NaN]}', "unexpected character, expected ',' or ']' at 7"),
        (b'{"a":[+Inf]}', "no digit after sign at 6"),
        (b'{"a":[nan]}', "invalid literal, expected 'null' at 6"),
        (b'{"a":[Infinit]}', "unexpected character, expected a JSON value at 6"),
        (b'{"\xff":[1,}', "unexpected character, expected a JSON value at 8"),
        (b'{"a":1e999}', "a number is too large for a double at 5"),
        (b'{"a":["\xff","\\udc80"]}', "invalid high surrogate in string at 11"),
        (b"\xff", "unexpected character, expected a JSON value at 0"),
    ],
)
def test_what_is_malformed_is_refused_by_its_place(text: bytes, why: str) -> None:
    with pytest.raises(MalformedRequestError) as raised:
        parse_json(text)

    assert raised.value.message == f"failed to parse the request JSON buffer: {why}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', {"a": 1, "b": 2}),
        (b'{"a" : 1, "\\u0061": 3}', {"a": 1}),
        (b'{"a:": ":", "a:": 3}', {"a:": ":"}),
        (b'{"a": {"b": 1, "b": [2]}, "c": [{"d": 1, "d": 2}]}', {"a": {"b": 1}, "c": [{"d": 1}]}),
        (b'{"a": NaN, "a": 3, "b": 18446744073709551616, "c": 18446744073709551615}', None),
    ],
)
def test_of_two_members_with_one_name_the_first_counts(text: bytes, expected: Any) -> None:
    document = parse_json(text)

    if expected is None:
        assert math.isnan(document.pop("a"))
        expected = {"b": 2.0**64, "c": 2**64 - 1}
    assert document == expected
    assert [type(value) for value in document.values()] == [type(value) for value in expected.values()]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (",", " :\n")])
def test_usual_requests_are_read_once(separators: tuple[str, str]) -> None:
    document = {
        "id": "a:b",
        "parameters": {"k": 1, "url": "http://x"},
        "inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": ["http://a:80", "b"], "parameters": {}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
    }

    assert not may_repeat_names(json.dumps(document, separators=separators).encode(), document)


def test_of_two_ids_the_first_counts_in_repeated_requests_too() -> None:
    parser = InferRequestParser("m", LATEST, 1 << 20)
    rest = b'"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[%d]}],"id":"last"}'
    ids, binary = [], []

    for number in range(6):
        text = b'{"id":"first%d",' % number + rest % number
        request = parser.parse(text, None)[0]
        ids.append((request.request_id, int.from_bytes(elements(request), "little")))
        head = text.replace(b'"data":[%d]' % number, b'"parameters":{"binary_data_size":4}')
        request = parser.parse(head + number.to_bytes(4, "little"), b"%d" % len(head))[0]
        binary.append((request.request_id, int.from_bytes(elements(request), "little")))

    assert ids == binary == [(f"first{number}", number) for number in range(6)]
