"""GPUs as a stand-in for the driver's library reports them, and where instances are placed on them."""

from __future__ import annotations

import pytest
from naiad.config.model.model_config import freeze, instance_groups, instance_names
from naiad.config.model.normalise import normalise_instance_groups
from naiad.config.model.text import parse_text
from naiad.config.model.validate import validate_instance_groups
from naiad.errors import ConfigError
from naiad.gpus import Gpu, GpuLibrary, visible_gpus

UUIDS = ("GPU-aaa1", "GPU-aaa2", "GPU-b")
GPUS = [Gpu(uuid) for uuid in UUIDS]


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
        ("GPU-b,1", [2, 1]),
        ("GPU-aaa2", [1]),
        ("", []),
        ("1,7,0", [1]),
        ("1,1", [1]),
        ("GPU-a", []),
        ("-1", []),
    ],
)
def test_the_variable_of_cuda_chooses_gpus_as_for_cuda(variable, expected):
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert [GPUS.index(gpu) for gpu in visible_gpus(GPUS, environ)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("m_0", "GPU", 0), ("m_1", "GPU", 1)]),
        ("instance_group { }", [("m_0_0", "GPU", 0), ("m_0_1", "GPU", 1)]),
        ("instance_group { kind: KIND_GPU gpus: [ 1 ] }", [("m_0_0", "GPU", 1)]),
        (
            "instance_group { kind: KIND_GPU count: 2 }",
            [("m_0_0", "GPU", 0), ("m_0_1", "GPU", 0), ("m_0_2", "GPU", 1), ("m_0_3", "GPU", 1)],
        ),
        ("instance_group { kind: KIND_CPU }", [("m_0_0", "CPU", 0)]),
        ("instance_group { kind: KIND_MODEL count: 2 }", [("m_0_0", "MODEL", 0), ("m_0_1", "MODEL", 0)]),
        ('backend: "native"', [("m_0", "CPU", 0)]),
        ('backend: "native" instance_group { }', [("m_0_0", "GPU", 0), ("m_0_1", "GPU", 1)]),
    ],
)
def test_instances_are_placed_on_gpus(text, expected):
    assert placed(text) == expected


def test_without_a_gpu_automatic_instances_are_on_the_cpu():
    assert placed("instance_group { }", count=0) == [("m_0_0", "CPU", 0)]


@pytest.mark.parametrize("device", [2, -1])
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(device):
    with pytest.raises(ConfigError) as caught:
        placed(f"instance_group {{ kind: KIND_GPU gpus: {device} }}")
    assert caught.value.message == (
        f"instance group m_0 of model m specifies invalid or unsupported gpu id {device}. GPUs with at least the minimum "
        "required CUDA compute compatibility of 6.000000 are: 0 1"
    )
