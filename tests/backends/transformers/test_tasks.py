"""Rows of a batch through stand-ins that answer as the library's pipelines do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from naiad_transformers.loading import check_weights
from naiad_transformers.source import Source
from naiad_transformers.tasks import Row, RowRunner, task_of, try_out
from saved_models.conversion import InputError
from saved_models.settings import read_config


class Classifier:
    """Scores by the index of the logit, named by `id2label` and sorted, as by the library's postprocessing."""

    def __init__(self, id2label: dict[int, str], label2id: object, *rows: list[float]) -> None:
        self.model = SimpleNamespace(config=SimpleNamespace(id2label=id2label, label2id=label2id))
        self.rows = rows

    def __call__(self, texts, *, top_k, batch_size, truncation):
        assert (len(texts), top_k, batch_size, truncation) == (len(self.rows), None, len(texts), True)
        names = self.model.config.id2label
        found = [[{"label": names[index], "score": score} for index, score in enumerate(row)] for row in self.rows]
        return [sorted(entries, key=lambda entry: -entry["score"]) for entries in found]


def settings_of(**parameters: str):
    given = {key: {"string_value": value} for key, value in parameters.items()}
    return read_config({"name": "m", "max_batch_size": 8, "parameters": given})


def texts(*values: str | bytes) -> np.ndarray:
    return np.array([[value if isinstance(value, bytes) else value.encode()] for value in values], object)


PADS = SimpleNamespace(pad_token_id=0)
ZERO_SHOT = SimpleNamespace(tokenizer=PADS, entailment_id=2)


def source_of(task: str, architecture: str = "BertModel") -> Source:
    config = {"architectures": [architecture]}
    return Source("/m/1", Path("/m/1"), task, config, allows_code=False, allows_download=False)


def runner(task: str, asked: object, **parameters: str) -> RowRunner:
    settings = settings_of(**parameters)
    return RowRunner(task_of(source_of(task), settings).make(asked, settings), PADS)


@pytest.mark.parametrize(
    "label2id",
    [None, {}, {"LABEL_0": 0}, {"no": 1, "yes": 2, "maybe": 3}, {"no": "0"}, {"no": 2, "yes": 1, "maybe": 0}],
)
def test_scores_follow_the_logits_whatever_label2id_says(label2id):
    asked = Classifier({0: "no", 1: "yes", 2: "maybe"}, label2id, [0.25, 0.5, 0.25], [0.5, 0.125, 0.375])
    found = runner("text-classification", asked).run({"TEXT": texts("a", "b")}, ["LABEL", "SCORE", "SCORES", "JSON"])
    assert found["SCORES"].tolist() == [[0.25, 0.5, 0.25], [0.5, 0.125, 0.375]]
    assert found["LABEL"].tolist() == [["yes"], ["no"]]
    assert found["SCORE"].tolist() == [[0.5], [0.5]]
    assert [entry["label"] for entry in json.loads(found["JSON"][1, 0])] == ["no", "maybe", "yes"]


def test_classes_of_one_name_have_a_score_each():
    asked = Classifier({0: "other", 1: "yes", 2: "other"}, {"other": 2, "yes": 1}, [0.5, 0.375, 0.125])
    found = runner("text-classification", asked).run({"TEXT": texts("a")}, ["SCORES", "JSON"])
    assert found["SCORES"].tolist() == [[0.5, 0.375, 0.125]]
    assert json.loads(found["JSON"][0, 0]) == [
        {"label": "other", "score": 0.5},
        {"label": "yes", "score": 0.375},
        {"label": "other", "score": 0.125},
    ]


def test_what_fails_at_every_request_is_refused_at_the_load():
    with pytest.raises(
        pb_utils.TritonModelException, match="has 2 classes, and none of the number 0; number them from"
    ):
        runner("text-classification", Classifier({1: "no", 2: "yes"}, {"no": 1, "yes": 2}))
    with pytest.raises(
        pb_utils.TritonModelException, match="not an object without top_k, since SCORES has all classes"
    ):
        runner("text-classification", Classifier({0: "no"}, {}), options='{"top_k": 1}')


