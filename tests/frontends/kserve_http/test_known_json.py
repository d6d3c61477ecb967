"""Requests recognised by the skeleton of their JSON equal those that are parsed, and are refused for the same reasons."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.errors import NaiadError
from naiad.frontends.http1.messages import response
from naiad.frontends.kserve_http.infer_request import parse_infer
from naiad.frontends.kserve_http.infer_request_parser import InferRequestParser, split
from naiad.frontends.kserve_http.infer_response import infer_response, write_infer
from naiad.frontends.kserve_http.response_format import RepeatedResponses, ResponseFormat
from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.inference import InferResponse, OutputTensor

MAX_JSON = 1 << 20
TYPES = [name for name in BY_NAME if name not in ("FP16", "BF16")]


def parser(max_json: int = MAX_JSON) -> InferRequestParser:
    return InferRequestParser("m", -1, max_json)


def read(text: str | bytes, by: InferRequestParser | None = None, max_json: int = MAX_JSON):
    """The parts of a request; the error's text for a request that is refused."""
    body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        request, form = by.parse(body, None) if by else parse_infer(body, None, "m", -1, max_json)
    except NaiadError as problem:
        return type(problem), problem.message
    inputs = [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in request.inputs]
    return (
        request.request_id,
        inputs,
        list(request.requested_outputs),
        dict(request.parameters),
        (request.correlation_id, request.flags, request.priority, request.timeout_us),
        form.binary,
    )


def layout_key(text: str, by: InferRequestParser) -> object:
    return by.parse(text.encode(), None)[0].layout_key


def one_input(data: str, datatype: str = "FP32", shape: str = "[2]") -> str:
    return f'{{"inputs":[{{"name":"X","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}'


ELEMENTS = [
    "[1,2]",
    "[1.5,-2.25e-3]",
    "[ 1 , 2 ]",
    "[[1],[2]]",
    "[[1,2]]",
    "[[1],2]",
    "[1,[2]]",
    "[[[[1]]],[2]]",
    "[1]",
    "[1,2,3]",
    "[]",
    "[[]]",
    "[true,false]",
    "[true,1]",
    "[1,false]",
    "[1e0,true]",
    "[1,2.0]",
    "[-1,2]",
    "[300,70000]",
    "[1152921573326323713,1]",  # which FP32 has in another way if it is not rounded to FP64 before
    "[9223372036854775807,-9223372036854775808]",
    "[9223372036854775808,1]",
    "[18446744073709551615,1]",
    "[18446744073709551616,1]",
    "[1e300,-1e300]",
    "[1e400,1]",
    "[NaN,1]",
    "[-Infinity,1]",
    "[-0,-0.0]",
    "[null,1]",
    '["a","b"]',
    '["a",1]',
    '["]}","\\"data\\":[1]"]',
    '["\\u0041","\\ud800"]',
    '["\u00fc",""]',
    '[["a"],["b"]]',
    '{"a":1}',
    "[{},{}]",
    '[{"data":[1]},1]',
    '"ab"',
    "12",
    "null",
    "[1,2",
    "1,2]",
    "[1,,2]",
    "[1,2],",
    "[01,2]",
    "[1 2]",
    "[1,2]]",
    "[1,2]}],",
    "[1,2]/**/",
    "[1,2]\x00",
    "[1,2]\ud800",
    "[" * 99 + "1,2" + "]" * 99,
    "[" * 2000 + "1" + "]" * 2000,
]


@pytest.mark.parametrize("datatype", [*BY_NAME, "FP8", "fp32"])
def test_a_list_is_read_alike_whether_its_skeleton_is_known_or_not(datatype):
    good = {"BOOL": "[true,false]", "BYTES": '["a","b"]'}.get(datatype, "[1,2]")
    known = parser()
    for _ in range(2):
        for data in [good, good, *ELEMENTS]:
            text = one_input(data, datatype)

            assert read(text, known) == read(text)


@pytest.mark.parametrize("datatype", TYPES)
def test_a_third_request_with_the_same_skeleton_is_not_parsed_again(datatype, monkeypatch):
    first, second = {"BOOL": ("[true,false]", "[false,true]"), "BYTES": ('["a","b"]', '["","]}"]')}.get(
        datatype, ("[1,2]", "[[30],[4]]")
    )
    known, expected = parser(), read(one_input(second, datatype))
    read(one_input(first, datatype), known)
    read(one_input(first, datatype), known)
    monkeypatch.setattr("naiad.frontends.kserve_http.infer_request_parser.parse_infer", None)

    assert read(one_input(second, datatype), known) == expected


