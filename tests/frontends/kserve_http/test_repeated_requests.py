"""Requests recognised by their JSON equal those that are parsed, and so do their responses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.errors import MalformedRequestError
from naiad.frontends.http1.messages import response
from naiad.frontends.kserve_http.infer_request import parse_infer
from naiad.frontends.kserve_http.infer_request_parser import InferRequestParser
from naiad.frontends.kserve_http.infer_response import infer_response, write_infer
from naiad.frontends.kserve_http.response_format import RepeatedResponses, ResponseFormat
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor

INPUT = {"name": "X", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}}
REST = f'"inputs":{json.dumps([INPUT])},"outputs":[{{"name":"Y","parameters":{{"binary_data":true}}}}]'


def parser() -> InferRequestParser:
    return InferRequestParser("m", -1, 1 << 20)


def read(text: str, data: bytes, by: InferRequestParser | None = None):
    """The parts of a request, and its layout key."""
    given = text.encode()
    length = b"%d" % len(given)
    request, form = by.parse(given + data, length) if by else parse_infer(given + data, length, "m", -1, 1 << 20)
    inputs = [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in request.inputs]
    facts = (request.request_id, inputs, list(request.requested_outputs), dict(request.parameters), form.binary)
    return facts, request.layout_key


IDS = [
    "{%s}",
    '{"id":"1",%s}',
    '{"id":"2",%s}',
    '{ "id" : "spaced out" , %s}',
    '{"id":"","a":1,%s}',
    '{"id":"",%s}',
    r'{"id":"a\"b",%s}',
    r'{"id":"\u0041",%s}',
    '{"id":"\u00fc",%s}',
    '{"id":"first","id":"second",%s}',
    '{"id":"first","id":"third",%s}',
    r'{"id":"first","\u0069d":"escaped",%s}',
    '{%s,"id":"behind"}',
    '{"id":"before",%s,"id":"behind"}',
    '{"id":"with a parameter","parameters":{"p":1},%s}',
]


@pytest.mark.parametrize("form", IDS)
def test_a_request_is_read_alike_whatever_came_before(form):
    known = parser()
    for before in IDS:
        assert read(before % REST, b"ab", known)[0] == read(before % REST, b"ab")[0]

    assert read(form % REST, b"cd", known)[0] == read(form % REST, b"cd")[0]


@given(st.lists(st.text(max_size=12), min_size=2, max_size=6))
def test_requests_with_any_ids_are_read_as_by_themselves(ids):
    known = parser()
    for number, given_id in enumerate(ids):
        text = f'{{"id":{json.dumps(given_id, ensure_ascii=number % 2 == 0)},{REST}}}'
        text = text.encode("utf-8", "replace").decode()
        assert read(text, b"ab", known)[0] == read(text, b"ab")[0]


def test_requests_that_differ_in_their_id_are_of_one_pattern():
    known = parser()

    found = [read(f'{{"id":"{number}",{REST}}}', b"ab", known)[1] for number in range(3)]

    assert found[0] is found[1] is found[2] is not None
    assert read(f"{{{REST}}}", b"ab", known)[1] is not found[0]


@pytest.mark.parametrize("malformed", ['{"id":"1",{%s}', "%s}", '"id":"1",%s}', "{%s"])
def test_a_known_request_within_malformed_json_is_refused(malformed):
    known = parser()
    read(f"{{{REST}}}", b"ab", known)
    read(f'{{"id":"1",{REST}}}', b"ab", known)

    with pytest.raises(MalformedRequestError, match="failed to parse the request JSON buffer"):
        read(malformed % REST, b"ab", known)


def answer(data: bytes, layout: object, request_id: str = "", **more) -> InferResponse:
    outputs = [
        OutputTensor("Y", Datatype.UINT8, (len(data),), data),
        OutputTensor("Z", Datatype.FP32, (0,), memoryview(b"")),
    ]
    return InferResponse("m", 3, request_id, outputs, layout=layout, **more)


@pytest.mark.parametrize("is_binary", [True, False])
def test_answers_of_one_layout_are_as_if_each_were_the_first(is_binary):
    form, layout = ResponseFormat(binary_by_default=is_binary, repeated=RepeatedResponses()), object()
    for given_id in ("", "1", "2", "", 'quo"ted', "\u00fc", "1"):
        for data in (b"abc", b"def"):
            told = answer(data, layout, given_id)
            body, kind, extra = infer_response(told, form)

            assert b"".join(write_infer(told, form)) == b"".join(response(200, body, kind, extra))


def test_a_response_with_parameters_is_not_made_from_a_template():
    form, layout = ResponseFormat(binary_by_default=True, repeated=RepeatedResponses()), object()
    write_infer(answer(b"abc", layout, "1"), form)

    told = b"".join(write_infer(answer(b"abc", layout, "1", parameters={"p": 1}), form))

    assert b'"parameters":{"p":1}' in told
