"""`pb_utils.Tensor`: what models build, what they read, and the bytes that are sent."""

import gc
import struct
import weakref

import numpy as np
import pytest
from naiad_stub.exceptions import TritonModelException
from naiad_stub.tensor import Tensor, decode_strings, encode_strings

NUMERIC = [
    (1, "?", [True, False]),
    (2, "u1", [0, 255]),
    (3, "u2", [0, 65535]),
    (4, "u4", [0, 2**32 - 1]),
    (5, "u8", [0, 2**64 - 1]),
    (6, "i1", [-128, 127]),
    (7, "i2", [-(2**15), 2**15 - 1]),
    (8, "i4", [-(2**31), 2**31 - 1]),
    (9, "i8", [-(2**63), 2**63 - 1]),
    (10, "f2", [-1.5, 65504.0]),
    (11, "f4", [-1.5, 3.25]),
    (12, "f8", [-1.5, 1e300]),
]


def sent(tensor):
    code, shape, data, size = tensor._payload()
    assert len(data) == size
    return code, shape, bytes(data)


def received(code, shape, data):
    return Tensor._received("T", code, shape, memoryview(bytearray(data)))


@pytest.mark.parametrize(("code", "dtype", "values"), NUMERIC)
def test_every_numeric_datatype_survives_the_way_there_and_back(code, dtype, values):
    array = np.array([values], dtype)

    tensor = Tensor("T", array)
    again = received(*sent(tensor))

    assert sent(tensor) == (code, (1, 2), array.tobytes())
    assert tensor.triton_dtype() == code
    assert tensor.shape() == [1, 2]
    assert again.as_numpy().dtype == array.dtype
    assert again.as_numpy().tolist() == [values]


def test_a_tensor_answers_by_methods():
    tensor = Tensor("name", np.zeros((2, 3), np.float32))

    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("name", [2, 3], 11, True)
    assert repr(tensor).startswith("<c_python_backend_utils.Tensor object at ")


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (np.arange(6)[::2], [0, 2, 4]),
        (np.arange(6)[::-1], [5, 4, 3, 2, 1, 0]),
        (np.asfortranarray(np.arange(4).reshape(2, 2)), [[0, 1], [2, 3]]),
        (np.broadcast_to(np.int64(7), (2, 2)), [[7, 7], [7, 7]]),
        (np.frombuffer(bytes(8), "i8"), [0]),
        (np.arange(3).astype(">i8"), [0, 1, 2]),
        (np.array([1.5], ">f4"), [1.5]),
        (np.arange(6).astype(">i8").reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        *(
            (np.array([1, 2], name), [1, 2])
            for name in ("longlong", "ulonglong", "intc", "uintc", "half", "single", "double")
        ),
    ],
)
def test_arrays_of_any_layout_and_name_of_their_type_are_sent_in_c_order(array, expected):
    tensor = Tensor("T", array)

    assert tensor.as_numpy().dtype.isnative
    assert received(*sent(tensor)).as_numpy().tolist() == expected


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3)])
@pytest.mark.parametrize("dtype", ["f4", "?", "O"])
def test_scalars_and_empty_tensors_keep_their_shape(shape, dtype):
    array = np.zeros(shape, dtype)
    if dtype == "O":
        array[...] = b"x"

    code, sent_shape, data = sent(Tensor("T", array))

    assert sent_shape == shape
    assert Tensor("T", array).shape() == list(shape)
    assert received(code, sent_shape, data).as_numpy().shape == shape
    assert received(code, sent_shape, data).as_numpy().tolist() == array.tolist()


def test_a_contiguous_array_is_sent_without_a_copy_and_read_back_itself():
    array = np.arange(4, dtype=np.int32)
    tensor = Tensor("T", array)

    _, _, data, _ = tensor._payload()
    array[0] = 9

    assert bytes(data[:4]) == struct.pack("<i", 9)
    assert tensor.as_numpy() is array


def test_a_received_tensor_is_a_writable_view_made_once():
    memory = bytearray(struct.pack("<3i", 1, 2, 3))
    tensor = Tensor._received("T", 8, (3,), memoryview(memory))

    array = tensor.as_numpy()
    array[0] = 7

    assert tensor.as_numpy() is array
    assert struct.unpack("<3i", memory) == (7, 2, 3)


def test_arrays_keep_the_memory_of_their_tensor():
    class Memory(bytearray):
        pass

    memory = Memory(8)
    alive = weakref.ref(memory)
    array = Tensor._received("T", 9, (1,), memoryview(memory)).as_numpy()
    del memory
    gc.collect()

    assert alive() is not None
    assert array.tolist() == [0]

    del array
    gc.collect()

    assert alive() is None


def test_a_received_tensor_is_passed_on_without_a_copy():
    view = memoryview(bytearray(8))

    assert Tensor._received("T", 12, (1,), view)._payload() == (12, (1,), view, 8)


@pytest.mark.parametrize(
    ("value", "code", "shape"),
    [([1, 2], 9, [2]), ([[1.5]], 12, [1, 1]), (np.float32(3), 11, []), (True, 1, []), ((b"x",), 13, [1])],
)
def test_lists_and_scalars_are_converted_by_numpy(value, code, shape):
    tensor = Tensor("T", value)

    assert (tensor.triton_dtype(), tensor.shape()) == (code, shape)


