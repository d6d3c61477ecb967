"""naiad in the Python of a real Triton's stub: that stub finds its own `triton_python_backend_utils`.

The last test needs an installed reference: NAIAD_BENCH_REFERENCE names its folder, as for `python -m bench`.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import triton_python_backend_utils as pb_utils
from support.server import ServerProcess

REFERENCE = Path(os.environ.get("NAIAD_BENCH_REFERENCE", "/nowhere"))
ROOT = Path(__file__).parents[3]

# A Triton's stub is a program with a Python in it: the extension module is built in, the utils' folder comes last.
STUB = """
    import sys, types

    sys.builtin_module_names += ("c_python_backend_utils",)
    sys.modules["c_python_backend_utils"] = extension = types.ModuleType("c_python_backend_utils")
    extension.shared_memory = "the stub's"
    sys.path.append(sys.argv[1])

    import triton_python_backend_utils as pb_utils
    import c_python_backend_utils

    print(getattr(pb_utils, "OWNER", "naiad"), pb_utils is sys.modules[pb_utils.__name__], pb_utils.__spec__.origin)
    print(c_python_backend_utils is extension, hasattr(pb_utils, "Tensor"))
"""

CONFIG = """
    backend: "python"
    input [{ name: "IN" data_type: TYPE_FP32 dims: [-1] }]
    output [{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }]
"""
MODEL = """
    import importlib.util

    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            assert importlib.util.find_spec("naiad_stub"), "naiad is not installed here"

        def execute(self, requests):
            tensors = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.as_numpy() * 2)]) for each in tensors]
"""


def run_stub(tmp_path: Path, folder: Path) -> list[str]:
    """What a program prints that imports the utils as a Triton's stub with its module in *folder* does."""
    (tmp_path / "stub.py").write_text(textwrap.dedent(STUB))
    command = [sys.executable, "stub.py", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_stub_of_a_triton_gets_its_own_utils_where_naiad_is_installed(tmp_path):
    folder = tmp_path / "backends" / "python"
    folder.mkdir(parents=True)
    path = folder / "triton_python_backend_utils.py"
    path.write_text("OWNER = 'triton'\n")

    assert run_stub(tmp_path, folder) == [f"triton True {path}", "True False"]


def test_copies_of_our_utils_beside_a_model_do_not_hide_those_of_a_triton_either(tmp_path):
    """People copy the file beside their model for their editors, and then move the model to a Triton."""
    (tmp_path / "triton_python_backend_utils.py").write_text(Path(pb_utils.__file__).read_text())
    folder = tmp_path / "backends" / "python"
    folder.mkdir(parents=True)
    path = folder / "triton_python_backend_utils.py"
    path.write_text("OWNER = 'triton'\n")

    assert run_stub(tmp_path, folder) == [f"triton True {path}", "True False"]


def test_our_utils_leave_the_extension_module_of_a_stub_alone_that_has_no_utils(tmp_path):
    assert run_stub(tmp_path, tmp_path / "nothing") == [f"naiad True {pb_utils.__file__}", "True False"]


@pytest.mark.slow
@pytest.mark.skipif(not (REFERENCE / "READY").exists(), reason="NAIAD_BENCH_REFERENCE names no installed Triton")
def test_a_real_triton_serves_python_models_from_a_python_with_naiad(tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    (packages,) = REFERENCE.glob("venv/lib/python3*/site-packages")
    site.joinpath("all.pth").write_text(f"{ROOT / 'stubs'}\n{ROOT / 'platform'}\n{packages}\n")
    command = REFERENCE.joinpath("bin", "tritonserver").read_text()
    program = tmp_path / "tritonserver"
    program.write_text(command.replace('export PATH="', f'export PATH="{environment / "bin"}:'))
    program.chmod(0o755)
    model = tmp_path / "models" / "doubles" / "1"
    model.mkdir(parents=True)
    model.joinpath("model.py").write_text(textwrap.dedent(MODEL))
    model.parent.joinpath("config.pbtxt").write_text(textwrap.dedent(CONFIG))

    with ServerProcess(tmp_path / "models", work=tmp_path, command=[program]) as server:
        tensor = {"name": "IN", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]}
        reply = server.post("/v2/models/doubles/infer", {"inputs": [tensor]})

    assert (reply.status, reply.json()["outputs"][0]["data"]) == (200, [3.0, -4.0])
