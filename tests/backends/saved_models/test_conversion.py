"""Values of libraries as tensors: each arrives as it was, or the error says what to write."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from saved_models.conversion import as_array, fitted, plain
from saved_models.settings import TensorSettings

BIG = (1 << 63) + 5


def converted(value, data_type: str):
    return fitted(as_array(value), TensorSettings("y", data_type, (1,)), is_batching=True)


@pytest.mark.parametrize(
    ("value", "data_type", "shown", "needed"),
    [
        (np.array([1.0, 1.5]), "TYPE_INT64", "row 1 is 1.5", "TYPE_FP64"),
        (np.array([1.0, 5e29]), "TYPE_INT64", "row 1 is 5e+29", "TYPE_FP64"),
        (np.array([1.0, 2.0**63]), "TYPE_INT64", "row 1 is 9.223372036854776e+18", "TYPE_FP64"),
        (np.array([1.0, math.nan]), "TYPE_INT64", "row 1 is nan", "TYPE_FP64"),
        (np.array([1, 2147483653]), "TYPE_INT32", "row 1 is 2147483653", "TYPE_INT64"),
        (np.array([1, -1]), "TYPE_UINT64", "row 1 is -1", "TYPE_INT64"),
        (np.array([1, 300]), "TYPE_UINT8", "row 1 is 300", "TYPE_INT64"),
        (np.array([1, BIG], np.uint64), "TYPE_INT64", f"row 1 is {BIG}", "TYPE_UINT64"),
        ([-1, BIG], "TYPE_INT64", f"row 1 is {BIG}", "TYPE_UINT64"),
        ([1, 1 << 70], "TYPE_INT64", f"row 1 is {1 << 70}", "TYPE_STRING"),
        (np.array([1, (1 << 53) + 1]), "TYPE_FP64", "row 1 is 9007199254740993", "TYPE_INT64"),
        (np.array([1, (1 << 24) + 1]), "TYPE_FP32", "row 1 is 16777217", "TYPE_INT64"),
        (np.array([1, (1 << 63) - 1]), "TYPE_FP64", "row 1 is 9223372036854775807", "TYPE_INT64"),
        (np.array([1.0, 1e300]), "TYPE_FP32", "row 1 is 1e+300", "TYPE_FP64"),
        (np.array([1, 70000], np.float32), "TYPE_FP16", "row 1 is 70000.0", "TYPE_FP64"),
        (np.array([1, 70000]), "TYPE_FP16", "row 1 is 70000", "TYPE_INT64"),
        (np.array([True, 2], object), "TYPE_BOOL", "row 1 is 2", "TYPE_INT64"),
        (np.array(["False"]), "TYPE_BOOL", "row 0 is 'False'", "TYPE_STRING"),
        (np.array(["12"], object), "TYPE_INT64", "row 0 is '12'", "TYPE_STRING"),
        (np.array(["1.5"]), "TYPE_FP32", "row 0 is '1.5'", "TYPE_STRING"),
        (np.array([1 + 2j]), "TYPE_FP64", "row 0 is (1+2j)", "TYPE_STRING"),
        (np.array([None, 1.5], object), "TYPE_FP64", "row 0 is None", "TYPE_STRING"),
        (np.array([decimal.Decimal("1.5")], object), "TYPE_INT32", "row 0 is Decimal('1.5')", "TYPE_FP64"),
        (np.array(["2024-05-31"], "datetime64[ns]"), "TYPE_INT64", "row 0 is '2024-05-31T00:00", "TYPE_STRING"),
    ],
)
def test_a_value_that_a_type_cannot_hold_is_an_error_that_says_what_to_write(value, data_type, shown, needed):
    message = f"cannot convert output 'y' to {data_type}: the model's value in {shown}"
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        converted(value, data_type)
    assert f"write data_type: {needed} for this output in config.pbtxt" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "data_type", "wanted"),
    [
        (np.array([1.0, -2.0]), "TYPE_INT64", [1, -2]),
        (np.array([True, False]), "TYPE_INT32", [1, 0]),
        (np.array([0, 1]), "TYPE_BOOL", [False, True]),
        (np.array([BIG], np.uint64), "TYPE_UINT64", [BIG]),
        ([1, BIG], "TYPE_UINT64", [1, BIG]),
        (np.array([1 << 24]), "TYPE_FP32", [1 << 24]),
        (np.array([1 << 62]), "TYPE_FP64", [1 << 62]),
        (np.array([0.1, math.inf, 1e-300]), "TYPE_FP32", [float(np.float32(0.1)), math.inf, 0]),
        (np.array([decimal.Decimal("0.1"), 2, np.float32(0.5)], object), "TYPE_FP64", [0.1, 2, 0.5]),
        (np.array([]), "TYPE_INT64", []),
        (np.array(["a", 1.5], object), "TYPE_STRING", ["a", 1.5]),
        (np.array(["2024-05-31"], "datetime64[D]"), "TYPE_STRING", ["2024-05-31"]),
    ],
)
def test_values_arrive_as_they_are_and_fractions_are_rounded(value, data_type, wanted):
    assert converted(value, data_type)[:, 0].tolist() == wanted


@given(
    st.sampled_from(["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"]),
    st.sampled_from(["TYPE_BOOL", "TYPE_INT8", "TYPE_UINT16", "TYPE_INT32", "TYPE_INT64", "TYPE_UINT64"]),
    st.data(),
)
def test_each_number_is_kept_or_refused(kind, data_type, data):
    array = data.draw(arrays(kind, 5))
    values = array.tolist()
    try:
        found = converted(array, data_type)[:, 0].tolist()
    except ValueError:
        limits = (0, 1) if data_type == "TYPE_BOOL" else np.iinfo(data_type[5:].lower())
        low, high = limits if isinstance(limits, tuple) else (limits.min, limits.max)
        assert not all(low <= value <= high and value == int(value) for value in values)
    else:
        assert found == values


def test_json_has_values_of_libraries_and_nothing_else():
    values = {"a": np.float32(0.5), "b": np.array([1, 2]), "c": dt.date(2024, 5, 31)}
    assert json.loads(json.dumps(values, default=plain)) == {"a": 0.5, "b": [1, 2], "c": "2024-05-31"}
    for value in (b"abc", np.bytes_(b"abc"), {1, 2}):
        with pytest.raises(TypeError, match="has no JSON; return texts or numbers in its place"):
            json.dumps(value, default=plain)
