"""Models that MLflow saved, served in the environments that they bring themselves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from backends.builds import prefetched, python_of
from support.once import once
from support.server import ServerProcess

pytestmark = [pytest.mark.builds, pytest.mark.endurance, pytest.mark.timeout(600)]

PACKAGES = ("mlflow-skinny", "numpy", "pandas", "scikit-learn", "skops")

COLUMNS = """
    input { name: "city" data_type: TYPE_STRING dims: 1 }
    input { name: "age" data_type: TYPE_FP64 dims: 1 }
    output { name: "answer" data_type: TYPE_STRING dims: 1 }
    """
CONFIGS = {
    "configured": f'backend: "mlflow" max_batch_size: 8 {COLUMNS}',
    "refused_code": f"""max_batch_size: 8 {COLUMNS}
        parameters {{ key: "allow_code" value {{ string_value: "false" }} }}""",
    "nested": 'backend: "mlflow"',
    "without_file": COLUMNS,
    "without_column": """
        input { name: "age" data_type: TYPE_FP64 dims: 1 }
        output { name: "answer" data_type: TYPE_STRING dims: 1 }
        """,
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has MLflow, and with models that it saved."""

    def fill(folder: Path) -> None:
        folder.mkdir()
        requirements = folder / "requirements.txt"
        requirements.write_text("\n".join(PACKAGES))
        prefetched(folder / "store", str(requirements), "--env-build=allowed")
        command = [str(python_of(folder / "store")), str(Path(__file__).with_name("make_models.py"))]
        done = subprocess.run([*command, str(folder / "models")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (folder / "answers.json").write_text(done.stdout)
        for name, config in CONFIGS.items():
            (folder / "models" / name / "config.pbtxt").write_text(config)
        packed = folder / "models" / "packed" / "1"
        shutil.copytree(folder / "models" / "shout" / "1", packed)
        with tarfile.open(packed / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
            archive.add(python_of(folder / "store").parents[1], ".")
        files = [str(path) for path in folder.glob("models/*/1/python_env.yaml")]
        prefetched(folder / "store", *files, "--env-build=allowed")

    return once(tmp_path_factory, "mlflow", fill)


@pytest.fixture(scope="session")
def answers(made: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made / "answers.json").read_text())
    return found


@pytest.fixture(scope="module")
def server(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = (f"--env-store={made / 'store'}", "--exit-on-error=false", "--strict-readiness=false")
    work = tmp_path_factory.mktemp("mlflow")
    with ServerProcess(made / "models", *flags, work=work, timeout=300) as running:
        yield running


@pytest.fixture(scope="module")
def reasons(server: ServerProcess) -> dict[str, str]:
    """Why models could not be loaded."""
    return {one["name"]: one.get("reason", "") for one in server.post("/v2/repository/index").json()}


def ask(
    server: ServerProcess, model: str, parameters: dict[str, Any] | None = None, **inputs: np.ndarray
) -> dict[str, Any]:
    datatypes = {"float64": "FP64", "float32": "FP32", "int64": "INT64", "bool": "BOOL", "object": "BYTES"}
    tensors = []
    for name, array in inputs.items():
        tensors.append(httpclient.InferInput(name, list(array.shape), datatypes[array.dtype.name]))
        tensors[-1].set_data_from_numpy(array)
    with httpclient.InferenceServerClient(server.http_url) as client:
        result = client.infer(model, tensors, parameters=parameters)
    return {output["name"]: result.as_numpy(output["name"]).tolist() for output in result.get_response()["outputs"]}


def texts(*rows: str | bytes) -> np.ndarray:
    return np.array([[row] for row in rows], object)


def interface(server: ServerProcess, model: str) -> list[tuple[object, ...]]:
    config = server.get(f"/v2/models/{model}/config").json()
    inputs = [(one["name"], one["data_type"], one["dims"], one["optional"]) for one in config["input"]]
    return [*inputs, *((one["name"], one["data_type"], one["dims"]) for one in config["output"])]


PEOPLE = {"age": np.array([[20.0], [50.0]]), "city": texts("a", "c")}


@pytest.mark.parametrize(("model", "output"), [("people", "output"), ("nested", "output"), ("configured", "answer")])
def test_columns_of_a_pipeline_are_inputs_by_their_names(
    server: ServerProcess, answers: dict[str, Any], model: str, output: str
):
    found = ask(server, model, **PEOPLE)
    assert [row[0].decode() for row in found[output]] == answers["people"]


def test_a_configuration_is_completed_from_the_signature(server: ServerProcess):
    assert interface(server, "people") == [
        ("age", "TYPE_FP64", [1], False),
        ("city", "TYPE_STRING", [1], False),
        ("output", "TYPE_STRING", [1]),
    ]
    assert interface(server, "scale") == [("input", "TYPE_FP32", [2, 2], False), ("output", "TYPE_FP32", [2, 2])]
    assert interface(server, "add")[2:] == [("sum", "TYPE_INT64", [1]), ("texts", "TYPE_STRING", [1])]
    assert interface(server, "visits")[:3] == [
        ("count", "TYPE_INT64", [1], False),
        ("when", "TYPE_STRING", [1], False),
        ("note", "TYPE_STRING", [1], True),
    ]
    assert server.get("/v2/models/visits/config").json()["max_batch_size"] == 4


def test_tensors_of_a_signature_are_arrays(server: ServerProcess):
    square = np.array([[[1, 2], [3, 4]]], np.float32)
    assert ask(server, "scale", input=square)["output"] == (square * 2).tolist()
    found = ask(server, "add", a=np.array([[1], [2]]), b=np.array([[10], [20]]))
    assert found == {"sum": [[11], [22]], "texts": [[b"1"], [b"2"]]}


VISITS = {
    "count": np.array([[3], [4]]),
    "when": texts("2024-05-31T12:00:00", "2024-05-31T12:00:00+02:00"),
    "tags": texts('["a", "b"]', '["ü"]'),
    "raw": texts(b"\xff\x00", b"xyz"),
    "closed": np.array([[True], [False]]),
}


def test_each_type_of_a_column_arrives_and_returns_as_it_is(server: ServerProcess):
    found = ask(server, "visits", **VISITS)
    assert found == {
        "total": [[6.0], [8.0]],
        "next": [[b"2024-06-01T12:00:00"], [b"2024-06-01T10:00:00"]],
        "note": [[b"-"], [b"-"]],
        "first": [[b"a"], ["ü".encode()]],
        "raw": [[b"\x00\xff"], [b"zyx"]],
        "open": [[False], [True]],
    }
    assert ask(server, "visits", note=texts("x", "y"), **VISITS)["note"] == [[b"x"], [b"y"]]


def test_parameters_of_the_signature_are_parameters_of_requests(server: ServerProcess):
    found = ask(server, "visits", {"factor": 10, "extra": "[1, 2]", "unknown": "x"}, **VISITS)
    assert found["total"] == [[33.0], [43.0]]
    assert ask(server, "visits", {"params.priority": 100}, **VISITS)["total"] == [[106.0], [108.0]]
    assert "the server reads the request parameter 'priority' itself" in server.log
    with pytest.raises(Exception, match=r"\[400\] .*Failed to validate type and shape for 'factor'"):
        ask(server, "visits", {"factor": "x"}, **VISITS)
    with pytest.raises(Exception, match=r"\[400\] the parameter 'extra' has a string that is not JSON"):
        ask(server, "visits", {"extra": "1,"}, **VISITS)


def test_the_record_of_an_agent_is_one_row_without_what_it_lacks(server: ServerProcess):
    found = ask(server, "agent", prompt=texts("a"))
    assert found == {"id": [[b"abc"]], "choices": [[b'[{"text": "a"}]']]}


def test_a_function_with_type_hints_gets_a_list(server: ServerProcess):
    assert ask(server, "shout", input=texts("a", "ü"))["output"] == [[b"A"], ["Ü".encode()]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": np.array([[-1], [1]])}, "RuntimeError: a negative count"),
        ({"when": texts("soon", "2024")}, "input 'when' has a value that is no time: .*; write it as 2024-05-31T12:00"),
        ({"when": texts("now", "2024-05-31")}, "input 'when' has a value that is no time: 'now' does not begin with"),
        ({"when": texts("9999-12-31", "2024-05-31")}, "input 'when' has the time '9999-12-31', and columns of pandas"),
        ({"tags": texts("[", "[]")}, "input 'tags' has a string that is not JSON"),
        ({"tags": texts("[1]", "[2]")}, "Failed to enforce schema"),
        ({"tags": texts(b"\xff", "[]")}, "input 'tags' has a string that is not UTF-8"),
    ],
)
def test_a_value_that_is_not_of_its_column_is_the_requests_error(
    server: ServerProcess, changed: dict[str, np.ndarray], message: str
):
    with pytest.raises(Exception, match=message):
        ask(server, "visits", **{**VISITS, **changed})
    assert ask(server, "visits", **VISITS)["total"] == [[6.0], [8.0]]


def test_a_missing_value_of_an_output_is_an_error_and_no_number(server: ServerProcess):
    assert ask(server, "gaps", text=texts("some"))["number"] == [[1]]
    with pytest.raises(
        Exception,
        match=r"output 'number' has a missing value in row 1, which TYPE_INT64 cannot be; write data_type: TYPE_FP64",
    ):
        ask(server, "gaps", text=texts("some", "none"))


def test_models_with_equal_requirements_share_one_environment(made: Path, server: ServerProcess):
    assert server.get("/v2/models/people/ready").status == 200
    assert len(list((made / "store").glob("*/env/bin/python"))) == 2, "one is that of the packed model"
    assert not list(made.glob("models/*/1/pylock.toml"))


def test_a_model_that_cannot_be_loaded_says_why_and_what_to_do(made: Path, reasons: dict[str, str]):
    models = made / "models"
    unsigned = f"'{models}/unsigned/1/MLmodel' has no signature, which would say what its tensors are; add one ("
    assert unsigned in reasons["unsigned"]
    assert reasons["unsigned"].endswith("or write input and output in config.pbtxt")
    assert f"cannot read '{models}/broken/1/MLmodel': while parsing" in reasons["broken"]
    assert (
        f"'{models}/flavorless/1/MLmodel' has no flavor python_function (it has other, sklearn), by which any model can "
        "be called" in reasons["flavorless"]
    )
    assert reasons["without_requirements"] == (
        f"Not found: cannot choose the environment of model 'without_requirements': {models}/without_requirements/1 has "
        "no environment.tar.gz, environment, model/environment.tar.gz, model/environment, python_env.yaml, "
        "requirements.txt, conda.yaml, model/python_env.yaml, model/requirements.txt or model/conda.yaml, by which models of backend 'mlflow' declare their packages; write one of them, or name an "
        "environment by the parameter EXECUTION_ENV_PATH"
    )
    assert (
        "the configuration lacks input 'city'; the inputs of the signature in "
        f"'{models}/without_column/1/MLmodel' are age, city" in reasons["without_column"]
    )
    assert f"MLflow cannot load '{models}/without_file/1': " in reasons["without_file"]
    assert reasons["without_file"].rpartition("; MLflow ")[2].endswith(" reads it")
    assert (
        f"loading '{models}/refused_code/1' runs code that is in it, and it is allowed none" in reasons["refused_code"]
    )


def test_a_model_runs_in_the_environment_that_is_beside_it(made: Path, server: ServerProcess):
    assert ask(server, "packed", input=texts("a"))["output"] == [[b"A"]]
    brought = made / "models" / "packed" / "1" / "environment.tar.gz"
    assert f"model 'packed' runs in the environment that it brings: {brought}" in server.log


def test_a_model_of_a_newer_mlflow_is_served_with_a_warning(server: ServerProcess):
    assert ask(server, "newer", input=texts("a"))["output"] == [[b"A"]]
    assert "newer/1/MLmodel' was written by MLflow 99.1.0, which is newer than the " in server.log


def test_the_operator_can_refuse_code_of_models(made: Path, tmp_path: Path):
    flags = (
        f"--env-store={made / 'store'}",
        "--exit-on-error=false",
        "--model-control-mode=explicit",
        "--load-model=shout",
        "--backend-config=mlflow,allow-code=false",
    )
    with ServerProcess(made / "models", *flags, work=tmp_path, timeout=120, wait="loaded") as running:
        running.wait_log("failed to load 'shout'")
        (reason,) = (one["reason"] for one in running.post("/v2/repository/index").json() if "reason" in one)
    assert f"loading '{made / 'models'}/shout/1' runs code that is in it" in reason
    assert 'allow it by the parameter allow_code: "true" in config.pbtxt' in reason


def test_requirements_are_resolved_only_where_that_is_allowed(made: Path, tmp_path: Path):
    file = made / "models" / "people" / "1" / "python_env.yaml"
    command = [sys.executable, "-m", "naiad", "env", "prefetch", str(file), f"--env-store={tmp_path / 'store'}"]
    done = subprocess.run([*command, "--env-build=locked"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no lock, and --env-build=locked resolves no requirements" in done.stderr
    assert f"write it with `naiad lock {file}`" in done.stderr
