"""Forests in files of XGBoost and LightGBM, served from the environment that the backend declares and locks.

`data` has small forests that the libraries themselves trained and saved, and what they answer to three rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from backends.builds import declared_environment, python_of
from support.server import ServerProcess

pytestmark = [pytest.mark.builds, pytest.mark.endurance]

DATA = Path(__file__).parent / "data"
ANSWERS = json.loads((DATA / "answers.json").read_text())
ROWS = np.array(ANSWERS["rows"], np.float32)

SCORES = 'parameters { key: "predict_proba" value { string_value: "true" } }'
MODELS: dict[str, tuple[str, str, str]] = {
    "json": ("three_classes.json", "xgboost.json", ""),
    "ubj": ("three_classes.ubj", "xgboost.ubj", ""),
    "scores": ("three_classes.json", "xgboost.json", f'backend: "fil" {SCORES}'),
    "binary": ("two_classes.json", "xgboost.json", ""),
    "binary_score": ("two_classes.json", "xgboost.json", f'backend: "fil" {SCORES}'),
    "binary_scores": (
        "two_classes.json",
        "xgboost.json",
        f'backend: "fil" {SCORES} output {{ name: "output__0" data_type: TYPE_FP32 dims: 2 }}',
    ),
    "careful": (
        "two_classes.json",
        "xgboost.json",
        'backend: "fil" parameters { key: "threshold" value { string_value: "0.99" } }',
    ),
    "regressor": ("regressor.json", "xgboost.json", ""),
    "lightgbm": (
        "lightgbm.txt",
        "model.txt",
        f'backend: "fil" {SCORES} parameters {{ key: "model_type" value {{ string_value: "lightgbm" }} }}',
    ),
    "renamed": (
        "three_classes.json",
        "mine",
        """
        backend: "fil"
        default_model_filename: "mine"
        max_batch_size: 32768
        input { name: "input__0" data_type: TYPE_FP32 dims: 4 }
        output { name: "output__0" data_type: TYPE_FP32 dims: 1 }
        parameters { key: "model_type" value { string_value: "xgboost_json" } }
        parameters { key: "is_classifier" value { string_value: "true" } }
        parameters { key: "algo" value { string_value: "ALGO_AUTO" } }
        parameters { key: "chunk_size" value { string_value: "4" } }
        """,
    ),
}


def add(models: Path, name: str, file: str, filename: str, config: str) -> None:
    version = models / name / "1"
    version.mkdir(parents=True)
    if file:
        shutil.copy(DATA / file, version / filename)
    if config:
        (models / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return declared_environment(tmp_path_factory, "fil")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("fil")
    for name, model in MODELS.items():
        add(folder / "models", name, *model)
    with ServerProcess(folder / "models", f"--env-store={store}", work=folder) as running:
        yield running


def ask(server: ServerProcess, model: str, rows: np.ndarray = ROWS) -> list[list[float]]:
    tensor = httpclient.InferInput("input__0", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    with httpclient.InferenceServerClient(server.http_url) as client:
        found: list[list[float]] = client.infer(model, [tensor]).as_numpy("output__0").tolist()
    return found


def column(values: list[float]) -> list[list[float]]:
    return [[value] for value in values]


@pytest.mark.parametrize("model", ["json", "ubj", "renamed"])
def test_a_classifier_answers_with_the_class_that_its_library_answers(server: ServerProcess, model: str):
    assert ask(server, model) == column(ANSWERS["three_classes"]["classes"])


@pytest.mark.parametrize(("model", "answers"), [("scores", "three_classes"), ("lightgbm", "lightgbm")])
def test_probabilities_are_those_of_the_library(server: ServerProcess, model: str, answers: str):
    assert ask(server, model) == pytest.approx(np.array(ANSWERS[answers]["probabilities"]), abs=1e-5)


def test_a_model_of_two_classes_has_one_probability_or_as_many_as_its_output_has(server: ServerProcess):
    both = np.array(ANSWERS["two_classes"]["probabilities"])
    assert ask(server, "binary") == column(ANSWERS["two_classes"]["classes"])
    assert ask(server, "binary_score") == pytest.approx(both[:, 1:], abs=1e-5)
    assert ask(server, "binary_scores") == pytest.approx(both, abs=1e-5)
    assert ask(server, "careful") == [[0], [0], [0]], "no score is above the threshold"


def test_a_regressor_answers_with_its_value(server: ServerProcess):
    expected = np.array(column(ANSWERS["regressor"]))
    assert ask(server, "regressor", np.ascontiguousarray(ROWS[:, :3])) == pytest.approx(expected, abs=1e-5)


def test_a_configuration_is_completed_from_the_file(server: ServerProcess):
    config = server.get("/v2/models/scores/config").json()
    assert [(one["name"], one["data_type"], one["dims"]) for one in config["input"] + config["output"]] == [
        ("input__0", "TYPE_FP32", [4]),
        ("output__0", "TYPE_FP32", [3]),
    ]
    assert (config["backend"], config["max_batch_size"]) == ("fil", 4)


def test_parameters_without_effect_are_told_once(server: ServerProcess):
    said = "parameters of model 'renamed' that concern computation on GPUs alone have no effect: chunk_size"
    assert server.log.count(said) == 1
    assert "the parameter algo of model 'renamed' is that of an older release; use layout in its place" in server.log


INPUT = 'input { name: "input__0" data_type: TYPE_FP32 dims: 4 }'
OUTPUT = 'output { name: "output__0" data_type: TYPE_FP32 dims: 1 }'

BROKEN: dict[str, tuple[str, str, str, str]] = {
    "empty": (
        "",
        "",
        'backend: "fil"',
        (
            "unable to load model 'empty', '{version}' has none of the files xgboost.model, xgboost.json, xgboost.ubj, "
            "model.txt, checkpoint.tl, and no parameter model_type says what to read"
        ),
    ),
    "no_json": (
        "lightgbm.txt",
        "xgboost.json",
        "",
        "cannot read '{version}/xgboost.json' as xgboost_json: Provided JSON could not be parsed as XGBoost model.",
    ),
    "of_a_newer_version": (
        "answers.json",
        "checkpoint.tl",
        "",
        "cannot read '{version}/checkpoint.tl' as treelite_checkpoint: Check failed: major_ver == ",
    ),
    "unknown_type": (
        "three_classes.json",
        "xgboost.json",
        'backend: "fil" parameters { key: "model_type" value { string_value: "catboost" } }',
        "catboost not recognized as a valid serialization format.",
    ),
    "too_narrow": (
        "three_classes.json",
        "xgboost.json",
        f'backend: "fil" max_batch_size: 8 {INPUT.replace("dims: 4", "dims: 3")} {OUTPUT}',
        "model 'too_narrow', tensor 'input__0': the model expects 2 dimensions (shape [-1,4]) but the model configuration",
    ),
    "without_probabilities": (
        "two_classes.json",
        "xgboost.json",
        'backend: "fil" output { name: "output__0" data_type: TYPE_FP32 dims: 2 }',
        (
            "output output__0 has 2 values a row, and the model gives the number of the class alone; for probabilities, "
            'set the parameter predict_proba to "true" in config.pbtxt, else dims to [ 1 ]'
        ),
    ),
    "explained": (
        "three_classes.json",
        "xgboost.json",
        (
            f'backend: "fil" max_batch_size: 8 {INPUT} {OUTPUT} '
            'output { name: "treeshap_output" data_type: TYPE_FP32 dims: [3, 5] }'
        ),
        "the output treeshap_output cannot be computed by this backend; compute it in a model.py with the package shap",
    ),
}


def test_a_forest_that_cannot_be_loaded_says_why(tmp_path: Path, store: Path):
    models = tmp_path / "models"
    for name, (file, filename, config, _) in BROKEN.items():
        add(models, name, file, filename, config)
    flags = (f"--env-store={store}", "--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(models, *flags, work=tmp_path, wait="loaded") as server:
        found = {one["name"]: one.get("reason", "") for one in server.post("/v2/repository/index").json()}
    for name, (*_, text) in BROKEN.items():
        assert text.format(version=models / name / "1") in found[name], name
        assert "\n" not in found[name], "neither traces nor Treelite's own hints"


def test_the_locked_environment_has_treelite_and_no_more_than_it_needs(store: Path):
    packages = {
        path.name.partition("-")[0]
        for path in python_of(store).parents[1].glob("lib/python*/site-packages/*.dist-info")
    }
    assert {"treelite", "numpy"} <= packages <= {"treelite", "numpy", "scipy", "packaging"}
