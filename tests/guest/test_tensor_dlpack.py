"""DLPack: memory shared with other libraries in both directions, and given back exactly once."""

import ctypes
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
from naiad_stub import dlpack
from naiad_stub.exceptions import TritonModelException
from naiad_stub.tensor import Tensor

numpy_imports_dlpack = pytest.mark.skipif(not hasattr(np, "from_dlpack"), reason="numpy before 1.23")


@pytest.fixture(autouse=True)
def nothing_stays_lent():
    """Whatever a test lends to a consumer is given back by its end; what others lent before may be given back meanwhile."""
    gc.collect()
    before = set(dlpack._exported)
    yield
    gc.collect()
    assert set(dlpack._exported) <= before


@numpy_imports_dlpack
@pytest.mark.parametrize("dtype", ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0, 3)])
def test_numpy_reads_tensors_and_tensors_read_numpy(dtype, shape):
    array = np.ones(shape, dtype)

    out = np.from_dlpack(Tensor("T", array))
    back = Tensor.from_dlpack("B", array)

    assert (out.dtype, out.shape, out.tolist()) == (array.dtype, shape, array.tolist())
    assert (back.name(), back.shape()) == ("B", list(shape))
    assert (back.as_numpy().dtype, back.as_numpy().tolist()) == (array.dtype, array.tolist())


def test_a_capsule_shares_the_memory_of_the_array():
    array = np.arange(3)

    shared = Tensor.from_dlpack("B", Tensor("T", array).to_dlpack())
    array[0] = 9

    assert shared.as_numpy().tolist() == [9, 1, 2]


@pytest.mark.parametrize(
    "array", [np.arange(3), np.zeros(0), np.frombuffer(bytes(8), "i8")], ids=["", "empty", "constant"]
)
def test_a_capsule_and_then_its_consumer_hold_one_reference_to_the_tensor(array):
    tensor = Tensor("T", array)
    before = sys.getrefcount(tensor)

    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == before + 1
    consumer = Tensor.from_dlpack("B", capsule)
    del capsule
    gc.collect()
    assert sys.getrefcount(tensor) == (before + 1 if array.size else before)
    del consumer
    assert sys.getrefcount(tensor) == before
    tensor.to_dlpack()  # a capsule that is dropped without a consumer
    assert sys.getrefcount(tensor) == before


def test_a_tensor_is_made_from_a_tensor_whose_array_is_lent_as_a_copy_where_it_is_not_in_c_order():
    array = np.arange(6).reshape(2, 3).T

    for lent in (Tensor("T", array), Tensor("T", array).to_dlpack()):
        assert Tensor.from_dlpack("B", lent).as_numpy().tolist() == array.tolist()


def test_bf16_goes_in_and_out():
    received = Tensor._received("T", 14, (2, 1), memoryview(bytearray(b"abcd")))

    tensor = Tensor.from_dlpack("B", received.to_dlpack())

    assert tensor.triton_dtype() == 14
    assert tensor.shape() == [2, 1]
    assert bytes(tensor._payload()[2]) == b"abcd"


def test_the_capsule_is_the_legacy_one_and_cpu_memory():
    tensor = Tensor("T", np.zeros(2))

    assert repr(tensor.to_dlpack()).startswith('<capsule object "dltensor" at')
    assert repr(tensor.__dlpack__(stream=None, max_version=(1, 0))).startswith('<capsule object "dltensor" at')
    assert tensor.__dlpack_device__() == (1, 0)


def test_a_consumed_capsule_is_renamed_and_refused_the_second_time():
    capsule = Tensor("T", np.zeros(2)).to_dlpack()
    tensor = Tensor.from_dlpack("B", capsule)

    assert repr(capsule).startswith('<capsule object "used_dltensor" at')
    with pytest.raises(TritonModelException, match=r"it has been consumed before"):
        Tensor.from_dlpack("C", capsule)
    assert tensor.as_numpy().tolist() == [0, 0]


class Memory(bytearray):
    """Memory a test can watch."""


def watched(code=12, shape=(2,), size=16):
    memory = Memory(size)
    return Tensor._received("T", code, shape, memoryview(memory)), weakref.ref(memory)


def test_an_unused_capsule_gives_the_memory_back_when_it_goes():
    tensor, alive = watched()
    capsule = tensor.to_dlpack()
    del tensor
    gc.collect()

    assert alive() is not None

    del capsule
    gc.collect()

    assert alive() is None


def test_memory_that_may_only_be_read_is_lent_and_given_back():
    """numpy lends no such memory, so the capsule is one of ours."""
    memory = np.arange(3.0)
    memory.flags.writeable = False
    alive = weakref.ref(memory)
    taken = Tensor.from_dlpack("B", dlpack.to_capsule(12, (3,), memoryview(memory).cast("B")))
    del memory
    gc.collect()

    assert alive() is not None
    assert taken.as_numpy().tolist() == [0, 1, 2]

    del taken
    gc.collect()

    assert alive() is None


@numpy_imports_dlpack
def test_memory_may_be_given_back_while_an_exception_propagates():
    tensor, alive = watched()

    with pytest.raises(IndexError, match="out of bounds"):
        np.from_dlpack(tensor)[9]

    del tensor
    gc.collect()
    assert alive() is None


def test_consumed_memory_is_given_back_with_the_last_view_of_it():
    tensor, alive = watched()
    taken = Tensor.from_dlpack("B", tensor.to_dlpack())
    del tensor
    array = taken.as_numpy()[1:]
    del taken
    gc.collect()

    assert alive() is not None
    assert array.tolist() == [0]

    del array
    gc.collect()

    assert alive() is None


