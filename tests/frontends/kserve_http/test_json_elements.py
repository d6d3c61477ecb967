"""The JSON elements that each datatype accepts, as measured on Triton 2.51. Implicit conversions of numpy are rejected."""

import tracemalloc

import numpy as np
import orjson
import pytest

from naiad.core.errors import MalformedRequestError
from naiad.frontends.kserve_http.json_tensors import to_bytes
from naiad.protocol.datatypes import Datatype

_SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
_UNSIGNED = "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"
_DOUBLE = "Unable to parse 'data': attempt to access JSON non-number as double"
_BOOLEAN = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        (Datatype.UINT8, [-1], _UNSIGNED),
        (Datatype.UINT64, [1, -1], _UNSIGNED),
        (Datatype.UINT32, [2**63, -1], _UNSIGNED),
        (Datatype.UINT16, [True, 2], _UNSIGNED),
        (Datatype.UINT16, [float(2**64)], _UNSIGNED),
        (Datatype.INT64, [2**63], _SIGNED),
        (Datatype.INT8, [2**63, 1], _SIGNED),
        (Datatype.INT64, [1, False], _SIGNED),
        (Datatype.INT64, [[True], [2]], _SIGNED),
        (Datatype.INT64, [[7], [0, False]], _SIGNED),
        (Datatype.INT32, [1, 1.0], _SIGNED),
        (Datatype.FP32, [True, 1.5], _DOUBLE),
        (Datatype.FP64, [1, True], _DOUBLE),
        (Datatype.FP32, [1.5, None], _DOUBLE),
        (Datatype.BOOL, [True, 1], _BOOLEAN),
    ],
)
def test_elements_of_another_type_or_beyond_64_bits_are_refused(datatype, data, message):
    count = len([*np.concatenate([np.atleast_1d(item) for item in data])])
    with pytest.raises(MalformedRequestError) as refusal:
        to_bytes("IN", datatype, (count,), data)
    assert refusal.value.message == message


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        (Datatype.UINT8, [300, 256], np.array([44, 0], np.uint8)),
        (Datatype.UINT8, [2**64 - 1], np.array([255], np.uint8)),
        (Datatype.INT64, [-(2**63), 0, 1], np.array([-(2**63), 0, 1], np.int64)),
        (Datatype.INT32, [2**40 + 5], np.array([5], np.int32)),
        (Datatype.FP32, [0, 1, 2.5], np.array([0, 1, 2.5], np.float32)),
        (Datatype.FP64, [2**63, -1], np.array([2.0**63, -1], np.float64)),
        (Datatype.FP32, [[1.5], [2.5, 3.5]], np.array([1.5, 2.5, 3.5], np.float32)),
        (Datatype.INT16, [[1], [2, -3]], np.array([1, 2, -3], np.int16)),
        (Datatype.BOOL, [True, False], np.array([True, False])),
        (Datatype.INT8, [], np.array([], np.int8)),
    ],
)
def test_elements_that_fit_become_the_tensors_own_and_wide_integers_are_cut(datatype, data, expected):
    assert to_bytes("IN", datatype, expected.shape, data) == expected.tobytes()


@pytest.mark.parametrize("data", [["x" * 20_000, *range(20_000)], [["x" * 20_000], *([n] for n in range(20_000))]])
def test_a_long_string_among_numbers_takes_no_more_memory_than_they_do(data):
    tracemalloc.start()
    with pytest.raises(MalformedRequestError) as refusal:
        to_bytes("IN", Datatype.INT32, (20_001,), data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert refusal.value.message == _SIGNED
    assert peak < 4 << 20


def test_lists_may_be_nested_as_deeply_as_json_is():
    assert to_bytes("IN", Datatype.UINT8, (1,), orjson.loads("[" * 1000 + "7" + "]" * 1000)) == b"\x07"
