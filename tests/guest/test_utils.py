"""`triton_python_backend_utils` by itself, as a model's helpers and tests may import it anywhere."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

TYPES = [
    ("TYPE_BOOL", 1, np.bool_),
    ("TYPE_UINT8", 2, np.uint8),
    ("TYPE_UINT16", 3, np.uint16),
    ("TYPE_UINT32", 4, np.uint32),
    ("TYPE_UINT64", 5, np.uint64),
    ("TYPE_INT8", 6, np.int8),
    ("TYPE_INT16", 7, np.int16),
    ("TYPE_INT32", 8, np.int32),
    ("TYPE_INT64", 9, np.int64),
    ("TYPE_FP16", 10, np.float16),
    ("TYPE_FP32", 11, np.float32),
    ("TYPE_FP64", 12, np.float64),
    ("TYPE_STRING", 13, np.object_),
]


@pytest.mark.parametrize(("name", "number", "numpy_type"), TYPES)
def test_datatypes_are_found_by_name_number_and_numpy_type(name, number, numpy_type):
    assert np.dtype(pb_utils.triton_string_to_numpy(name)) == np.dtype(numpy_type)
    assert pb_utils.triton_to_numpy_type(number) is numpy_type
    assert pb_utils.numpy_to_triton_type(numpy_type) == number
    assert pb_utils.numpy_to_triton_type(np.dtype(numpy_type)) == number


def test_the_bool_of_config_is_pythons_own():
    assert pb_utils.TRITON_STRING_TO_NUMPY["TYPE_BOOL"] is bool


def test_unknown_types_have_no_datatype():
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert [pb_utils.numpy_to_triton_type(kind) for kind in (np.complex64, np.str_, bool, "float32")] == [None] * 4
    assert [pb_utils.triton_to_numpy_type(number) for number in (0, 14, -1)] == [None] * 3
    for name in ("TYPE_BF16", "FP32"):
        with pytest.raises(KeyError, match=name):
            pb_utils.triton_string_to_numpy(name)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([b"a", "b", 3], object), b"\1\0\0\0a\1\0\0\0b\1\0\0\x003"),
        (np.array([[b"a", b"bb"]]), b"\1\0\0\0a\2\0\0\0bb"),
        (np.array([[b"a", b"b"], [b"c", b"d"]], object).T, b"\1\0\0\0a\1\0\0\0c\1\0\0\0b\1\0\0\0d"),
        (np.array(b"x", object), b"\1\0\0\0x"),
        (np.array([], object), ()),
        (np.array([], np.float32), ()),
        (np.array([1]), None),
        (np.array(["u"]), None),
    ],
)
def test_byte_tensors_are_serialised(array, expected):
    assert pb_utils.serialize_byte_tensor(array) == expected


def test_byte_tensors_are_deserialised():
    array = pb_utils.deserialize_bytes_tensor(b"\1\0\0\0a\0\0\0\0\2\0\0\0bb")

    assert (array.tolist(), array.dtype, array.shape) == ([b"a", b"", b"bb"], np.object_, (3,))
    assert pb_utils.deserialize_bytes_tensor(b"").shape == (0,)
    assert pb_utils.deserialize_bytes_tensor(np.frombuffer(b"\1\0\0\0a", np.uint8)).tolist() == [b"a"]


def test_broken_byte_tensors_are_refused():
    with pytest.raises(ValueError, match=r"^element 1 of a bytes tensor has 5 bytes, but only 1 are left$"):
        pb_utils.deserialize_bytes_tensor(b"\0\0\0\0\5\0\0\0a")
    with pytest.raises(Exception, match=r"requires a buffer of at least"):
        pb_utils.deserialize_bytes_tensor(b"\5\0")


class Named:
    def __init__(self, name):
        self.name = lambda: name


class Holder:
    def __init__(self, *names):
        self.inputs = self.output_tensors = lambda: [Named(name) for name in names]


@pytest.mark.parametrize("find", [pb_utils.get_input_tensor_by_name, pb_utils.get_output_tensor_by_name])
def test_tensors_are_found_by_name(find):
    assert find(Holder("a", "b"), "b").name() == "b"
    assert find(Holder("a", "b"), "c") is None


def test_tensors_of_a_configuration_are_found_by_name():
    config = {"input": [{"name": "a"}], "output": [{"name": "b"}]}

    assert pb_utils.get_input_config_by_name(config, "a") is config["input"][0]
    assert pb_utils.get_output_config_by_name(config, "b") is config["output"][0]
    assert pb_utils.get_input_config_by_name(config, "b") is None
    assert pb_utils.get_output_config_by_name({}, "b") is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, False),
        ({"model_transaction_policy": {}}, False),
        ({"model_transaction_policy": {"decoupled": False}}, False),
        ({"model_transaction_policy": {"decoupled": True}}, True),
    ],
)
def test_decoupled_models_are_recognised(config, expected):
    assert pb_utils.using_decoupled_model_transaction_policy(config) is expected


def test_constants_are_the_references():
    assert (
        pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
        pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL,
        pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    ) == (1, 2, 1, 1, 2)


def test_the_utils_need_no_other_module_of_naiad(tmp_path):
    (tmp_path / "triton_python_backend_utils.py").write_bytes(Path(pb_utils.__file__).read_bytes())
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]; sys.modules['naiad_stub'] = None\n"
        "import triton_python_backend_utils as u; assert u.__file__.startswith(sys.argv[1])\n"
        "assert not [name for name in sys.modules if name.startswith(('naiad.', 'naiad_stub.', 'c_python'))]"
    )

    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_the_exception_has_a_second_name():
    import triton_python_backend_utils as pb_utils

    assert pb_utils.TritonInferenceException is pb_utils.TritonModelException