def test_wrong_values_of_a_request_are_errors_of_the_client():
    subjects = runner("zero-shot-classification", ZERO_SHOT)
    for labels, message in [
        (np.empty((1, 0), object), "input 'CANDIDATE_LABELS' is empty; send at least one label"),
        (texts(b"\xff"), "input 'CANDIDATE_LABELS' has a string that is not UTF-8"),
    ]:
        with pytest.raises(InputError, match=message):
            subjects.run({"TEXT": texts("a"), "CANDIDATE_LABELS": labels}, ["JSON"])
    with pytest.raises(InputError, match="input 'TEXT' has a string that is not UTF-8"):
        subjects.run({"TEXT": texts(b"\xff"), "CANDIDATE_LABELS": texts("a")}, ["JSON"])
    with pytest.raises(InputError, match="input 'TEXT' is a column, and has 2 values for each row instead of one"):
        subjects.run({"TEXT": np.array([[b"a", b"b"]], object), "CANDIDATE_LABELS": texts("a")}, ["JSON"])


def test_a_mask_that_is_missing_or_one_too_many_is_the_clients_error():
    class PipelineException(Exception):
        pass

    class Asked(SimpleNamespace):
        tokenizer = SimpleNamespace(mask_token="[MASK]", model_max_length=32)

        def __call__(self, given, **_):
            if given == ["fails"]:
                raise RuntimeError("out of memory")
            if given == ["two"]:
                return [[], []]
            raise PipelineException("No mask_token ([MASK]) found on the input")

    mask = runner("fill-mask", Asked())
    for given, message in [
        (["a [MASK]", "b"], r"input 'TEXT' has no mask: No mask_token .* on the input; write \[MASK\]"),
        (["a [MASK]"], "input 'TEXT' has no mask left: the text was cut to the 32 tokens that the model takes; send a"),
        (["two"], "input 'TEXT' has 2 masks, for which there are no tensors"),
    ]:
        with pytest.raises(InputError, match=message):
            mask.run({"TEXT": texts(*given)}, ["TOKEN"])
    with pytest.raises(RuntimeError, match="out of memory"):
        mask.run({"TEXT": texts("fails")}, ["TOKEN"])


@pytest.mark.parametrize("labels", ["", " , "])
def test_candidate_labels_without_a_label_are_refused_at_the_load(labels):
    with pytest.raises(
        pb_utils.TritonModelException, match=r"candidate_labels is '[ ,]*', not labels such as cat, dog"
    ):
        runner("zero-shot-classification", ZERO_SHOT, candidate_labels=labels)


def test_a_model_without_a_class_for_entailment_is_refused_at_the_load():
    with pytest.raises(
        pb_utils.TritonModelException, match=r"label2id .* has no class whose name begins with 'entail'"
    ):
        runner("zero-shot-classification", SimpleNamespace(tokenizer=PADS, entailment_id=-1))


def test_rows_are_asked_one_by_one_where_the_tokenizer_has_no_padding():
    sizes: list[int] = []

    def ask(arrays):
        sizes.append(len(arrays["TEXT"]))
        return [Row({}, value.decode()) for (value,) in arrays["TEXT"]]

    for token, wanted in ((None, [1, 1, 1]), (0, [3])):
        sizes.clear()
        found = RowRunner(ask, SimpleNamespace(pad_token_id=token)).run({"TEXT": texts("a", "b", "c")}, ["JSON"])
        assert found["JSON"].tolist() == [['"a"'], ['"b"'], ['"c"']]
        assert sizes == wanted


@pytest.mark.parametrize(("token", "wanted"), [(None, 1), (0, 4)])
def test_labels_are_joined_only_where_the_tokenizer_has_padding(token, wanted):
    class Asked(SimpleNamespace):
        def __call__(self, given, *, candidate_labels, batch_size):
            assert batch_size == wanted
            return [{"labels": candidate_labels, "scores": [0.5, 0.5]} for _ in given]

    asked = Asked(tokenizer=SimpleNamespace(pad_token_id=token), entailment_id=0)
    found = runner("zero-shot-classification", asked, candidate_labels="cat, dog").run(
        {"TEXT": texts("a", "b")}, ["LABELS"]
    )
    assert found["LABELS"].tolist() == [["cat", "dog"], ["cat", "dog"]]


