"""Tiny models of transformers, with random weights, served by the real library."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from backends.builds import python_of, torch_environment
from support.once import once
from support.server import ServerProcess
from tritonclient.utils import InferenceServerException

pytestmark = [pytest.mark.builds, pytest.mark.endurance, pytest.mark.timeout(600)]

ENVIRONMENT = "--backend-config=transformers,execution-env-path=pylock.cpu.toml"


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(value)} }} }}\n'


BACKEND = 'backend: "transformers"\n' + parameter("PREWARM", "torch,transformers")

CONFIGS = {
    "sentiment": BACKEND + "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 2000 }",
    "pairs": BACKEND
    + parameter("model", "../../sentiment/1")
    + parameter("task", "sentiment-analysis")
    + """
    max_batch_size: 4
    input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
    input { name: "TEXT_PAIR" data_type: TYPE_STRING dims: 1 }
    output { name: "SCORES" data_type: TYPE_FP32 dims: 3 }
    """,
    "entities": BACKEND,
    "mask": BACKEND + parameter("top_k", "2"),
    "vectors": BACKEND,
    "last_token": BACKEND,
    "last_token_alone": BACKEND,
    "vectors_alone": BACKEND,
    "sentences": BACKEND,
    "subjects": BACKEND + parameter("task", "zero-shot-classification"),
    "fixed_subjects": BACKEND
    + parameter("model", "../../subjects/1")
    + parameter("task", "zero-shot-classification")
    + parameter("candidate_labels", "cat, paris"),
    "summary": BACKEND
    + parameter("task", "summarization")
    + parameter("options", '{"max_new_tokens": 5, "min_new_tokens": 5}'),
    "images": BACKEND,
}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_environment(tmp_path_factory)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    """A folder with models, two images, and what pipelines answer in the process that saved them."""

    def make(folder: Path) -> None:
        program = Path(__file__).with_name("make_models.py")
        command = [str(python_of(store)), "-W", "ignore", str(program), str(folder / "models")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (folder / "answers.json").write_text(done.stdout)

    return once(tmp_path_factory, "transformers-models", make)


@pytest.fixture(scope="session")
def answers(files: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files / "answers.json").read_text())
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: Path, store: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("transformers")
    models = folder / "models"
    shutil.copytree(files / "models", models, ignore=shutil.ignore_patterns("audio"))
    for name, config in CONFIGS.items():
        (models / name / "1").mkdir(parents=True, exist_ok=True)
        (models / name / "config.pbtxt").write_text(config)
    with ServerProcess(models, f"--env-store={store}", ENVIRONMENT, work=folder, timeout=240) as running:
        yield running


def ask(server: ServerProcess, model: str, *outputs: str, **inputs: list[list[Any]]) -> dict[str, list[Any]]:
    tensors = []
    for name, rows in inputs.items():
        array = np.array(rows, object)
        tensors.append(httpclient.InferInput(name, list(array.shape), "BYTES"))
        tensors[-1].set_data_from_numpy(array)
    wanted = [httpclient.InferRequestedOutput(name) for name in outputs] or None
    with httpclient.InferenceServerClient(server.http_url) as client:
        result = client.infer(model, tensors, outputs=wanted)
    return {output["name"]: result.as_numpy(output["name"]).tolist() for output in result.get_response()["outputs"]}


def rows(texts: list[str]) -> list[list[str]]:
    return [[text] for text in texts]


def decoded(found: list[list[bytes]]) -> list[Any]:
    """The JSON of each row."""
    return [json.loads(text) for (text,) in found]


def close(found: Any, wanted: Any) -> bool:
    """Whether two answers are equal, with numbers that differ by rounding alone."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(close(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(close, found, wanted))
    return bool(found == pytest.approx(wanted, abs=1e-4)) if isinstance(wanted, float) else bool(found == wanted)


def test_texts_are_classified_as_by_the_pipeline(server: ServerProcess, answers: dict[str, Any]):
    found = ask(server, "sentiment", TEXT=rows(answers["texts"]))
    wanted = answers["classes"]
    assert close(decoded(found["JSON"]), wanted)
    assert found["LABEL"] == [[entries[0]["label"].encode()] for entries in wanted]
    assert close(found["SCORE"], [[entries[0]["score"]] for entries in wanted])
    by_label = [{entry["label"]: entry["score"] for entry in entries} for entries in wanted]
    assert close(found["SCORES"], [[each[name] for name in ("negative", "neutral", "positive")] for each in by_label])


def test_texts_of_several_requests_are_one_batch(server: ServerProcess, answers: dict[str, Any]):
    def one(number: int) -> bool:
        text = answers["texts"][number % 3]
        return close(decoded(ask(server, "sentiment", "JSON", TEXT=[[text]])["JSON"]), [answers["classes"][number % 3]])

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(one, range(48)))
    statistics = server.get("/v2/models/sentiment/stats").json()["model_stats"][0]
    assert statistics["execution_count"] < statistics["inference_count"]


