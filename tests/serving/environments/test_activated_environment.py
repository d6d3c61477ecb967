"""An environment that the server's shell has activated: a warning names a model that does not run in it, and no other."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
from support.server import ServerProcess

MODEL = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        prefix = pb_utils.Tensor("OUT", np.array([sys.prefix], dtype=object))
        return [pb_utils.InferenceResponse([prefix]) for _ in requests]
"""
CONFIG = 'backend: "python"\noutput [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with the numpy of this one."""
    folder: Path = tmp_path_factory.mktemp("activated") / "env"
    venv.create(folder, symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
    (Path(packages) / "numpy_of_the_tests.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    return folder


def add_model(repository: Path, name: str, environment: Path | None = None) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(MODEL)
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}\n'
    (repository / name / "config.pbtxt").write_text(CONFIG + (parameter if environment is not None else ""))


def prefix(server: ServerProcess, model: str) -> str:
    reply = server.post(f"/v2/models/{model}/infer", {"inputs": []})
    assert reply.status == 200, reply.error
    found: str = reply.json()["outputs"][0]["data"][0]
    return found


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_activated_environment_that_all_models_run_in_is_not_warned_of(tmp_path, environment, variable):
    """Before, it was called unreachable at the start, whatever the models asked for."""
    add_model(tmp_path / "models", "inside", environment)
    with ServerProcess(tmp_path / "models", work=tmp_path, environ={variable: str(environment)}) as server:
        assert prefix(server, "inside") == str(environment)
        assert "is activated" not in server.log