@pytest.mark.parametrize("value", [None, {}, object(), Tensor("T", [1])])
def test_a_value_that_is_not_an_array_is_a_type_error(value):
    with pytest.raises(TypeError, match=rf"^Tensor takes a numpy array, got {type(value).__name__}$"):
        Tensor("T", value)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["text"]),
        np.array([1j]),
        np.array([1], "M8[s]"),
        np.array([1], "m8[s]"),
        np.array([1], np.longdouble),
        np.array([(1, 2)], [("a", "i4"), ("b", "i4")]),
        np.array([b"x"], "V1"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_other_dtypes_are_refused_with_the_tensor_the_dtype_and_the_cure(array):
    with pytest.raises(TritonModelException) as caught:
        Tensor("T", array)
    cure = "by .astype(object)" if array.dtype.kind == "U" else "to one that Triton has, such as float32 or int64"
    assert str(caught.value) == (
        f"NumPy dtype is not supported. Tensor 'T' has dtype {array.dtype}: convert the array {cure}"
    )


def test_names_are_non_empty_strings_given_by_position():
    with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
        Tensor("", np.zeros(1))
    with pytest.raises(TypeError, match=r"^Tensor takes its name as str, got NoneType$"):
        Tensor(None, np.zeros(1))
    with pytest.raises(TypeError, match=r"positional"):
        Tensor(name="T", array=np.zeros(1))


STRINGS = [b"", b"a", b"\0", b"nul\0inside\0", "zürich".encode(), b"x" * 70000]


def test_strings_of_any_length_and_content_survive():
    array = np.array(STRINGS, np.object_).reshape(2, 3)

    code, shape, data = sent(Tensor("T", array))

    assert (code, shape) == (13, (2, 3))
    assert data == b"".join(struct.pack("<I", len(item)) + item for item in STRINGS)
    assert received(code, shape, data).as_numpy().tolist() == array.tolist()
    assert all(type(item) is bytes for item in received(code, shape, data).as_numpy().ravel())


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (
            np.array(["zürich", 3, None, b"raw", np.bytes_(b"numpy"), np.str_("str"), b""], np.object_),
            ["zürich".encode(), b"3", b"None", b"raw", b"numpy", b"str", b""],
        ),
        *((np.array([item], np.object_), [str(item).encode()]) for item in ("text", "\u00e9", 7)),
        (np.array([b"bytes"], np.object_), [b"bytes"]),
        (np.array([[b"ab", b"abc"]], "S5"), [[b"ab", b"abc"]]),
        (np.array([[b"a", b"b"], [b"c", b"d"]], np.object_).T, [[b"a", b"c"], [b"b", b"d"]]),
    ],
    ids=["mixed", "text", "umlaut", "a number", "bytes", "of a fixed size", "transposed"],
)
def test_elements_of_any_type_are_sent_as_their_text_in_c_order(array, expected):
    tensor = Tensor("T", array)

    assert tensor.triton_dtype() == 13
    assert received(*sent(tensor)).as_numpy().tolist() == expected


def test_strings_are_taken_when_the_tensor_is_built():
    """A model may fill one array of objects again and again, once per response."""
    array = np.array([b"first"], np.object_)
    tensor = Tensor("T", array)
    array[0] = b"second"

    assert received(*sent(tensor)).as_numpy().tolist() == [b"first"]


@pytest.mark.parametrize(
    ("data", "count", "problem"),
    [
        (b"", 1, "1 elements in 0 bytes ends early"),
        (b"\5\0", 1, "1 elements in 2 bytes ends early"),
        (b"\5\0\0\0ab", 1, "1 elements in 6 bytes ends early"),
        (b"\xff\xff\xff\xffab", 1, "1 elements in 6 bytes ends early"),
        (b"\xff\xff\xff\xffab", 2, "2 elements in 6 bytes ends early"),
        (b"\1\0\0\0a", 2, "2 elements in 5 bytes ends early"),
        (b"\1\0\0\0ab", 1, "1 elements in 6 bytes has 1 bytes too many"),
        (b"\0\0\0\0", 0, "0 elements in 4 bytes has 4 bytes too many"),
    ],
)
def test_broken_string_data_is_refused(data, count, problem):
    with pytest.raises(TritonModelException, match=rf"^A BYTES tensor of {problem}\.$"):
        received(13, (count,), data).as_numpy()


def test_many_strings_are_coded_and_decoded_alike():
    items = [b"%d" % (i * i) for i in range(50_000)]

    assert decode_strings(encode_strings(np.array(items, np.object_)), len(items)) == items


def test_bf16_is_not_for_numpy_but_can_be_passed_on():
    tensor = received(14, (2,), b"abcd")

    assert sent(tensor) == (14, (2,), b"abcd")
    with pytest.raises(
        TritonModelException,
        match=r"^Tensor dtype is BF16 and cannot be converted to NumPy\. Use to_dlpack\(\) and from_dlpack\(\) instead\.$",
    ):
        tensor.as_numpy()
