"""`import tritonserver` and `import tritonfrontend` where naiad is installed, alone and beside the real packages."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonfrontend
import tritonserver

import naiad
from naiad_embedded.inprocess import Server

ROOT = Path(__file__).parents[3]

SERVER_NAMES = {
    "AlreadyExistsError", "DataType", "DLDeviceType", "InferenceRequest", "InferenceResponse", "InstanceGroupKind",
    "InternalError", "InvalidArgumentError", "LogFormat", "MemoryBuffer", "MemoryType", "Metric", "MetricFamily",
    "MetricFormat", "MetricKind", "Model", "ModelBatchFlag", "ModelControlMode", "ModelTxnPropertyFlag", "NotFoundError",
    "Options", "RateLimiterResource", "RateLimitMode", "Server", "Tensor", "TritonError", "UnavailableError",
    "UnknownError", "UnsupportedError",
}  # fmt: skip
"""What `tritonserver` 2.73 exports."""
SERVER_MODULES = {
    "_api._datautils", "_api._dlpack", "_api._logging", "_api._memorybuffer", "_api._model", "_api._request",
    "_api._response", "_api._server", "_api._tensor", "_c", "_c.triton_bindings",
}  # fmt: skip
FRONTEND_MODULES = {
    "_api._kservegrpc": "KServeGrpc",
    "_api._kservehttp": "KServeHttp",
    "_api._metrics": "Metrics",
    "_c": "InvalidArgumentError",
    "_c.tritonfrontend_bindings": "TritonError",
}
"""Private modules of `tritonfrontend` 2.73, each with a name that it has."""
REAL = "OWNER = 'triton'\n"


def test_the_packages_have_the_names_of_the_real_ones_and_they_are_ours() -> None:
    for name in SERVER_NAMES:
        assert getattr(tritonserver, name) is getattr(naiad, name)
    for name in ("KServeGrpc", "KServeHttp", "Metrics"):
        assert getattr(tritonfrontend, name) is getattr(naiad, name)
    assert tritonserver.__version__ == tritonfrontend.__version__ == naiad.__version__


@pytest.mark.parametrize("name", sorted(SERVER_MODULES))
def test_a_private_module_of_tritonserver_is_the_one_of_naiad(name: str) -> None:
    assert importlib.import_module(f"tritonserver.{name}") is importlib.import_module(f"naiad.{name}")


@pytest.mark.parametrize(("module", "name"), FRONTEND_MODULES.items())
def test_a_private_module_of_tritonfrontend_has_the_classes_of_naiad(module: str, name: str) -> None:
    assert getattr(importlib.import_module(f"tritonfrontend.{module}"), name) is getattr(naiad, name)


def test_a_module_that_the_real_package_does_not_have_either_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'tritonserver\._api\._gpu'"):
        importlib.import_module("tritonserver._api._gpu")


@pytest.mark.server
def test_a_program_written_for_the_packages_runs_as_it_is(tmp_path: Path) -> None:
    program = """
        import json, urllib.request
        import numpy
        import tritonserver
        from tritonfrontend import KServeHttp
        from tritonserver._api._response import InferenceResponse

        options = tritonserver.Options(model_repository=MODELS)
        server = tritonserver.Server(options)
        server.start(wait_until_ready=True)
        one = numpy.ones(4, numpy.float32)
        for response in server.model("add_sub").infer(inputs={"LEFT": one, "RIGHT": one}):
            assert isinstance(response, InferenceResponse)
            print(numpy.from_dlpack(response.outputs["SUM"]).tolist())
        with KServeHttp(server, KServeHttp.Options(address="127.0.0.1", port=0)) as service:
            print(urllib.request.urlopen(f"http://127.0.0.1:{service.port}/v2/health/ready").status)
        try:
            server.model("nothing").infer(inputs={})
        except tritonserver.NotFoundError:
            print("not found")
        server.stop()
    """
    lines = [line.removeprefix(" " * 8) for line in program.splitlines()]
    text = "\n".join(lines).replace("MODELS", repr(str(ROOT / "examples" / "add_sub" / "models")))
    (tmp_path / "program.py").write_text(text)

    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.splitlines()) == (0, ["[2.0, 2.0, 2.0, 2.0]", "200", "not found"]), done.stderr


OWNERS = """
import importlib, json, sys
name, *orders = json.loads(sys.argv[1])
found = []
for folders in orders:
    before = list(sys.path)
    sys.path[:0] = folders
    module = importlib.import_module(name)
    found.append([getattr(module, "OWNER", "naiad"), sys.modules[name] is module])
    sys.path[:] = before
    del sys.modules[name]
print(json.dumps(found))
"""


@pytest.mark.server
@pytest.mark.parametrize("name", ["tritonserver", "tritonfrontend"])
def test_the_real_package_is_imported_where_both_are_installed(name: str, tmp_path: Path) -> None:
    """In one folder, as `pip install` puts both, in either order of folders, or alone."""
    ours, both, theirs = tmp_path / "ours", tmp_path / "both", tmp_path / "theirs"
    for folder in (ours, both):
        folder.mkdir()
        shutil.copy(ROOT / "platform" / f"{name}.py", folder)
    for folder in (both, theirs):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(REAL)
    orders = [[str(folder) for folder in order] for order in ((both,), (ours, theirs), (theirs, ours), (ours,))]

    command = [sys.executable, "-c", OWNERS, json.dumps([name, *orders])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["triton", True], ["triton", True], ["triton", True], ["naiad", True]]


def test_a_server_of_either_name_is_of_the_same_class(shared: Server) -> None:
    assert isinstance(shared, tritonserver.Server)
    (response,) = shared.model("identity").infer(inputs={"IN": np.array([1.5], np.float32)})
    assert isinstance(response, tritonserver.InferenceResponse)