NUMBERS = '"shape":[2],"datatype":"FP32"'
DOCUMENTS = [
    # written in another way
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]},{"name":"Y",NUMBERS,"data":[3,4]}]}',
    '{"inputs": [{"name": "X", NUMBERS, "data": [1, 2]}, {"name": "Y", NUMBERS, "data": [3, 4]}]}\n',
    '{"inputs":[{"data":[1,2],"name":"X",NUMBERS},{"name":"Y","data":[3,4],NUMBERS}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]\n}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data" :[1,2]}]}',
    '{"inputs":[{"name":"data",NUMBERS,"data":[1,2]},{"name":"Y",NUMBERS,"data":[3,4]}]}',
    '{"inputs":[{"name":"X","shape":[2],"datatype":"BYTES","data":["]}","}]"]},{"name":"Y",NUMBERS,"data":[3,4]}]}',
    '{"inputs":[{"name":"X","shape":[2],"datatype":"BYTES","data":["a"\n,\n"b" ] , "parameters":{}}]}',
    '\ufeff{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}\x00\x00',
    # with more members
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}],"outputs":[{"name":"O","parameters":{"binary_data":true}}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}],"parameters":{"binary_data_output":true,"p":"q"}}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}],"parameters":{"sequence_id":7,"sequence_start":true,"priority":1}}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}],"parameters":{"data":"[1,2]"}}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}],"more":{"data":[1,2]}}',
    '{"more":{"data":[1,2]},"inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}',
    '{"more":{"data":[1,2]},"inputs":[{"name":"X",NUMBERS,"data" :[1,2]}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data" :[1,2]}],"more":{"data":[1,2]}}',
    '{"model_name":"n","outputs":[{"name":"X",NUMBERS,"data":[1,2]}]}',
    # with the same member twice
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2],"data":[3,4]}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[3,4],"data" :[1,2]}]}',
    r'{"inputs":[{"name":"X",NUMBERS,"data":[1,2],"d\u0061ta":[3,4]}]}',
    r'{"inputs":[{"name":"X",NUMBERS,"d\u0061ta":[1,2],"parameters":{"data":[1,2]}}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}],"inputs":[{"name":"Y",NUMBERS,"data":[3,4]}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}],"inputs":[]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}],"id":"1","id":"2"}',
    '{"id":"1","inputs":[{"name":"X",NUMBERS,"data":[1,2]}],"id":"2"}',
    '{"id":"1","inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}',
    '{"id":7,"inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}',
    '{"id":"1","id":"2","inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}',
    # with other sources of data
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2],"parameters":{"binary_data_size":0}}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]},{"name":"Y","shape":[0],"parameters":{"binary_data_size":0}}]}',
    '{"inputs":[{"name":"X",NUMBERS,"parameters":{"shared_memory_region":"r","data":[1,2]}}]}',
    # malformed
    '"inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}',
    '{"id":"1",{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}]},"data":[3,4]}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}}',
    '{"inputs":[{"name":"X",NUMBERS,"data":',
    '{"inputs":[{"name":"X",NUMBERS,"data":"}]}',
    '"data":[1]"data":}"data":"',
    '{"inputs":[{"name":"X\\"data\\":[1,2]}",NUMBERS,"data":[1,2]}]}',
    r'{"inputs":[{"name":"X","\"data":[1,2],NUMBERS,"data":[1,2]}]}',
    "",
    "[]",
    "{}",
    '{"inputs":[]}',
]


EARLIER = [
    '{"id":"1","inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}',
    '{"inputs":[{"name":"X",NUMBERS,"data":[1,2]}]}',
]


@pytest.mark.parametrize("latest", [1, -1])
@pytest.mark.parametrize("text", DOCUMENTS)
def test_a_document_is_read_alike_whatever_came_before(text, latest):
    known = parser()
    for each in [*DOCUMENTS, *DOCUMENTS, *EARLIER[::latest]]:
        read(each.replace("NUMBERS", NUMBERS), known)
    document = text.replace("NUMBERS", NUMBERS)
    for variant in (document, document.replace("[1,2]", "[5,6.5]", 1), document.replace("[3,4]", "[7,8]")):
        assert read(variant, known) == read(variant)
        assert read(variant, known) == read(variant)


VALUES = {
    "BOOL": st.booleans(),
    "BYTES": st.text(max_size=8),
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-(1 << 63), (1 << 64) - 1),
    "FP64": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(1 << 63), (1 << 64) - 1),
} | {
    f"{'U' * unsigned}INT{bits}": st.integers(0 if unsigned else -(1 << (bits - 1)), (1 << (bits - (not unsigned))) - 1)
    for bits in (8, 16, 32, 64)
    for unsigned in (0, 1)
}


