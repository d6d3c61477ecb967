"""What `naiad run --input NAME=VALUE` sends of a value."""

import math
import struct

import numpy as np
import pytest

from naiad.cli.run_input import input_tensor
from naiad.core.errors import InvalidRequestError
from naiad.protocol.metadata import TensorMetadata


def sent(datatype, value, shape=(-1,)):
    tensor = input_tensor(TensorMetadata(name="X", datatype=datatype, shape=shape), value)
    assert (tensor.name, tensor.datatype.name) == ("X", datatype)
    return tensor.shape, tensor.data


@pytest.mark.parametrize(
    ("datatype", "value", "data"),
    [
        ("FP32", [1, 2.5], struct.pack("<2f", 1, 2.5)),
        ("FP16", [1, 2.5], struct.pack("<2e", 1, 2.5)),
        ("FP16", np.array([1, 2.5], "f4"), struct.pack("<2e", 1, 2.5)),
        ("FP64", np.array([1, math.inf], ">f8"), struct.pack("<2d", 1, math.inf)),
        ("BF16", [1, -2], b"\x80\x3f\x00\xc0"),
        ("UINT8", [0, 255], b"\x00\xff"),
        ("INT64", [-(2**63), 1], struct.pack("<2q", -(2**63), 1)),
        ("UINT64", [2**64 - 1, 0], b"\xff" * 8 + bytes(8)),
        ("INT8", np.array([-1, 2], "i8"), b"\xff\x02"),
        ("BOOL", [True, False], b"\x01\x00"),
        ("BYTES", ["ä", 1], b"\x02\0\0\0\xc3\xa4\x01\0\0\x001"),
        ("BYTES", np.array([b"\xff\xfe", b"a"]), b"\x02\0\0\0\xff\xfe\x01\0\0\0a"),
    ],
)
def test_a_value_becomes_the_bytes_of_the_models_datatype(datatype, value, data):
    assert sent(datatype, value) == ((2,), data)


def test_bf16_is_rounded_to_the_nearest():
    values = [1.00390625, 1.01171875, 1.005, math.nan, 3.4e38, -math.inf]

    _, data = sent("BF16", np.array(values, "f4"))

    assert [f"{half:04x}" for half in struct.unpack("<6H", data)] == ["3f80", "3f82", "3f81", "7fc0", "7f80", "ff80"]


def test_nan_is_sent_from_an_array():
    _, data = sent("FP32", np.array([math.nan], "f4"))

    assert math.isnan(struct.unpack("<f", data)[0])


@pytest.mark.parametrize(
    ("value", "wanted", "shape"),
    [
        ([1, 2], (-1, -1), (1, 2)),
        (1, (-1, 1), (1, 1)),
        ([[1, 2, 3], [4, 5, 6]], (-1, 3), (2, 3)),
        ([], (-1,), (0,)),
        (np.zeros((2, 0)), (-1, -1, -1), (1, 2, 0)),
    ],
)
def test_dimensions_that_are_missing_are_added_in_front(value, wanted, shape):
    assert sent("FP32", value, wanted)[0] == shape


@pytest.mark.parametrize(
    ("datatype", "value", "message"),
    [
        ("FP32", "[1, 2", "input 'X' takes FP32, not '[1, 2'"),
        ("FP32", [1, None], "input 'X' takes FP32, not None"),
        ("FP32", [True], "input 'X' takes FP32, not True"),
        ("FP32", {"a": 1}, "input 'X' takes FP32, not {'a': 1}"),
        ("INT32", [1, 1.5], "input 'X' takes INT32, not 1.5"),
        ("BOOL", [1], "input 'X' takes BOOL, not 1"),
        ("UINT8", [1, 300], "input 'X' takes UINT8, not 300"),
        ("UINT8", np.array([-1, 3]), "input 'X' takes UINT8, not -1"),
        ("INT64", [2**63], "input 'X' takes INT64, not 9223372036854775808"),
        ("UINT64", [2**64], "input 'X' takes UINT64, not 18446744073709551616"),
        ("FP64", np.array([1j]), "input 'X' takes FP64, not an array of complex128"),
        ("INT8", np.array([1.0]), "input 'X' takes INT8, not an array of float64"),
        ("FP32", "a" * 100, "input 'X' takes FP32, not '" + "a" * 59 + "..."),
        ("FP32", [[1, 2], [3]], "input 'X': lists within a list must be of the same length"),
        ("FP32", [[1, 2], 3], "input 'X': lists within a list must be of the same length"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_the_input(datatype, value, message):
    with pytest.raises(InvalidRequestError) as caught:
        sent(datatype, value)

    assert caught.value.message == message
