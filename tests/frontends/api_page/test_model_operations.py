"""What the document of the API says of a model."""

from __future__ import annotations

import pytest
from frontends.api_page.schemas import errors

from naiad.frontends.api_page.model_operations import model_operations
from naiad.protocol.metadata import ModelMetadata, TensorMetadata

DOCUMENT = {"components": {"schemas": {"Parameters": {"type": "object"}}}}


def tensor(name, datatype, *shape, required=True):
    return TensorMetadata(name=name, datatype=datatype, shape=shape, required=required)


def operations(*inputs, name="m", outputs=(), max_batch_size=0, is_decoupled=False, versions=("1",)):
    metadata = ModelMetadata(name=name, versions=versions, platform="python", inputs=inputs, outputs=outputs)
    return dict(model_operations(metadata, max_batch_size=max_batch_size, is_decoupled=is_decoupled))


def content(found, path="/v2/models/m/infer"):
    return found[path]["post"]["requestBody"]["content"]["application/json"]


def sent(datatype, *data, name="IN", shape=None):
    return {"inputs": [{"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": list(data)}]}


def test_a_model_has_its_paths_by_the_number_of_its_responses():
    assert list(operations(tensor("IN", "FP32", 1))) == ["/v2/models/m/infer", "/v2/models/m/generate"]
    assert list(operations(tensor("IN", "FP32", 1), is_decoupled=True)) == ["/v2/models/m/generate_stream"]


def test_a_name_is_written_as_paths_write_it_so_that_braces_are_no_parameter():
    assert next(iter(operations(name="ä {x}/y"))) == "/v2/models/%C3%A4%20%7Bx%7D%2Fy/infer"


def test_flat_json_is_not_offered_for_datatypes_that_json_has_no_form_of():
    found = operations(tensor("IN", "FP16", 2))
    assert list(found) == ["/v2/models/m/infer"]
    assert "example" not in content(found)
    assert "send such inputs in binary" in found["/v2/models/m/infer"]["post"]["description"]


@pytest.mark.parametrize(
    ("datatype", "right", "wrong"),
    [
        ("BOOL", True, 1),
        ("UINT8", 255, 256),
        ("INT8", -128, -129),
        ("UINT64", (1 << 64) - 1, 1 << 64),
        ("INT64", -(1 << 63), -(1 << 63) - 1),
        ("INT32", 7, 7.5),
        ("FP32", 7.5, "7.5"),
        ("BYTES", "text", 7),
    ],
)
def test_elements_have_the_type_and_the_range_of_their_datatype(datatype, right, wrong):
    schema = content(operations(tensor("IN", datatype, 1)))["schema"]
    assert errors(DOCUMENT, schema, sent(datatype, right)) == []
    assert errors(DOCUMENT, schema, sent(datatype, wrong)) != []


def test_data_may_be_nested_as_its_shape():
    schema = content(operations(tensor("IN", "FP32", 2, 2)))["schema"]
    assert errors(DOCUMENT, schema, sent("FP32", [1.0, 2.0], [3.0, 4.0], shape=[2, 2])) == []
    assert errors(DOCUMENT, schema, sent("FP32", 1.0, shape=[1])) != []


def test_an_input_of_another_name_or_datatype_and_a_missing_one_are_wrong():
    schema = content(operations(tensor("IN", "FP32", 1), tensor("MORE", "INT32", 1, required=False)))["schema"]
    assert errors(DOCUMENT, schema, sent("INT32", 1, name="MORE")) == []
    assert errors(DOCUMENT, schema, sent("FP32", 1, name="OTHER")) != []
    assert errors(DOCUMENT, schema, sent("FP64", 1)) != []
    assert errors(DOCUMENT, schema, {"inputs": []}) != []


def test_the_example_has_the_required_inputs_with_one_row():
    found = operations(tensor("IN", "FP32", -1, 3), tensor("N", "INT64", 1, required=False), max_batch_size=8)
    expected = {"name": "IN", "datatype": "FP32", "shape": [1, 3], "data": [0.5, 0.5, 0.5]}
    assert content(found)["example"] == {"inputs": [expected]}
    assert content(found, "/v2/models/m/generate")["example"] == {"IN": [0.5, 0.5, 0.5]}
    assert "at most 8 rows" in found["/v2/models/m/infer"]["post"]["description"]


def test_a_single_element_is_a_plain_value_in_flat_json():
    found = operations(tensor("TEXT", "BYTES", 1), is_decoupled=True)
    assert content(found, "/v2/models/m/generate_stream")["example"] == {"TEXT": "text"}


def test_a_large_tensor_has_a_sample_of_its_shape_and_no_example():
    found = content(operations(tensor("IMAGE", "UINT8", -1, 3, 224, 224), max_batch_size=4))
    assert "example" not in found
    shape = found["schema"]["properties"]["inputs"]["items"]["properties"]["shape"]
    assert shape["example"] == [1, 3, 224, 224]


def test_versions_are_named_where_there_are_several():
    found = operations(versions=("2", "10"))
    assert found["/v2/models/m/infer"]["post"]["description"] == "Platform `python`. Versions 2, 10."
