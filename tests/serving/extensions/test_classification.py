"""Outputs as their top classes. The texts were compared with the reference's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.client_inputs import input_of

from naiad.core.errors import InvalidRequestError
from naiad.frontends.extensions import Extensions
from naiad.frontends.requested_outputs import classify_steps
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import OutputTensor
from naiad.protocol.numpy_types import NUMPY_TYPES
from naiad.protocol.steps import finish


def classes(values, count, labels=(), *, datatype=Datatype.FP32, is_batched=False):
    array = np.array(values, NUMPY_TYPES[datatype])
    output = OutputTensor("OUT", datatype, array.shape, array.tobytes())
    tensor = finish(classify_steps(output, count, labels, is_batched=is_batched))
    assert tensor.datatype is Datatype.BYTES
    data, texts = bytes(tensor.data), []
    while data:
        size = int.from_bytes(data[:4], "little")
        texts.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return tensor.shape, texts


LABELS = ("cat", "dog", "bird")


@pytest.mark.parametrize(
    ("values", "count", "texts"),
    [
        ([1, 3.3, 2, -5], 2, ["3.300000:1:dog", "2.000000:2:bird"]),
        ([1, 3.3, 2, -5], 9, ["3.300000:1:dog", "2.000000:2:bird", "1.000000:0:cat", "-5.000000:3"]),
        ([1, 1, 1, 1], 3, ["1.000000:0:cat", "1.000000:1:dog", "1.000000:2:bird"]),
        ([1e30, 2.0**25], 4, ["1000000015047466219876688855040.000000:0:cat", "33554432.000000:1:dog"]),
        ([-1, 1e-9, -0.0], 4, ["0.000000:1:dog", "-0.000000:2:bird", "-1.000000:0:cat"]),
        ([], 2, []),
    ],
)
def test_a_class_has_its_value_index_and_label(values, count, texts):
    assert classes(values, count, LABELS) == ((len(texts),), texts)


def test_each_item_of_a_batch_has_its_own_classes():
    assert classes([[1, 2, 3], [6, 5, 4]], 1, is_batched=True) == ((2, 1), ["3.000000:2", "6.000000:0"])


def test_all_dimensions_of_an_item_count_as_one():
    assert classes([[[1, 2], [4, 3]]], 2, is_batched=True) == ((1, 2), ["4.000000:2", "3.000000:3"])
    assert classes([[1, 2], [4, 3]], 1) == ((1,), ["4.000000:2"])


def test_an_empty_batch_has_no_classes():
    assert classes(np.zeros((2, 0)), 3, is_batched=True) == ((2, 0), [])


@pytest.mark.parametrize("datatype", [Datatype.INT8, Datatype.UINT64, Datatype.FP64])
def test_numbers_of_every_width_have_classes(datatype):
    whole = datatype is not Datatype.FP64
    assert classes([1, 7], 1, datatype=datatype) == ((1,), ["7:1" if whole else "7.000000:1"])


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BOOL, Datatype.BYTES, Datatype.BF16])
def test_other_types_have_no_classes(datatype):
    with pytest.raises(InvalidRequestError) as caught:
        finish(classify_steps(OutputTensor("OUT", datatype, (1,), b"\0\0"), 1, (), is_batched=False))
    assert caught.value.message == f"class result not available for output due to unsupported type '{datatype.name}'"


def test_more_elements_than_the_limit_are_refused():
    tensor = OutputTensor("OUT", Datatype.INT8, (1_000_001,), bytes(1_000_001))
    with pytest.raises(InvalidRequestError, match="limited to 1000000 elements; it has 1000001"):
        finish(classify_steps(tensor, 1, (), is_batched=False))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.integers(1, 25))
def test_classes_are_sorted_and_equal_ones_keep_their_order(values, count):
    _, texts = classes(values, count, datatype=Datatype.INT32)
    expected = sorted(range(len(values)), key=lambda index: -values[index])[:count]
    assert texts == [f"{values[index]}:{index}" for index in expected]


def test_a_client_gets_classes_over_both_protocols(serve, connect, api):
    client = connect(serve(Extensions()))
    tensor = input_of(api, "INPUT0", np.array([1, 3.3, 2, -5], np.float32))
    for _ in range(2):  # the second request is recognised
        result = client.infer("identity", [tensor], outputs=[api.InferRequestedOutput("OUTPUT0", class_count=2)])
        assert result.as_numpy("OUTPUT0").tolist() == [b"3.300000:1", b"2.000000:2"]


@pytest.mark.parametrize("count", [-1, "x", 1.5, True])
def test_a_number_of_classes_in_json_is_one(serve, count):
    body = {
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": count}}],
    }
    text = "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer"
    assert serve(Extensions()).http("POST", "/v2/models/identity/infer", body) == (500, {"error": text})


def test_a_request_for_0_classes_returns_the_values(serve):
    body = {
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 0}}],
    }
    status, answer = serve(Extensions()).http("POST", "/v2/models/identity/infer", body)
    assert (status, answer["outputs"][0]["data"]) == (200, [1.0])
