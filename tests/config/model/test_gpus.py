"""GPUs as a stand-in for the driver's library reports them, and where instances are placed on them."""

from __future__ import annotations

import pytest

from naiad.config.model.model_config import freeze, instance_groups, instance_names
from naiad.config.model.normalise import normalise_instance_groups
from naiad.config.model.text import parse_text
from naiad.config.model.validate import validate_instance_groups
from naiad.core.errors import ConfigError
from naiad.core.gpus import Gpu, GpuLibrary, visible_gpus

UUIDS = ("GPU-aaa1", "GPU-aaa2", "GPU-b")
GPUS = [Gpu(uuid) for uuid in UUIDS]


def part(gpu: str, name: str, *instance: int) -> Gpu:
    return Gpu(name, parent=gpu, instance=instance)


PARTS = [part("GPU-m1", "MIG-a1", 1, 0), part("GPU-m1", "MIG-a2", 1, 1), part("GPU-m1", "MIG-b", 2, 0)]
MIXED = [
    Gpu("GPU-m1", is_divided=True, parts=tuple(PARTS)),
    Gpu("GPU-w"),
    Gpu("GPU-m2", is_divided=True, parts=(part("GPU-m2", "MIG-c", 1, 0),)),
    Gpu("GPU-m3", is_divided=True),
]
"""Two GPUs with MIG devices, one without MIG, and one in MIG mode that has no devices yet."""


class StandIn:
    """Functions of NVML, for pointers as ctypes passes them. Its second GPU has an error."""

    def __init__(self, *, initialises: bool = True) -> None:
        self._initialises = initialises

    def nvmlInit_v2(self):
        return 0 if self._initialises else 9

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 3
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = 100 + index
        return 15 if index == 1 else 0

    def nvmlDeviceGetUUID(self, handle, uuid, _):
        uuid.value = UUIDS[handle.value - 100].encode()
        return 0


class Divided(StandIn):
    """Of each GPU, the second and fourth MIG device of at most four exist; the last one's UUID is an error."""

    def __init__(self, version: int = 12080) -> None:
        super().__init__()
        self._version = version

    def nvmlSystemGetCudaDriverVersion_v2(self, version):
        version._obj.value = self._version
        return 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle, count):
        count._obj.value = 4 if handle.value == 102 else 0
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index, found):
        found._obj.value = handle.value + index
        return 0 if index % 2 else 6

    def nvmlDeviceGetUUID(self, handle, uuid, size):
        if handle.value < 103:
            return super().nvmlDeviceGetUUID(handle, uuid, size)
        uuid.value = b"MIG-1"
        return 15 if handle.value == 105 else 0

    def nvmlDeviceGetGpuInstanceId(self, handle, number):
        number._obj.value = 7
        return 0

    def nvmlDeviceGetComputeInstanceId(self, handle, number):
        number._obj.value = 2
        return 0


class Processes(StandIn):
    """Of each GPU, one process with its memory and one whose memory the driver does not know."""

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, found):
        if handle == 101:
            return 3
        found[0].pid, found[0].used = 7, handle
        found[1].pid, found[1].used = 8, (1 << 64) - 1
        count._obj.value = 2
        return 0


def test_the_memory_of_processes_is_read_where_the_driver_knows_it():
    library = GpuLibrary(Processes())
    assert library.process_memory(Gpu("GPU-aaa1", 100)) == {7: 100}
    assert library.process_memory(Gpu("GPU-aaa2", 101)) == {}


def placed(text: str, count: int = 2) -> list[tuple[str, str, int]]:
    message = parse_text(f'name: "m" {text}', "config.pbtxt")
    message.backend = message.backend or "python"
    normalise_instance_groups(message, lambda: count)
    validate_instance_groups(message, lambda: count)
    config = freeze(message)
    assert list(instance_groups(config)) == [instance.name for instance in instance_names(config)]
    return [(name, kind.value, device) for name, kind, device in instance_names(config)]


def test_the_gpus_that_work_are_listed():
    assert [gpu.uuid for gpu in GpuLibrary(StandIn()).list()] == ["GPU-aaa1", "GPU-b"]
    assert GpuLibrary(StandIn(initialises=False)).list() == []


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 2 , +0x", [2, 0]),
        ("GPU-b,1", [2]),
        ("1,GPU-b", [1]),
        ("GPU-b,GPU-aaa2", [2, 1]),
        ("GPU-aaa2", [1]),
        ("", []),
        ("1,7,0", [1]),
        ("0,2,-1,1", [0, 2]),
        ("0,1,1", []),
        ("GPU-b,GPU-b", []),
        ("GPU-a", []),
        ("b", []),
        ("MIG-b", []),
        ("-1", []),
    ],
)
def test_the_variable_of_cuda_chooses_gpus_as_for_cuda(variable, expected):
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert [GPUS.index(gpu) for gpu in visible_gpus(GPUS, environ)] == expected


