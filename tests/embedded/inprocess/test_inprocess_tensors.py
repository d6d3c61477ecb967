"""Tensors: to and from numpy, DLPack and strings."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import naiad
from naiad import DataType, DLDeviceType, MemoryBuffer, MemoryType, Tensor

DATATYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip


@pytest.mark.parametrize("name", DATATYPES)
def test_every_datatype_goes_to_a_model_and_back(shared, name):
    array = np.array([[0, 1], [1, 0]], DATATYPES[name])

    (response,) = shared.model("every_datatype").infer(inputs={name: array})

    tensor = response.outputs[f"OUT_{name}"]
    back = np.from_dlpack(tensor)
    assert (tensor.data_type.name, back.dtype) == (name, array.dtype)
    assert back.tolist() == array.tolist()


@pytest.mark.parametrize(
    "strings",
    [
        [["a", "ünï"], ["", "long" * 100]],
        np.array([["a", "ünï"], ["", "long" * 100]]),
        np.array([["a", "ünï"], ["", "long" * 100]], np.object_),
        Tensor.from_string_array([["a", "ünï"], ["", "long" * 100]]),
    ],
    ids=["list", "str_", "object_", "tensor"],
)
def test_strings_go_to_a_model_and_back(shared, strings):
    (response,) = shared.model("every_datatype").infer(inputs={"STRING": strings})

    output = response.outputs["OUT_STRING"]
    assert output.data_type is DataType.BYTES
    assert output.to_string_array().tolist() == [["a", "ünï"], ["", "long" * 100]]
    assert output.to_bytes_array()[0, 1] == "ünï".encode()


def test_bf16_comes_as_the_bytes_it_is(shared):
    bits = np.array([[0x3F80, 0x4000]], np.uint16)
    tensor = Tensor(DataType.BF16, [1, 2], MemoryBuffer.from_dlpack(bits))

    (response,) = shared.model("every_datatype").infer(inputs={"BF16": tensor})

    output = response.outputs["OUT_BF16"]
    with pytest.raises(naiad.InvalidArgumentError, match="cannot convert to numpy: it has no BF16; use DLPack"):
        output.to_numpy()
    output.data_type = DataType.UINT16
    assert output.to_numpy().tolist() == bits.tolist()


def test_an_array_is_not_copied():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)

    tensor = Tensor.from_dlpack(array)

    assert (tensor.data_ptr, tensor.size, tensor.shape) == (array.ctypes.data, 24, [2, 3])
    assert (tensor.memory_type, tensor.memory_type_id) == (MemoryType.CPU, 0)
    assert tensor.__dlpack_device__() == (DLDeviceType.kDLCPU, 0)
    array[0, 0] = 7
    assert np.from_dlpack(tensor)[0, 0] == 7


def test_a_tensor_keeps_its_memory_until_the_last_reference_is_gone():
    array = np.arange(10.0)
    alive = weakref.ref(array)
    tensor = Tensor.from_dlpack(array)
    view = np.from_dlpack(tensor)
    del array, tensor
    gc.collect()
    assert alive() is not None

    del view
    gc.collect()
    assert alive() is None


def test_the_shape_of_a_tensor_can_be_changed():
    tensor = Tensor.from_dlpack(np.arange(6))
    tensor.shape = [3, 2]

    assert np.from_dlpack(tensor).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert np.asarray(tensor.to_host()).shape == (3, 2)


def test_a_tensor_can_be_made_from_an_address():
    array = np.arange(4, dtype=np.float32)
    buffer = MemoryBuffer(array.ctypes.data, MemoryType.CPU, 0, array.nbytes, array)

    assert Tensor(DataType.FP32, [4], buffer).to_numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3).T, np.arange(6)[::2]], ids=["transposed", "every_second"])
def test_memory_in_pieces_is_copied_for_a_request_and_refused_as_memory(array):
    assert Tensor.from_numpy(array).to_numpy().tolist() == array.tolist()
    with pytest.raises(naiad.InvalidArgumentError, match=r"^Only contiguous memory is supported$"):
        Tensor.from_dlpack(array)


def test_arrays_of_another_byte_order_are_turned():
    assert Tensor.from_numpy(np.array([1, 2], ">i4")).to_numpy().tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_empty_arrays_and_scalars_keep_their_shape(shape):
    array = np.zeros(shape, np.float32)

    tensor = Tensor.from_numpy(array)

    assert (tuple(tensor.shape), tensor.to_numpy().shape) == (shape, shape)


def test_read_only_arrays_are_accepted(shared):
    array = np.arange(3, dtype=np.float32)
    array.flags.writeable = False

    (response,) = shared.model("identity").infer(inputs={"IN": array})

    assert response.outputs["OUT"].to_numpy().tolist() == [0, 1, 2]


def test_writing_to_an_output_changes_nothing_else(shared):
    """Short outputs must not lie in bytes objects: Python shares those of one byte."""
    for _ in range(2):
        (response,) = shared.model("every_datatype").infer(inputs={"UINT8": np.array([[65]], np.uint8)})
        array = np.from_dlpack(response.outputs["OUT_UINT8"])
        assert array.tolist() == [[65]]
        response.outputs["OUT_UINT8"].memory_buffer.view()[0] = 66

    assert b"A"[0] == 65


def test_memory_can_be_released_while_an_exception_propagates():
    tensor = Tensor.from_dlpack(np.arange(3))

    with pytest.raises(IndexError, match="out of bounds"):
        np.from_dlpack(tensor)[9]


def test_strings_have_no_dlpack():
    tensor = Tensor.from_string_array(["a"])

    with pytest.raises(naiad.InvalidArgumentError, match=r"Can't convert .*BYTES.* to DLPack data type"):
        np.from_dlpack(tensor)


def test_only_tensors_of_strings_have_strings():
    tensor = Tensor.from_dlpack(np.arange(3))

    with pytest.raises(naiad.InvalidArgumentError, match=r"Tensor has data type .*INT64.* not .*BYTES"):
        tensor.to_string_array()
    with pytest.raises(naiad.InvalidArgumentError, match=r"Unsupported conversion from .* to Triton BYTES Tensor"):
        Tensor.from_bytes_array([1, 2])


def test_a_tensor_moves_only_to_the_device_that_it_is_on():
    tensor = Tensor.from_dlpack(np.arange(3))

    for place in ("cpu", "cpu:0", MemoryType.CPU, (MemoryType.CPU, 0), (DLDeviceType.kDLCPU, 0)):
        assert tensor.to_device(place) is tensor
    with pytest.raises(naiad.UnsupportedError, match=r"Conversion from .* not supported"):
        tensor.to_device("gpu:0")


def test_objects_without_a_buffer_of_a_datatype_are_refused():
    with pytest.raises(naiad.InvalidArgumentError, match="Object does not support DLpack protocol"):
        MemoryBuffer.from_dlpack(3)
    with pytest.raises(naiad.InvalidArgumentError, match="complex128 is not a datatype"):
        MemoryBuffer.from_dlpack(np.array([1j]))
