"""What the doctor says of GPUs, with stand-ins for NVIDIA's libraries; and of a machine without any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton_python_backend_utils
from operations.doctor.repository import model, write
from support.cuda import StandInDriver

from naiad_operations.doctor import gpus
from naiad_operations.doctor.findings import Severity
from naiad_operations.doctor.gpus import Surroundings, findings_of, read_surroundings

NAIAD = Path(sys.executable).with_name("naiad")
MACHINE = Surroundings((), is_gvisor=False)
CONTAINER = Surroundings(("ipc", "pid"), is_gvisor=False)
FIRST = "dadadadadadadadadadadadadadada00"


def examined(tmp_path: Path, **environ: str) -> dict[str, tuple[str, str, str]]:
    """Severity, message and advice of the findings about GPUs, by their codes."""
    write(tmp_path / "models" / "m", model())
    command = [NAIAD, "doctor", str(tmp_path / "models"), f"--env-store={tmp_path / 'store'}", "--json"]
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    done = subprocess.run(
        [*command, *ports], capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environ}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [each for each in json.loads(done.stdout)["findings"] if each["code"].startswith("gpu")]
    return {each["code"]: (each["severity"], each["message"], each["advice"]) for each in found}


def found_by_doctor(monkeypatch: pytest.MonkeyPatch, driver: StandInDriver) -> dict[str, tuple[str, str, str]]:
    """The same of the part of the doctor that examines GPUs: its processes load the stand-in, this one does not."""
    monkeypatch.setenv("LD_LIBRARY_PATH", driver.environ["LD_LIBRARY_PATH"])
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda _: None)
    monkeypatch.setattr(gpus, "find_gpus", lambda: ["a GPU"])
    library = Path(triton_python_backend_utils.__file__).parent
    return {str(each.code): (each.severity, each.message, each.advice) for each in gpus.examine_gpus(library)}


@pytest.mark.server
def test_the_doctor_names_the_gpus_and_finds_nothing_wrong_where_guests_share_their_memory(tmp_path):
    driver = StandInDriver(tmp_path / "cuda", devices=2, has_management=True)
    driver.part(0, 1)

    found = examined(tmp_path, **driver.environ)

    assert set(found) == {"gpu"}
    severity, message, _ = found["gpu"]
    assert severity == "note"
    assert message.startswith(
        f"CUDA 13.0 with 2 GPUs (0: {FIRST}, 1: {FIRST[:-2]}01); tensors go through the CPU between the GPUs 0 and 1, "
        "which have no direct access"
    )
    assert driver.calls()["cuIpcOpenMemHandle_v2"] == 1, "tried between two processes"
    assert (driver.allocations(), driver.opened(), driver.contexts()) == ([], [], [])


@pytest.mark.parametrize(
    ("function", "code", "finding", "severity", "text"),
    [
        ("cuIpcGetMemHandle", 801, "gpu-sharing", "warning", "share memory of GPU 0 with other processes: cuIpcGetMem"),
        ("cuIpcOpenMemHandle_v2", 801, "gpu-sharing", "warning", "that another process has sent: cuIpcOpenMemHandle"),
        ("cuMemAlloc_v2", 2, "gpu-sharing", "note", "was not found out: cannot allocate 4194304 bytes of the memory"),
        ("cuMemHostRegister_v2", 304, "gpu-pinning", "note", "take three times as long: cannot register memory of the"),
        ("cuInit", 803, "gpu-driver", "warning", "models cannot use a GPU: cannot use a tensor in GPU memory: cuInit"),
        ("cuInit", 100, "gpu-driver", "warning", "cuInit failed with CUDA_ERROR_NO_DEVICE (100)"),
    ],
)
@pytest.mark.server
def test_the_doctor_says_what_a_container_does_not_allow(
    monkeypatch, tmp_path, function, code, finding, severity, text
):
    driver = StandInDriver(tmp_path / "cuda")
    driver.fail(function, code)

    found = found_by_doctor(monkeypatch, driver)

    assert set(found) == ({finding} if finding == "gpu-driver" else {"gpu", finding})
    assert found[finding][0].value == severity
    assert text in found[finding][1]


@pytest.mark.server
def test_gpus_without_the_library_that_computes_are_reported_with_the_variable_that_adds_it(tmp_path):
    driver = StandInDriver(tmp_path / "cuda", has_management=True)
    driver.library.unlink()

    found = examined(tmp_path, **driver.environ)

    assert found["gpu-driver"] == (
        "warning",
        "models cannot use the GPUs of this machine (1): libcuda.so.1 is missing",
        "in a container, let NVIDIA_DRIVER_CAPABILITIES name compute (docker run --gpus all does)",
    )


@pytest.mark.server
def test_a_machine_without_a_driver_has_no_finding_about_gpus(tmp_path):
    if any(Path(folder, "libcuda.so.1").exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")):
        pytest.skip("this machine has NVIDIA's driver")
    assert examined(tmp_path) == {}


@pytest.mark.parametrize(
    ("surroundings", "advice"),
    [
        (MACHINE, "use a GPU and a driver with handles"),
        (CONTAINER, "in a container, try --ipc=host, then --privileged"),
        (Surroundings(("pid",), is_gvisor=True), "gVisor does not allow handles of GPU memory for other processes"),
    ],
)
def test_the_advice_about_sharing_depends_on_the_container(surroundings, advice):
    result = {"version": 12080, "devices": [{"uuid": FIRST, "peers": []}], "sharing": {"text": "x; y", "code": 801}}

    summary, sharing = findings_of(result, surroundings)

    assert summary.message.startswith(f"CUDA 12.8 with 1 GPU (0: {FIRST})")
    assert (sharing.severity, sharing.advice.startswith(advice)) == (Severity.WARNING, True)
    assert ("IPC, process numbers" in summary.message) == (surroundings is CONTAINER)


def test_the_namespaces_of_a_container_are_told_from_those_of_the_machine(tmp_path):
    own = tmp_path / "self" / "ns"
    own.mkdir(parents=True)
    for kind, number in (("ipc", 4026531839), ("pid", 4026532999), ("user", 4026531837)):
        (own / kind).symlink_to(f"{kind}:[{number}]")
    (tmp_path / "version").write_text("Linux version 6.1.0 (gcc (Debian 12) 12.2.0) #1 SMP\n")
    assert read_surroundings(tmp_path) == Surroundings(("pid",), is_gvisor=False)
    (tmp_path / "version").write_text("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n")
    assert read_surroundings(tmp_path).is_gvisor
