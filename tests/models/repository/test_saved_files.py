"""Files that frameworks saved: which backend serves them, what the model is named, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.autofill import fill_backend
from naiad.config.model.text import parse_text
from naiad.core.errors import RepositoryError
from naiad.models.repository.saved_files import may_be_saved_file, read_saved_file, temporary_repository


def saved(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "backend", "places"),
    [
        ("digits.onnx", "", "onnxruntime", {"1/model.onnx"}),
        ("Digits.ONNX", "", "onnxruntime", {"1/model.onnx"}),
        ("scripted.pt", "", "pytorch", {"1/model.pt"}),
        ("compiled.pt2", "", "pytorch", {"1/model.pt2"}),
        ("trees.json", '{"learner":{}}', "fil", {"1/xgboost.json"}),
        ("trees.ubj", "", "fil", {"1/xgboost.ubj"}),
        ("trees.txt", "tree\nversion=v4\n", "fil", {"1/model.txt"}),
        ("trees.tl", "", "fil", {"1/checkpoint.tl"}),
        ("iris.skops", "", "sklearn", {"1/model.skops"}),
        ("iris.joblib", "", "sklearn", {"1/model.joblib"}),
        ("iris.pickle", "", "sklearn", {"1/model.pkl"}),
    ],
)
def test_a_file_is_recognised_by_its_ending_and_its_beginning(tmp_path, name, content, backend, places):
    found = read_saved_file(saved(tmp_path / name, content))
    assert (found.backend, set(found.files)) == (backend, places)
    assert parse_text(found.config, "config.pbtxt").backend == backend
    assert ("is a pickle, which runs code" in found.note) == name.endswith((".joblib", ".pickle"))


@pytest.mark.parametrize(
    ("name", "content", "backend", "place"),
    [
        ("MLmodel", "flavors: {}", "mlflow", "1"),
        ("config.json", '{"model_type": "bert"}', "transformers", "1"),
        ("model.onnx", "", "onnxruntime", "1/model.onnx"),
    ],
)
def test_a_directory_is_recognised_by_a_file_in_it(tmp_path, name, content, backend, place):
    folder = saved(tmp_path / "colours" / name, content).parent
    found = read_saved_file(folder)
    assert (found.backend, found.name, found.files) == (backend, "colours", {place: folder})
    assert may_be_saved_file(str(folder))


def test_lightgbm_is_named_because_the_ending_does_not_say_it(tmp_path):
    config = parse_text(read_saved_file(saved(tmp_path / "t.txt", "tree\n")).config, "config.pbtxt")
    assert config.parameters["model_type"].string_value == "lightgbm"


def test_weights_beside_an_onnx_file_belong_to_it(tmp_path):
    file = saved(tmp_path / "net.onnx")
    weights = saved(tmp_path / "net.onnx.data")
    saved(tmp_path / "other.onnx.data")
    assert read_saved_file(file).files == {"1/model.onnx": file, "1/net.onnx.data": weights}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("digits.onnx", "digits"),
        ("digits/model.onnx", "digits"),
        ("digits/1/model.onnx", "digits"),
        ("a b/ü digits (2).onnx", "digits_2_"),
        ("artifacts/digits/model/MLmodel", "digits"),
        ("store/digits/1/saved_model.onnx", "digits"),
    ],
)
def test_the_name_is_that_of_the_file_or_of_a_folder_that_says_something(tmp_path, path, name):
    file = saved(tmp_path / path)
    assert read_saved_file(file.parent if file.name == "MLmodel" else file).name == name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "notes.json",
            "{}",
            "a .json file is a model only if XGBoost or LightGBM wrote it, and this one does not begin",
        ),
        ("notes.txt", "no trees", "a .txt file is a model only if"),
        ("weights.h5", "", "no backend is known for files that end in '.h5'; known are a directory with MLmodel"),
        (
            "pricing.py",
            "",
            "it is code; `naiad init model NAME --from pricing:FUNCTION` writes the model of a function",
        ),
        ("weights", "", "its name has no ending; known are"),
        ("m/config.pbtxt", "", "it is a model of a repository; did you mean --model-repository="),
        ("r/m/config.pbtxt", "", "it is a model repository; did you mean --model-repository="),
        ("a/adapter_config.json", "{}", "it is an adapter, without the model that it changes: join them by merge_and_"),
        ("r/notes", "", "it is a directory without a file of a framework that naiad knows; known are"),
    ],
)
def test_another_file_is_refused_with_what_is_known(tmp_path, name, content, message):
    file = saved(tmp_path / name, content)
    with pytest.raises(RepositoryError) as caught:
        read_saved_file(tmp_path / name.split("/")[0] if "/" in name else file)
    assert caught.value.message.startswith(f"cannot serve '{tmp_path}/")
    assert message in caught.value.message


def test_a_file_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(RepositoryError, match=r"x\.onnx': it does not exist; correct the path"):
        read_saved_file(tmp_path / "x.onnx")


@pytest.mark.parametrize(
    ("argument", "expected"), [("x.onnx", True), ("a/b", True), ("models", False), ("a" * 300, False), (".", False)]
)
def test_a_word_that_cannot_be_a_file_is_not_taken_for_one(argument, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert may_be_saved_file(argument) is expected


def test_a_temporary_repository_has_links_and_is_removed(tmp_path):
    file = saved(tmp_path / "digits.onnx", "graph")
    with temporary_repository([read_saved_file(file)]) as folder:
        link = folder / "digits" / "1" / "model.onnx"
        assert link.is_symlink()
        assert link.read_text() == "graph"
        assert 'backend: "onnxruntime"' in (folder / "digits" / "config.pbtxt").read_text()
    assert not folder.exists()
    assert file.read_text() == "graph"


def test_two_files_of_one_name_are_refused(tmp_path):
    files = [read_saved_file(saved(tmp_path / name / "digits.onnx")) for name in ("a", "b")]
    with (
        pytest.raises(
            RepositoryError, match=r"a/digits\.onnx' and '.*/b/digits\.onnx': both are named 'digits'; write"
        ),
        temporary_repository(files),
    ):
        pass


@pytest.mark.parametrize(
    "name", ["m.onnx", "m.pt", "m.pt2", "m.ubj", "m.tl", "m.skops", "m.joblib", "m.pkl", "m.pickle", "boosted.json"]
)
def test_a_directory_with_the_file_alone_is_recognised_as_naiad_init_recognises_the_file(tmp_path, name):
    (tmp_path / name).write_text('{"learner": {}}')
    saved = read_saved_file(tmp_path / name)
    ((target, _),) = saved.files.items()

    message = pb.ModelConfig()
    fill_backend(message, "m", {target.removeprefix("1/"): False})

    assert message.backend == saved.backend