@settings(deadline=None)
@given(st.data())
def test_any_lists_are_read_alike_with_any_skeletons(data):
    known = parser()
    names = data.draw(st.lists(st.text(max_size=6), min_size=1, max_size=3))
    types = [data.draw(st.sampled_from(TYPES)) for _ in names]
    separators = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", ":\n")]))
    order = data.draw(st.permutations(["name", "shape", "datatype", "data"]))
    for number in range(5):
        size = data.draw(st.integers(0, 1))
        inputs = []
        for name, datatype in zip(names, types, strict=True):
            values = data.draw(st.lists(VALUES[datatype], min_size=size, max_size=size))
            entry = {"name": name, "shape": [size], "datatype": datatype, "data": values}
            inputs.append({member: entry[member] for member in order})
        document = {"id": f"request {number}", "inputs": inputs} if number else {"inputs": inputs}
        text = json.dumps(document, separators=separators, ensure_ascii=data.draw(st.booleans()))
        for each in (text, data.draw(_cut_somewhere(text))):
            assert read(each, known) == read(each)


def _cut_somewhere(text: str) -> st.SearchStrategy[str]:
    return st.integers(0, len(text)).flatmap(
        lambda at: st.integers(at, len(text)).map(lambda end: text[:at] + text[end:])
    )


@pytest.mark.parametrize(
    "part", ['"', '"a" ', '"a",', '"\\', '"data":', '"data":"}', '"data":[1}', '"data":[1,', '"data":["a",', " ", "["]
)
@pytest.mark.parametrize(("begin", "end"), [('"data":[', ""), ("", "}"), ('"data":[', '"]}')])
def test_long_hostile_text_is_cut_without_losing_a_byte(begin, part, end):
    # In quadratic time, a text of half a million bytes would take longer than a test may.
    text = begin + part * ((1 << 19) // len(part)) + end

    skeleton, lists = split(text.encode())

    assert len(skeleton) + sum(map(len, lists)) == len(text)
    assert skeleton.count(b'"data":') >= len(lists)


def test_requests_that_differ_in_their_numbers_and_ids_have_one_layout_key():
    known = parser()

    assert layout_key(one_input("[1,2]"), known) is None  # it may be the only one of its kind
    first = layout_key(one_input("[1,2]"), known)

    assert first is not None
    assert layout_key(one_input("[3,4.5]"), known) is first
    assert layout_key('{"id":"5",' + one_input("[3,4.5]")[1:], known) is not first


def test_requests_with_strings_have_no_layout_key_as_their_sizes_differ():
    known = parser()

    for text in ('["a","b"]', '["ab","c"]', '["a","bc"]'):
        assert layout_key(one_input(text, "BYTES"), known) is None


def test_a_known_skeleton_with_more_json_than_is_allowed_is_refused():
    limit = len(one_input("[1,2]"))
    known = parser(limit)
    read(one_input("[1,2]"), known)
    read(one_input("[1,2]"), known)

    assert read(one_input("[10,2]"), known) == read(one_input("[10,2]"), max_json=limit)
    assert "exceeds the maximum allowed input size" in read(one_input("[10,2]"), known)[1]


NUMBERS_OUT = {
    Datatype.FP32: ("f", [0.0, 0.1, -1e30, 16777217.0]),
    Datatype.FP64: ("d", [0.1, 1e300, -0.0, 5e-324]),
    Datatype.BOOL: ("?", [True, False]),
    Datatype.UINT64: ("Q", [2**64 - 1, 0]),
    Datatype.INT8: ("b", [-128, 127]),
}


def _outputs(repeat: int, *, finite: bool) -> list[OutputTensor]:
    outputs = []
    for datatype, (code, values) in NUMBERS_OUT.items():
        numbers = values * repeat
        if not finite and code in "fd":
            numbers = [*numbers[:-3], math.nan, math.inf, -math.inf]
        shape = (1, len(numbers))
        outputs.append(OutputTensor(datatype.name, datatype, shape, struct.pack(f"<{len(numbers)}{code}", *numbers)))
    texts = [b"null", "\u00fc".encode(), b'\xff"'] * repeat
    packed = b"".join(struct.pack("<I", len(each)) + each for each in texts)
    return [*outputs, OutputTensor("TEXTS", Datatype.BYTES, (len(texts),), memoryview(packed))]


@pytest.mark.parametrize("repeat", [1, 200])
@pytest.mark.parametrize("finite", [True, False])
def test_responses_of_one_layout_have_the_json_of_the_first(repeat, finite):
    form, layout = ResponseFormat(repeated=RepeatedResponses()), object()
    for given_id in ("", "1", "", 'quo"ted', "\u00fc"):
        result = InferResponse("m\u00fc", 3, given_id, _outputs(repeat, finite=finite), layout=layout)
        body, kind, extra = infer_response(result, form)

        assert b"".join(write_infer(result, form)) == b"".join(response(200, body, kind, extra))


def test_outputs_of_a_datatype_without_json_are_refused_each_time():
    form, layout = ResponseFormat(repeated=RepeatedResponses()), object()
    outputs = [OutputTensor("Y", Datatype.FP16, (1,), b"ab")]
    for _ in range(2):
        with pytest.raises(NaiadError, match="sending FP16 data via JSON is not supported"):
            write_infer(InferResponse("m", 1, "", outputs, layout=layout), form)
