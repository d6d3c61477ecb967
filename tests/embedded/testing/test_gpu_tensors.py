"""`naiad.testing` with tensors in GPU memory: in another process, which loads a stand-in for the driver."""

import subprocess
import sys

from support.cuda import DEVICE_ARRAYS, StandInDriver

SCRIPT = """
import gc, sys
sys.path.insert(0, sys.argv[1])
import device_arrays, numpy as np, naiad.testing
import triton_python_backend_utils as pb_utils
from device_arrays import DeviceArray

class Model:
    def execute(self, requests):
        given = requests[0].inputs()[0].as_numpy()
        call = pb_utils.InferenceRequest(
            model_name="other", requested_output_names=["Z"],
            inputs=[pb_utils.Tensor.from_dlpack("Y", DeviceArray.of(given + 1))],
        )
        back = pb_utils.get_output_tensor_by_name(call.exec(), "Z").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", DeviceArray.of(back * 2))])]

def other(call):
    return {"Z": call["Y"] * 10}

with naiad.testing.load(Model, models={"other": other}) as model:
    print(model.infer({"IN": np.arange(3.0)})["OUT"].tolist())
    given = pb_utils.Tensor.from_dlpack("IN", DeviceArray.of(np.arange(2.0)))
    print(model.infer({"IN": given})["OUT"].tolist())
del given, model
gc.collect()
print(device_arrays.lent_count())
"""


def test_models_under_test_use_and_return_gpu_tensors(tmp_path):
    driver = StandInDriver(tmp_path / "cuda")
    command = [sys.executable, "-c", SCRIPT, DEVICE_ARRAYS.parent]

    done = subprocess.run(
        command, env={**driver.environ, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False
    )

    assert (done.stdout.splitlines(), done.stderr) == (["[20.0, 40.0, 60.0]", "[20.0, 40.0]", "0"], "")