@pytest.mark.parametrize(
    ("variable", "several", "single"),
    [
        (None, ["GPU-w", "MIG-a1", "MIG-b", "MIG-c"], ["MIG-a1"]),
        ("0", ["GPU-w"], ["GPU-w"]),
        ("2", ["MIG-b"], ["MIG-c"]),
        ("2,0", ["MIG-b", "GPU-w"], None),
        ("MIG-c,MIG-b", ["MIG-c", "MIG-b"], ["MIG-c"]),
        ("MIG-a2,MIG-a1,MIG-b", ["MIG-a2", "MIG-b"], None),
        ("MIG-b,MIG-none,MIG-c", ["MIG-b"], None),
        ("MIG-b,GPU-w", ["MIG-b"], None),
        ("MIG-a", [], None),
        ("MIG-GPU-m1/1/1", ["MIG-a2"], None),
        ("MIG-GPU-m1/1", [], None),
        ("MIG-/1/1", [], None),
        ("GPU-m1,GPU-w", ["MIG-a1", "GPU-w"], None),
        ("GPU-w,GPU-m1", ["GPU-w", "MIG-a1"], ["MIG-a1"]),
        ("GPU-w", ["GPU-w"], ["GPU-w"]),
        ("GPU-m3", [], None),
        ("", [], None),
    ],
)
def test_mig_devices_are_chosen_as_for_cuda_of_which_a_process_with_an_older_driver_uses_one(variable, several, single):
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert [gpu.uuid for gpu in visible_gpus(MIXED, environ, several_mig_devices=True)] == several
    if single is not None:
        assert [gpu.uuid for gpu in visible_gpus(MIXED, environ, several_mig_devices=False)] == single


def test_the_mig_devices_of_a_gpu_are_listed_with_it():
    [whole, divided] = GpuLibrary(Divided()).list()
    assert (whole.uuid, whole.is_divided, whole.parts) == ("GPU-aaa1", False, ())
    assert (divided.uuid, divided.is_divided) == ("GPU-b", True)
    assert divided.parts == (part("GPU-b", "MIG-1", 7, 2),)


@pytest.mark.parametrize(("version", "expected"), [(12080, True), (12040, False)])
def test_the_driver_says_whether_a_process_uses_several_mig_devices(version, expected):
    assert GpuLibrary(Divided(version)).uses_several_mig_devices() is expected
    assert not GpuLibrary(StandIn()).uses_several_mig_devices()


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("", 2, "m_0 GPU 0, m_1 GPU 1"),
        ("instance_group { }", 2, "m_0_0 GPU 0, m_0_1 GPU 1"),
        ("instance_group { }", 0, "m_0_0 CPU 0"),
        ("instance_group { kind: KIND_GPU gpus: [ 1 ] }", 2, "m_0_0 GPU 1"),
        ("instance_group { kind: KIND_GPU count: 2 }", 2, "m_0_0 GPU 0, m_0_1 GPU 0, m_0_2 GPU 1, m_0_3 GPU 1"),
        ("instance_group { kind: KIND_CPU }", 2, "m_0_0 CPU 0"),
        ("instance_group { kind: KIND_MODEL count: 2 }", 2, "m_0_0 MODEL 0, m_0_1 MODEL 0"),
        ('backend: "native"', 2, "m_0 CPU 0"),
        ('backend: "native" instance_group { }', 2, "m_0_0 GPU 0, m_0_1 GPU 1"),
    ],
)
def test_instances_are_placed_on_gpus(text, count, expected):
    assert ", ".join(f"{name} {kind} {device}" for name, kind, device in placed(text, count)) == expected


@pytest.mark.parametrize("device", [2, -1])
def test_a_missing_gpu_is_refused_with_the_existing_ones(device):
    with pytest.raises(ConfigError) as caught:
        placed(f"instance_group {{ kind: KIND_GPU gpus: {device} }}")
    assert caught.value.message == (
        f"instance group m_0 of model m specifies invalid or unsupported gpu id {device}. GPUs with at least the minimum "
        "required CUDA compute compatibility of 6.000000 are: 0 1"
    )
