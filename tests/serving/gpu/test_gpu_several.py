"""Tensors in the memory of several GPUs, through real guests and a stand-in for the driver with several devices.

A tensor goes to another model in GPU memory if that model's process can use the memory of its GPU, else through the
CPU, with one line in the log.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from serving.gpu.gpu_models import ECHO, TAKES_GPU, add_code_model, add_ensemble, add_model
from serving.gpu.test_gpu_calls import CALLS, in_model
from serving.written import evaluate
from support.cuda import StandInDriver
from support.server import ServerProcess

SEES = """
def initialize(self, args):
    os.environ["CUDA_VISIBLE_DEVICES"] = "{devices}"
"""
ON_GPU = """
def initialize(self, args):
    self.ordinal = int(args["model_instance_device_id"])
def respond(self, request):
    given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    array = device_arrays.DeviceArray.of(given * 2, ordinal={ordinal})
    return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", array)])
"""
GROUP = "instance_group {{ kind: KIND_GPU gpus: [ {gpu} ] }}\n"
UUIDS = [f"dadadadadadadadadadadadadadada{number:02x}" for number in range(3)]
NOTICE = "go through the CPU to a model that cannot use them"


@pytest.fixture
def three(tmp_path):
    """A driver with three devices, of which 0 and 2 have no direct access to each other."""
    driver = StandInDriver(tmp_path / "cuda", devices=3, has_management=True)
    driver.part(0, 2)
    yield driver
    assert (driver.allocations(), driver.opened(), driver.pinned(), driver.contexts()) == ([], [], [], [])


def served(tmp_path, driver: StandInDriver) -> ServerProcess:
    return ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ)


def add_caller(tmp_path, *, gpu: int = 0) -> None:
    """The model `code`, with one instance, on that GPU."""
    add_code_model(tmp_path / "models")
    config = tmp_path / "models" / "code" / "config.pbtxt"
    config.write_text(config.read_text() + GROUP.format(gpu=gpu))


def notices(server: ServerProcess) -> list[str]:
    return re.findall(rf"memory of GPU \d+ \((\w+)\) {NOTICE}", server.log)


def echoes(server: ServerProcess, model: str, ordinal: int) -> str:
    """Where the second answer of an echo model is, and whether it is right, for a tensor of that GPU."""
    code = (
        f"array = DeviceArray.of(values, ordinal={ordinal}); kept = [call({model!r}, array, None) for _ in range(3)]"
        "; answer = kept[-1]"
    )
    return in_model(server, code, "answer.__dlpack_device__(), np.array_equal(answer.as_numpy(), values)")


def test_a_tensor_of_another_gpu_stays_there_if_that_has_direct_access_to_the_models(tmp_path, three):
    add_caller(tmp_path)
    for gpu in range(3):
        add_model(tmp_path / "models", f"on_{gpu}", ECHO, config=TAKES_GPU + GROUP.format(gpu=gpu))

    with served(tmp_path, three) as server:
        found = {(model, ordinal): echoes(server, f"on_{model}", ordinal) for model in range(3) for ordinal in (0, 1)}
        log = notices(server)
        assert evaluate(server, "code", "'kept' in globals() and kept.clear()") == "None"

    # The caller works on GPU 0, and so does not read what is on 2; a model on 2 does not read what is on 0.
    assert found == {
        (model, ordinal): "((1, 0), True)" if (model, ordinal) == (2, 0) else f"((2, {ordinal}), True)"
        for model in range(3)
        for ordinal in (0, 1)
    }
    assert log == [UUIDS[0]], "one line, however often"


def test_an_output_of_a_gpu_that_the_caller_cannot_use_comes_to_the_cpu(tmp_path, three):
    add_caller(tmp_path)
    for gpu in (1, 2):
        add_model(tmp_path / "models", f"makes_{gpu}", ON_GPU.format(ordinal=gpu), config=GROUP.format(gpu=gpu))

    with served(tmp_path, three) as server:
        code = "array = DeviceArray.of(values); answers = [call(name, values, None) for name in ('makes_1', 'makes_2')]"
        # Without a preference, which would have them copied to a GPU.
        start = "t = T('X', DeviceArray.of(values)); t.as_numpy()"
        in_model(server, start, "0")
        places = in_model(server, code, "[each.__dlpack_device__() for each in answers]")
        right = evaluate(server, "code", "[np.array_equal(each.as_numpy(), values * 2) for each in answers]")
        log = notices(server)

    assert (places, right) == ("[(2, 1), (1, 0)]", "[True, True]")
    assert log == [UUIDS[2]]


def test_outputs_are_copied_to_the_gpu_that_the_caller_prefers(tmp_path, three):
    add_caller(tmp_path)
    add_model(tmp_path / "models", "makes", ON_GPU.format(ordinal=1), config=GROUP.format(gpu=1))

    found = {}
    with served(tmp_path, three) as server:
        for preferred in (1, 0, 2):
            before = three.calls()["cuMemcpyPeer"]
            code = f"""
wanted = pb_utils.PreferredMemory(GPU, {preferred})
def ask():
    request = pb_utils.InferenceRequest(model_name="makes", requested_output_names=["OUT"],
                                        inputs=[pb_utils.Tensor("IN", values)], preferred_memory=wanted)
    return pb_utils.get_output_tensor_by_name(request.exec(), "OUT")
