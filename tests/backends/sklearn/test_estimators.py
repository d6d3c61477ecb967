"""Estimators of scikit-learn, fitted, saved and served with the environment that the backend declares and locks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from backends.builds import declared_environment, python_of
from support.server import ServerProcess

pytestmark = [pytest.mark.builds, pytest.mark.endurance, pytest.mark.timeout(400)]

CONFIGS = {
    "allowed": 'backend: "sklearn" parameters { key: "allow_code" value { string_value: "true" } }',
    "clusters": """
        backend: "sklearn"
        max_batch_size: 8
        input { name: "FEATURES" data_type: TYPE_FP64 dims: 4 }
        output { name: "CLUSTER" data_type: TYPE_INT32 dims: 1 }
        output { name: "transform" data_type: TYPE_FP32 dims: 3 }
        """,
    "table": """
        max_batch_size: 8
        input { name: "city" data_type: TYPE_STRING dims: 1 }
        input { name: "age" data_type: TYPE_FP32 dims: 1 }
        output { name: "predict" data_type: TYPE_STRING dims: 1 }
        output { name: "chance" data_type: TYPE_FP64 dims: 2 }
        parameters { key: "method" value { string_value: "predict_proba" } }
        """,
}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return declared_environment(tmp_path_factory, "sklearn")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, store: Path) -> tuple[Path, dict[str, Any]]:
    """A repository, and what its estimators answer in the process that fitted them."""
    folder = tmp_path_factory.mktemp("sklearn") / "models"
    command = [str(python_of(store)), str(Path(__file__).with_name("make_models.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, config in CONFIGS.items():
        (folder / name / "config.pbtxt").write_text(config)
    return folder, json.loads(done.stdout)


@pytest.fixture(scope="module")
def server(models: tuple[Path, dict[str, Any]], store: Path) -> Iterator[ServerProcess]:
    folder = models[0]
    flags = (f"--env-store={store}", "--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(folder, *flags, work=folder.parent, timeout=120) as running:
        yield running


def ask(server: ServerProcess, model: str, **inputs: np.ndarray) -> dict[str, list[Any]]:
    tensors = []
    for name, array in inputs.items():
        datatype = {"float64": "FP64", "float32": "FP32", "object": "BYTES"}[array.dtype.name]
        tensors.append(httpclient.InferInput(name, list(array.shape), datatype))
        tensors[-1].set_data_from_numpy(array)
    with httpclient.InferenceServerClient(server.http_url) as client:
        result = client.infer(model, tensors)
    return {output["name"]: result.as_numpy(output["name"]).tolist() for output in result.get_response()["outputs"]}


def test_a_classifier_gives_classes_and_probabilities(server: ServerProcess, models: tuple[Path, dict[str, Any]]):
    answers = models[1]
    for model in ("iris", "allowed"):
        found = ask(server, model, X=np.array(answers["rows"]))
        assert found["predict"] == [[one] for one in answers["iris"]]
        assert found["predict_proba"] == pytest.approx(np.array(answers["iris_probabilities"]))


def test_a_configuration_is_completed_from_the_estimator(server: ServerProcess):
    def interface(model: str) -> list[tuple[str, str, list[int]]]:
        config = server.get(f"/v2/models/{model}/config").json()
        return [(one["name"], one["data_type"], one["dims"]) for one in config["input"] + config["output"]]

    assert interface("iris") == [
        ("X", "TYPE_FP64", [4]),
        ("predict", "TYPE_INT64", [1]),
        ("predict_proba", "TYPE_FP64", [3]),
    ]
    assert interface("names")[1:] == [("predict", "TYPE_STRING", [1]), ("predict_proba", "TYPE_FP64", [3])]
    assert interface("two_targets") == [("X", "TYPE_FP64", [2]), ("predict", "TYPE_FP64", [2])]
    assert interface("reduced") == [("X", "TYPE_FP64", [4]), ("transform", "TYPE_FP64", [2])]


def test_classes_may_be_texts(server: ServerProcess, models: tuple[Path, dict[str, Any]]):
    assert ask(server, "names", X=np.array(models[1]["rows"]))["predict"][0] == [b"setosa"]


def test_several_targets_and_transformations_are_rows_of_numbers(
    server: ServerProcess, models: tuple[Path, dict[str, Any]]
):
    answers = models[1]
    rows = np.array(answers["rows"])
    assert ask(server, "reduced", X=rows)["transform"] == pytest.approx(np.array(answers["reduced"]))
    found = ask(server, "two_targets", X=np.ascontiguousarray(rows[:, :2]))["predict"]
    assert found == pytest.approx(np.array(answers["two_targets"]))


def test_inputs_with_the_names_of_columns_are_a_table(server: ServerProcess, models: tuple[Path, dict[str, Any]]):
    answers = models[1]
    found = ask(server, "table", age=np.array([[20], [50]], np.float32), city=np.array([["a"], ["c"]], object))
    assert [row[0].decode() for row in found["predict"]] == answers["table"]
    assert found["chance"] == pytest.approx(np.array(answers["table_probabilities"]))


def test_outputs_have_the_types_and_names_of_the_configuration(
    server: ServerProcess, models: tuple[Path, dict[str, Any]]
):
    found = ask(server, "clusters", FEATURES=np.array(models[1]["rows"]))
    assert [distances.index(min(distances)) for distances in found["transform"]] == [row[0] for row in found["CLUSTER"]]


def test_an_error_of_the_estimator_is_the_requests_own(server: ServerProcess):
    with pytest.raises(Exception, match="Input X contains NaN"):
        ask(server, "iris", X=np.array([[1, 2, 3, np.nan]]))
    assert ask(server, "iris", X=np.array([[5.1, 3.5, 1.4, 0.2]]))["predict"] == [[0]]


def test_code_in_files_is_run_only_where_somebody_allows_it(
    server: ServerProcess, models: tuple[Path, dict[str, Any]], store: Path, tmp_path: Path
):
    folder = models[0]
    reasons = {one["name"]: one.get("reason", "") for one in server.post("/v2/repository/index").json()}
    assert reasons["pickled"] == (
        f"Internal: unable to load model 'pickled', '{folder}/pickled/1/model.joblib' is a pickle, which may run any code "
        "when it is read; save the estimator by skops.io.dump as model.skops, or allow it by the parameter allow_code: "
        '"true" in config.pbtxt or --backend-config=sklearn,allow-code=true'
    )
    assert reasons["unsafe"].startswith(
        f"Internal: unable to load model 'unsafe', '{folder}/unsafe/1/model.skops' has objects of types that skops does "
        "not know to be safe: "
    )
    flag = reasons["unsafe"].rpartition(" ")[2]
    assert flag.startswith("--backend-config=sklearn,trusted-types=")
    assert "its predict was asked about a row of 2 zeros, and failed" in reasons["table_without_configuration"]
    columns = "; write its inputs and outputs in config.pbtxt, one for each of its columns age, city"
    assert reasons["table_without_configuration"].endswith(columns)
    assert "an object of dict, which is no estimator" in reasons["no_estimator"]
    only = ("--model-control-mode=explicit", "--load-model=unsafe", "--load-model=pickled")
    allowed = (flag, "--backend-config=sklearn,allow-code=true")
    with ServerProcess(folder, f"--env-store={store}", *only, *allowed, work=tmp_path, timeout=120) as other:
        for model in ("unsafe", "pickled"):
            assert ask(other, model, X=np.array([[5.1, 3.5, 1.4, 0.2]]))["predict"] == [[0]]