def test_a_copy_is_not_shared():
    array = np.zeros(2)
    tensor = Tensor.from_dlpack("B", Tensor("T", array).__dlpack__(copy=True))
    array[0] = 1

    assert tensor.as_numpy().tolist() == [0, 0]


def test_strings_cannot_be_lent():
    tensor = Tensor("T", np.array([b"x"], object))

    for lend in (tensor.to_dlpack, tensor.__dlpack__, lambda: tensor.__dlpack__(copy=True)):
        with pytest.raises(TritonModelException, match=r"^DLPack does not have support for string tensors\.$"):
            lend()


def test_another_device_is_refused():
    with pytest.raises(
        BufferError, match=r"^Tensor 'T' is in CPU memory and is not moved to DLPack device \(2, 0\)\.$"
    ):
        Tensor("T", np.zeros(1)).__dlpack__(dl_device=(2, 0))
    assert Tensor.from_dlpack("B", Tensor("T", np.zeros(1)).__dlpack__(dl_device=(1, 0))).shape() == [1]


class Foreign:
    """Another library's array: a capsule and a device of its choosing."""

    def __init__(self, device=1, change=None):
        self.device = device
        self.change = change
        self.streams = []

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, stream="not given"):
        self.streams.append(stream)
        capsule = Tensor("T", np.arange(6).reshape(2, 3)).to_dlpack()
        address = dlpack._capsule_pointer(id(capsule), b"dltensor")
        if self.change is not None:
            self.change(dlpack._DLManagedTensor.from_address(address))
        return capsule


def test_foreign_objects_are_asked_with_stream_none():
    foreign = Foreign()

    assert Tensor.from_dlpack("B", foreign).as_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert foreign.streams == [None]


def test_pinned_memory_is_read_and_memory_of_other_kinds_of_devices_is_not():
    def pinned(managed):
        managed.dl_tensor.device_type = 3

    assert Tensor.from_dlpack("B", Foreign(3, pinned)).shape() == [2, 3]
    for device in (10, 13):
        with pytest.raises(TritonModelException, match=rf"^DLDevice type {device} is not support by Python backend\.$"):
            Tensor.from_dlpack("B", Foreign(device))


def strides(*values):
    memory = (ctypes.c_int64 * len(values))(*values)

    def change(managed):
        managed.dl_tensor.strides = ctypes.cast(memory, ctypes.POINTER(ctypes.c_int64))

    return change


def test_strides_in_c_order_are_read_and_others_refused():
    assert Tensor.from_dlpack("B", Foreign(change=strides(3, 1))).as_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    for wrong in ((1, 2), (6, 1), (3, 2)):
        with pytest.raises(
            TritonModelException,
            match=r"^DLPack tensor is not contiguous\. Only contiguous DLPack tensors that are stored in C-Order are supported\.$",
        ):
            Tensor.from_dlpack("B", Foreign(change=strides(*wrong)))


def test_an_offset_into_the_memory_is_honoured():
    def skip_a_row(managed):
        managed.dl_tensor.byte_offset = 24
        managed.dl_tensor.shape[0] = 1

    assert Tensor.from_dlpack("B", Foreign(change=skip_a_row)).as_numpy().tolist() == [[3, 4, 5]]


@pytest.mark.parametrize(("kind", "bits", "lanes"), [(5, 64, 1), (0, 64, 2), (2, 8, 1)])
def test_types_without_a_datatype_are_refused(kind, bits, lanes):
    def retype(managed):
        tensor = managed.dl_tensor
        tensor.dtype_code, tensor.dtype_bits, tensor.dtype_lanes = kind, bits, lanes

    with pytest.raises(
        TritonModelException, match=rf"type code {kind}, {bits} bits and {lanes} lanes has no Triton datatype"
    ):
        Tensor.from_dlpack("B", Foreign(change=retype))


@pytest.mark.parametrize("value", [None, [1], "text", 3])
def test_an_object_without_dlpack_is_refused(value):
    with pytest.raises(
        TritonModelException,
        match=r"^Provided tensor is not supported\. Tensor must be a DLPack capsule or have `__dlpack__` and "
        r"`__dlpack_device__` attributes$",
    ):
        Tensor.from_dlpack("B", value)


def test_names_are_checked_as_in_the_constructor():
    with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
        Tensor.from_dlpack("", np.zeros(1))
    with pytest.raises(TypeError, match=r"^Tensor takes its name as str, got NoneType$"):
        Tensor.from_dlpack(None, np.zeros(1))


def test_torch_shares_bf16():
    torch = pytest.importorskip("torch")
    source = torch.arange(3, dtype=torch.bfloat16)

    tensor = Tensor.from_dlpack("B", source)
    again = torch.from_dlpack(tensor)

    assert tensor.triton_dtype() == 14
    assert again.tolist() == [0, 1, 2]


@numpy_imports_dlpack
def test_memory_still_lent_at_exit_does_not_crash_the_process():
    code = (
        "import numpy as np\n"
        "from naiad_stub.tensor import Tensor\n"
        "lent = np.from_dlpack(Tensor('T', np.arange(3)))\n"
        "unused = Tensor('T', np.arange(3)).to_dlpack()\n"
        "taken = Tensor.from_dlpack('B', np.arange(3)).as_numpy()\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