answer = [ask() for _ in range(2)][-1]
"""
            place = in_model(server, code, "answer.__dlpack_device__(), np.array_equal(answer.as_numpy(), values * 2)")
            found[preferred] = place, three.calls()["cuMemcpyPeer"] > before

    assert found == {preferred: (f"((2, {preferred}), True)", preferred != 1) for preferred in (0, 1, 2)}


def test_models_that_number_gpus_differently_mean_the_same_ones(tmp_path, three):
    """The caller's GPU 0 is the machine's 1, and that of the called models is 2, 1, 0; one sees another GPU alone."""
    environ = {**three.environ, "CUDA_VISIBLE_DEVICES": "1,2"}
    add_caller(tmp_path)
    model = "instance_group { kind: KIND_MODEL }\n"
    add_model(tmp_path / "models", "turned", SEES.format(devices="2,1,0") + ECHO, config=TAKES_GPU + model)
    named = "GPU-dadadada-dada-dada-dada-dadadadada01"
    add_model(tmp_path / "models", "named", SEES.format(devices=named) + ECHO, config=TAKES_GPU + model)
    add_model(tmp_path / "models", "other", SEES.format(devices="0") + ECHO, config=TAKES_GPU + model)

    with ServerProcess(tmp_path / "models", work=tmp_path, environ=environ) as server:
        found = {model: echoes(server, model, 0) for model in ("turned", "named", "other")}
        log = notices(server)

    assert found == {"turned": "((2, 0), True)", "named": "((2, 0), True)", "other": "((1, 0), True)"}
    assert log == [UUIDS[1]]


def test_parts_of_a_divided_gpu_are_gpus_of_their_own(tmp_path, three):
    """CUDA's UUID of a MIG device is its own, and its memory has no handles for other parts."""
    for first, second in ((0, 1), (1, 2)):
        three.part(first, second)
    environ = {**three.environ, "CUDA_VISIBLE_DEVICES": "MIG-dadadada-dada-dada-dada-dadadadada01"}
    add_code_model(tmp_path / "models")
    model = "instance_group { kind: KIND_MODEL }\n"
    add_model(tmp_path / "models", "same", ECHO, config=TAKES_GPU + model)
    part = "MIG-dadadada-dada-dada-dada-dadadadada02"
    add_model(tmp_path / "models", "other", SEES.format(devices=part) + ECHO, config=TAKES_GPU + model)

    with ServerProcess(tmp_path / "models", work=tmp_path, environ=environ) as server:
        found = {model: echoes(server, model, 0) for model in ("same", "other")}

    assert found == {"same": "((2, 0), True)", "other": "((1, 0), True)"}


def test_each_instance_of_a_model_gets_tensors_that_it_can_use(tmp_path, three):
    """Two instances, on GPUs without direct access: what both can use stays, the rest goes through the CPU."""
    add_caller(tmp_path, gpu=1)
    add_model(tmp_path / "models", "both", ECHO, config=TAKES_GPU + GROUP.format(gpu="0, 2"))

    with served(tmp_path, three) as server:
        found = {ordinal: echoes(server, "both", ordinal) for ordinal in range(3)}

    assert found == {0: "((1, 0), True)", 1: "((2, 1), True)", 2: "((1, 0), True)"}


def test_a_tensor_between_steps_of_an_ensemble_goes_through_the_cpu_where_the_next_model_cannot_use_it(tmp_path, three):
    models = tmp_path / "models"
    add_model(models, "first", ON_GPU.format(ordinal=0), config=GROUP.format(gpu=0))
    for gpu in (1, 2):
        add_model(models, f"second_{gpu}", ECHO, config=TAKES_GPU + GROUP.format(gpu=gpu))
        add_ensemble(models, f"chain_{gpu}", "first", f"second_{gpu}")

    with served(tmp_path, three) as server:
        document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [100_000], "data": [2.0] * 100_000}]}
        opened = []
        for gpu in (1, 2):
            before = three.calls()["cuIpcOpenMemHandle_v2"]
            for _ in range(3):
                reply = server.post(f"/v2/models/chain_{gpu}/infer", document)
                assert reply.json()["outputs"][0]["data"] == [4.0] * 100_000
            opened.append(three.calls()["cuIpcOpenMemHandle_v2"] > before)
        log = notices(server)

    assert opened == [True, False]
    assert log == [UUIDS[0]]


def test_a_caller_without_a_driver_gets_outputs_on_the_cpu_whatever_it_prefers(tmp_path):
    add_code_model(tmp_path / "models")
    add_model(tmp_path / "models", "echo", ECHO, config=TAKES_GPU)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        if Path("/dev/nvidia0").exists():
            pytest.skip("this machine has a GPU")
        calls = CALLS.replace("isinstance(array, DeviceArray)", "False")
        code = f"import numpy as np\n{calls}\nanswers = [call('echo', values) for _ in range(2)]"
        assert evaluate(server, "code", code) == "done"
        right = "[each.is_cpu() for each in answers], np.array_equal(answers[1].as_numpy(), values)"
        seen = evaluate(server, "code", right)
    assert seen == "([True, True], True)"
