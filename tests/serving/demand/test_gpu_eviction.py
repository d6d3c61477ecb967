"""Models leave for the GPU memory of others, as the driver reports it; with stand-ins for NVIDIA's libraries."""

from __future__ import annotations

from serving.ensembles.ensembles import write_model
from serving.repositories import infer, values
from support.cuda import StandInDriver
from support.server import ServerProcess

USES_GPU = """
def initialize(self, args):
    import ctypes
    ctypes.CDLL("libcuda.so.1")
    with open({path!r}, "a") as file:
        file.write("%d %d\\n" % (os.getpid(), {size}))

def answer(self, request):
    return self.output(np.array([os.getpid()], np.float32))
"""
CPU = "instance_group { kind: KIND_CPU }\n"
MIB = 1 << 20


def sizes(server: ServerProcess) -> dict[str, int]:
    """The bytes of each loaded model, by the metric."""
    found = server.samples("naiad_model_memory_bytes{").items()
    return {series.split('model="')[1].split('"')[0]: int(value) for series, value in found}


def test_gpu_memory_of_guests_counts_and_the_oldest_model_leaves_for_it(tmp_path):
    driver = StandInDriver(tmp_path / "cuda", has_management=True)
    path = str(driver.folder / "gpu-memory")
    models = tmp_path / "models"
    for name, size in (("a", 700 * MIB), ("b", 700 * MIB), ("small", MIB)):
        write_model(models, name, USES_GPU.format(path=path, size=size), CPU)
    options = ("--model-control-mode=demand", "--models-memory=1300MiB")

    with ServerProcess(models, *options, work=tmp_path, environ=driver.environ) as server:
        first = values(infer(server, "a", 1))
        server.wait_for(lambda: sizes(server).get("a", 0) > 700 * MIB, "the memory of its GPU to be counted")
        values(infer(server, "small", 1))
        values(infer(server, "b", 1))
        server.wait_for(
            lambda: "'a' is unloaded, since another model needs its memory" in server.log, "the oldest to leave"
        )
        server.wait_for(lambda: sizes(server).get("b", 0) > 700 * MIB, "the other to be counted")
        assert sizes(server)["small"] < 200 * MIB
        assert values(infer(server, "a", 1)) != first
