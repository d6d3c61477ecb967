"""What folders of sentence-transformers, of its old and new versions, ask for. Needs no PyTorch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton_python_backend_utils as pb_utils
from naiad_transformers.embedding import Embedding, read_embedding
from naiad_transformers.source import find_source
from saved_models.settings import read_config

NEW = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling"]
OLD = ["models.Transformer", "models.Pooling", "models.Normalize"]


def folder(path: Path, types: list[str], pooling: object, **files: object) -> Path:
    paths = ["", "1_Pooling", "2_Normalize", "3_Other"]
    modules = [
        {"type": f"sentence_transformers.{kind}", "path": place} for kind, place in zip(types, paths, strict=False)
    ]
    for name, content in (("modules", modules), ("1_Pooling/config", pooling), ("config", {}), *files.items()):
        (path / name).parent.mkdir(exist_ok=True)
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def settings_of(**parameters: str):
    given = {key: {"string_value": value} for key, value in parameters.items()}
    return read_config({"name": "m", "max_batch_size": 8, "parameters": given})


MEAN = Embedding("mean", is_normalized=False, prefix="", max_tokens=None, is_lowered=False)


def test_without_a_word_in_the_folder_vectors_are_means(tmp_path: Path):
    assert read_embedding(tmp_path, settings_of()) == MEAN
    assert read_embedding(tmp_path / "missing", settings_of()) == MEAN


def test_vectors_are_those_that_the_folder_asks_for_unless_parameters_say_otherwise(tmp_path: Path):
    old = folder(
        tmp_path / "old",
        OLD,
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": True},
        sentence_bert_config={"max_seq_length": 256, "do_lower_case": True},
        config_sentence_transformers={"prompts": {"query": "Query: "}, "default_prompt_name": "query"},
    )
    found = read_embedding(old, settings_of())
    assert found == Embedding("cls", is_normalized=True, prefix="Query: ", max_tokens=256, is_lowered=True)
    assert found.prepare("A Cat") == "query: a cat"
    new = folder(
        tmp_path / "new",
        NEW,
        {"pooling_mode": "lasttoken"},
        sentence_bert_config={"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"},
        config_sentence_transformers={"model_type": "SentenceTransformer", "default_prompt_name": None},
    )
    found = read_embedding(new, settings_of())
    assert found == Embedding("lasttoken", is_normalized=False, prefix="", max_tokens=None, is_lowered=False)
    found = read_embedding(new, settings_of(pooling="max", normalize="true", prefix="x"))
    assert found == Embedding("max", is_normalized=True, prefix="x", max_tokens=None, is_lowered=False)


@pytest.mark.parametrize(
    ("types", "pooling", "files", "message"),
    [
        ([*OLD[:2], "models.Dense"], {}, {}, "modules.json' asks for modules Dense, and the task feature-extraction "),
        ([*OLD, "models.Normalize"], {}, {}, "asks for modules Transformer, Pooling, Normalize, Normalize, and"),
        (OLD, {"pooling_mode": ["mean", "max"]}, {}, r"1_Pooling' asks for pooling \['mean', 'max'\], and the task"),
        (OLD, {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, {}, r"pooling \['cls', 'max'\]"),
        (OLD, {}, {"config_sentence_transformers": {"truncate_dim": 8}}, "asks for truncate_dim 8, .* serves none"),
        (OLD, {}, {"sentence_bert_config": {"transformer_task": "fill-mask"}}, "asks for transformer_task fill-mask"),
        (
            OLD,
            {"include_prompt": False},
            {"config_sentence_transformers": {"prompts": {"q": "Q"}, "default_prompt_name": "q"}},
            "asks for vectors without the prefix 'Q', and the task .* with it: its vectors would be others; serve it",
        ),
    ],
)
def test_what_the_folder_asks_for_and_is_not_served_is_refused(tmp_path: Path, types, pooling, files, message):
    with pytest.raises(pb_utils.TritonModelException, match=message):
        read_embedding(folder(tmp_path, types, pooling, **files), settings_of())


def test_a_wrong_parameter_is_refused(tmp_path: Path):
    with pytest.raises(pb_utils.TritonModelException, match="pooling is 'first', not one of cls, max, mean, "):
        read_embedding(tmp_path, settings_of(pooling="first"))


@pytest.mark.parametrize(
    ("architecture", "is_embedding", "task"),
    [
        ("BertModel", False, "feature-extraction"),
        ("MPNetForMaskedLM", True, "feature-extraction"),
        ("BertForSequenceClassification", True, "text-classification"),
        ("BertForSequenceClassification", False, "text-classification"),
    ],
)
def test_tasks_are_recognised(tmp_path: Path, monkeypatch, architecture, is_embedding, task):
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    if is_embedding:
        (tmp_path / "modules.json").write_text("[]")
    assert find_source(settings_of()).task == task


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM", "GPT2DoubleHeadsModel"])
def test_language_models_are_those_of_another_backend(tmp_path: Path, monkeypatch, architecture):
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    with pytest.raises(pb_utils.TritonModelException, match="text-generation is that of the backend vllm_like"):
        find_source(settings_of())


def test_old_folders_have_their_weights_in_a_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path))
    made = folder(tmp_path, OLD, {"pooling_mode_cls_token": True})
    (made / "0_Transformer").mkdir()
    (made / "config.json").rename(made / "0_Transformer" / "config.json")
    for parameters in ({}, {"model": "0_Transformer"}):
        source = find_source(settings_of(**parameters))
        assert (source.place, source.task) == (str(made / "0_Transformer"), "feature-extraction")
        assert read_embedding(source.folder, settings_of()).pooling == "cls"


def test_what_a_model_on_a_hub_is_is_read_from_its_files(tmp_path: Path, monkeypatch):
    made = folder(tmp_path, OLD, {"pooling_mode_cls_token": True}, config={"architectures": ["MPNetForMaskedLM"]})

    def download(name: str, *, allow_patterns: list[str]) -> str:
        assert allow_patterns == ["*.json"]
        if name != "someone/something":
            raise OSError("no such\nrepository")
        return str(made)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: "/nowhere")
    monkeypatch.setattr(pb_utils, "get_backend_config", lambda: {"allow-download": "true"})
    source = find_source(settings_of(model="someone/something"))
    assert (source.place, source.folder, source.task) == ("someone/something", made, "feature-extraction")
    assert read_embedding(source.folder, settings_of()).pooling == "cls"
    with pytest.raises(
        pb_utils.TritonModelException, match=r"'someone/else' cannot be downloaded: no such repository$"
    ):
        find_source(settings_of(model="someone/else"))


def test_an_adapter_is_named_as_such(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(
        pb_utils.TritonModelException, match=r"has an adapter .*, and not the model that it changes; join"
    ):
        find_source(settings_of())