def test_a_long_text_is_cut_and_a_wrong_one_fails_alone(server: ServerProcess, answers: dict[str, Any]):
    assert len(ask(server, "sentiment", "LABEL", TEXT=[["the cat " * 500]])["LABEL"]) == 1
    with pytest.raises(InferenceServerException, match="input 'TEXT' has a string that is not UTF-8"):
        ask(server, "sentiment", TEXT=[[b"\xff"]])


def test_pairs_of_texts_are_classified(server: ServerProcess):
    found = ask(server, "pairs", TEXT=[["a cat"], ["a cat"]], TEXT_PAIR=[["a dog"], ["on the mat"]])
    first, second = found["SCORES"]
    assert sum(first) == pytest.approx(1)
    assert first != pytest.approx(second)


def test_parts_of_texts_are_classified(server: ServerProcess, answers: dict[str, Any]):
    found = ask(server, "entities", TEXT=rows(answers["texts"]))
    assert list(found) == ["JSON"]
    assert close(decoded(found["JSON"]), answers["entities"])


def test_a_mask_is_filled(server: ServerProcess, answers: dict[str, Any]):
    found = ask(server, "mask", TEXT=[["the [MASK] sat on the mat ."]])
    wanted = answers["mask"][:2]
    assert close(decoded(found["JSON"]), [wanted])
    assert found["TOKEN"] == [[entry["token_str"].encode() for entry in wanted]]
    assert found["SEQUENCE"] == [[entry["sequence"].encode() for entry in wanted]]
    two = [["a [MASK] [MASK]"]]
    assert len(decoded(ask(server, "mask", "JSON", TEXT=two)["JSON"])[0]) == 2
    with pytest.raises(InferenceServerException, match="input 'TEXT' has 2 masks, for which there are no tensors"):
        ask(server, "mask", "TOKEN", TEXT=two)
    for text, message in (("a cat", "No mask_token"), ("a cat " * 50 + "[MASK]", "cut to the 32 tokens")):
        with pytest.raises(InferenceServerException, match=message):
            ask(server, "mask", TEXT=[[text]])


def test_vectors_are_means_without_the_padding_of_batches(server: ServerProcess, answers: dict[str, Any]):
    found = ask(server, "vectors", TEXT=rows(answers["texts"]))
    assert close(found["EMBEDDING"], answers["vectors"])
    assert close(decoded(found["JSON"]), answers["vectors"])


def test_rows_of_a_batch_have_their_values_also_where_there_is_no_token_for_padding(
    server: ServerProcess, answers: dict[str, Any]
):
    for name in ("last", "last_alone"):
        model = name.replace("last", "last_token")
        assert close(decoded(ask(server, model, "JSON", TEXT=rows(answers["texts"]))["JSON"]), answers[name])
    found = ask(server, "vectors_alone", "EMBEDDING", TEXT=rows(answers["texts"]))
    assert close(found["EMBEDDING"], answers["vectors_alone"])


def test_vectors_are_those_that_a_folder_of_sentence_transformers_asks_for(
    server: ServerProcess, answers: dict[str, Any]
):
    found = ask(server, "sentences", "EMBEDDING", TEXT=rows(answers["texts"]))
    assert close(found["EMBEDDING"], answers["sentences"])


def test_classes_come_with_the_request_or_with_the_configuration(server: ServerProcess, answers: dict[str, Any]):
    text, wanted = answers["texts"][0], answers["subjects"]
    found = ask(server, "subjects", TEXT=[[text], [text]], CANDIDATE_LABELS=[["cat", "paris"], ["paris", "dog"]])
    assert close(decoded(found["JSON"])[0], wanted)
    assert found["LABELS"][0] == [label.encode() for label in wanted["labels"]]
    assert close(found["SCORES"][0], wanted["scores"])
    assert set(found["LABELS"][1]) == {b"paris", b"dog"}
    assert close(decoded(ask(server, "fixed_subjects", TEXT=[[text]])["JSON"]), [wanted])


def test_texts_are_made_from_texts(server: ServerProcess, answers: dict[str, Any]):
    found = ask(server, "summary", TEXT=rows(answers["texts"]))
    assert found["GENERATED_TEXT"][0] == [answers["summary"][0].encode()]
    assert decoded(found["JSON"])[0] == {"generated_text": answers["summary"][0]}


def test_images_are_classified(server: ServerProcess, files: Path, answers: dict[str, Any]):
    images = [[(files / f"{name}.png").read_bytes()] for name in ("red", "blue")]
    found = ask(server, "images", IMAGE=images)
    assert close(decoded(found["JSON"]), answers["images"])
    assert found["LABEL"] == [[entries[0]["label"].encode()] for entries in answers["images"]]
    with pytest.raises(InferenceServerException, match="input 'IMAGE' has 8 bytes that are no image: cannot identify"):
        ask(server, "images", IMAGE=[[b"no image"]])