@pytest.mark.parametrize(
    ("kind", "architecture", "loaded", "missing"),
    [
        ("text-classification", "BertModel", "BertForSequenceClassification", ["classifier.weight", "classifier.bias"]),
        ("token-classification", "BertForSequenceClassification", "BertForTokenClassification", []),
        ("feature-extraction", "T5EncoderModel", "T5Model", ["decoder.weight", "pooler.weight"]),
    ],
)
def test_weights_of_another_task_are_refused(kind, architecture, loaded, missing):
    with pytest.raises(pb_utils.TritonModelException) as failure:
        check_weights(type(loaded, (), {})(), missing, kind, source_of(kind, architecture), settings_of())
    lacking = [key for key in sorted(missing) if "pooler" not in key]
    lack = f" and lack {', '.join(lacking)}" if lacking else ""
    assert (
        f"the weights in '/m/1' are of the architecture {architecture}{lack}, so the task {kind} would give values "
        "without meaning; name the task that it was trained for by the parameter task: text-classification, "
    ) in str(failure.value)


@pytest.mark.parametrize(
    ("kind", "architecture", "loaded", "missing"),
    [
        ("zero-shot-classification", "BartForSequenceClassification", "BartForSequenceClassification", []),
        ("feature-extraction", "BertForMaskedLM", "BertModel", ["pooler.dense.weight"]),
        ("fill-mask", "BertForPreTraining", "BertForMaskedLM", []),
    ],
)
def test_weights_of_the_task_are_taken(kind, architecture, loaded, missing):
    check_weights(type(loaded, (), {})(), missing, kind, source_of(kind, architecture), settings_of())


def test_what_fails_for_a_small_input_is_refused_at_the_load():
    def failing(_arrays):
        raise TypeError("forward() lacks\n'input_values'")

    config = {"name": "m", "output": [{"name": "JSON", "data_type": "TYPE_STRING", "dims": [1]}]}
    asked = SimpleNamespace(tokenizer=PADS)
    source = source_of("feature-extraction", "Wav2Vec2Model")
    with pytest.raises(pb_utils.TritonModelException) as failure:
        try_out(RowRunner(failing, PADS), asked, task_of(source, settings_of()), read_config(config), source)
    assert str(failure.value).startswith(
        "unable to load model 'm', the task feature-extraction of the architecture Wav2Vec2Model fails for two short "
        "inputs: TypeError: forward() lacks 'input_values'; name the task that it was trained for by the parameter task"
    )
    config["parameters"] = {"options": {"string_value": "{}"}}
    with pytest.raises(pb_utils.TritonModelException, match=r"; correct the parameter options$"):
        try_out(RowRunner(failing, PADS), asked, task_of(source, settings_of()), read_config(config), source)


@pytest.mark.parametrize(
    ("size", "shape"), [({}, b"224 224"), ({"image_size": 16}, b"16 16"), ({"image_size": [8, 16]}, b"16 8")]
)
def test_the_image_of_the_trial_is_as_large_as_the_model_takes_it(size, shape):
    heads: list[bytes] = []

    def ask(arrays):
        heads.extend(image[:16] for (image,) in arrays["IMAGE"])
        return [Row({}, []) for _ in arrays["IMAGE"]]

    source = replace(source_of("image-classification"), config=size)
    config = {"name": "m", "output": [{"name": "JSON", "data_type": "TYPE_STRING", "dims": [1]}]}
    asked = SimpleNamespace(tokenizer=None)
    try_out(RowRunner(ask, None), asked, task_of(source, settings_of()), read_config(config), source)
    assert len(heads) == 2
    assert all(head.startswith(b"P6 %b 255 " % shape) for head in heads)


@pytest.mark.parametrize(
    ("config", "size"), [({"hidden_size": 16, "word_embed_proj_dim": 8}, 8), ({"d_model": 4}, 4), ({}, -1)]
)
def test_the_size_of_vectors_comes_from_the_configuration(config, size):
    source = replace(source_of("feature-extraction"), config=config)
    assert task_of(source, settings_of()).interface.outputs[0].shape == (-1, size)


def test_rows_that_fail_together_are_asked_one_by_one():
    def ask(arrays):
        if len(arrays["TEXT"]) > 1:
            raise IndexError("tuple index out of range")
        return [Row({}, "answer")]

    rows = RowRunner(ask, PADS)
    config = {"name": "m", "output": [{"name": "JSON", "data_type": "TYPE_STRING", "dims": [1]}]}
    source = source_of("token-classification")
    asked = SimpleNamespace(tokenizer=PADS)
    try_out(rows, asked, task_of(source, settings_of()), read_config(config), source)
    assert rows.run({"TEXT": texts("a", "b")}, ["JSON"])["JSON"].tolist() == [['"answer"'], ['"answer"']]