def test_a_configuration_is_completed_from_the_task(server: ServerProcess):
    config = server.get("/v2/models/images/config").json()
    assert (config["backend"], config["max_batch_size"]) == ("transformers", 4)
    assert [(one["name"], one["data_type"], one["dims"]) for one in (*config["input"], *config["output"])] == [
        ("IMAGE", "TYPE_STRING", [1]),
        ("LABEL", "TYPE_STRING", [1]),
        ("SCORE", "TYPE_FP32", [1]),
        ("SCORES", "TYPE_FP32", [2]),
        ("JSON", "TYPE_STRING", [1]),
    ]


BROKEN = {
    "nothing": (
        "",
        (
            "unable to load model 'nothing', there is no '{folder}/config.json' and '{folder}/model/config.json'; put "
            "what save_pretrained wrote there, or name its directory by the parameter model"
        ),
    ),
    "hub": (
        parameter("model", "someone/something"),
        (
            "if 'someone/something' is a name on a hub, download it there, or allow it for the server by "
            "--backend-config=transformers,allow-download=true"
        ),
    ),
    "wrong_task": (parameter("task", "juggling"), "the parameter task is 'juggling'; there are text-classification, "),
    "language_model": (parameter("task", "text-generation"), "is that of the backend vllm_like"),
    "unknown_task": (
        "",
        "its task is not known: '{folder}' has the architecture BertForOther; name the task that it was trained for by ",
    ),
    "wrong_output": (
        """
        input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
        output { name: "PROBABILITY" data_type: TYPE_FP32 dims: 1 }
        max_batch_size: 4
        """,
        "unexpected inference output 'PROBABILITY', allowed outputs are: JSON, LABEL, SCORE, SCORES",
    ),
    "no_weights": ("", "transformers {version} cannot read '{folder}' for the task text-classification: "),
    "no_tokenizer": (
        "",
        "'{folder}' has no tokenizer, or one without words: BertTokenizer has 5 entries; save it there by its save_",
    ),
    "other_weights": (
        parameter("task", "fill-mask"),
        "'{folder}' are of the architecture BertForSequenceClassification and lack cls.predictions.bias, ",
    ),
    "encoder_and_decoder": (
        parameter("task", "feature-extraction"),
        "the task feature-extraction of the architecture T5ForConditionalGeneration fails for two short inputs: Value",
    ),
    "audio": ("", "has no model for the task text-classification in '{folder}' (the architecture Wav2Vec2ForSequence"),
    "own_code": ("", "needs code that is beside its weights, which is not run; if you trust it, allow it by "),
    "wrong_options": (parameter("options", "[]"), "the parameter options is '[]', not a JSON object such as "),
}


COPIED = {"encoder_and_decoder": "summary", "audio": "audio"}


def test_a_model_that_cannot_be_loaded_says_why_and_others_are_served(
    tmp_path: Path, files: Path, store: Path, answers: dict[str, Any]
):
    models = tmp_path / "models"
    shutil.copytree(files / "models" / "sharded", models / "recognised")
    for name, (config, _) in BROKEN.items():
        if name in {"nothing", "hub"}:
            (models / name / "1").mkdir(parents=True)
        else:
            shutil.copytree(files / "models" / COPIED.get(name, "sentiment"), models / name)
        (models / name / "config.pbtxt").write_text(BACKEND + config)
    for file in (models / "no_tokenizer" / "1").glob("tokenizer*"):
        file.unlink()
    (models / "no_weights" / "1" / "model.safetensors").unlink()
    unknown = models / "unknown_task" / "1" / "config.json"
    unknown.write_text(unknown.read_text().replace("BertForSequenceClassification", "BertForOther"))
    with_code = models / "own_code" / "1" / "config.json"
    described = json.loads(with_code.read_text())
    code = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}
    with_code.write_text(json.dumps({**described, "model_type": "own", "auto_map": code}))
    flags = (f"--env-store={store}", ENVIRONMENT, "--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(models, *flags, work=tmp_path, timeout=240) as server:
        reasons = {
            entry["name"]: entry.get("reason", "")
            for entry in server.post("/v2/repository/index", {}).json()
            if entry.get("state") != "READY"
        }
        for name, (_, message) in BROKEN.items():
            wanted = message.format(folder=models / name / "1", version="5.24.0")
            assert wanted in reasons[name], f"{name}: {reasons[name]}"
        assert "naiad_transformers/" not in "".join(reasons.values()), "frames of the backend's own code"
        found = ask(server, "recognised", "JSON", TEXT=rows(answers["texts"]))
        assert close(decoded(found["JSON"]), answers["classes"])
