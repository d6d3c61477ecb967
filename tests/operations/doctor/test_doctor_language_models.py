"""`naiad doctor` reads `model.json` of language models: what would fail at load, or take memory for nothing."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from naiad.cli.main import main

BACKENDS = Path(__file__).parents[3] / "backends"
PORTS = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]


def gguf(context: int = 8192, blocks: int = 32) -> bytes:
    """A GGUF file with a header and one tensor of four bytes."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {"context_length": context, "block_count": blocks, "embedding_length": 4096, "attention.head_count": 32}
    values = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    values += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    for name, number in numbers.items():
        values += text(f"llama.{name}") + struct.pack("<II", 4, number)
    tensor = text("output.weight") + struct.pack("<IQIQ", 1, 1, 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(numbers) + 2) + values + tensor + b"\0" * 4


GGUF = gguf()
PLANTED: dict[str, tuple[object, str, str]] = {
    "no_weights": ({"model": "none.gguf"}, "error", "'model' in model.json is 'none.gguf', but there is no '"),
    "no_gguf": ({"model": "model.json", "engine": "xllamacpp"}, "error", "is not a GGUF file"),
    "cut": ({"model": "cut.gguf"}, "error", "its GGUF header cannot be read"),
    "short": ({"model": "short.gguf"}, "error", "its last tensor begins at byte"),
    "no_json": ("{", "error", "is not valid JSON"),
    "no_object": ([1], "error", "must hold one JSON object"),
    "unknown_key": ({"model": "a.gguf", "max_model_length": 3}, "error", "did you mean 'max_model_len'?"),
    "unknown_option": ({"model": "a.gguf", "engine_options": {"threads": 3}}, "error", "did you mean 'n_threads'?"),
    "no_slots": ({"model": "a.gguf", "max_num_seqs": 0}, "error", "'max_num_seqs' in model.json must be an integer"),
    "text": ({"model": "a.gguf", "max_model_len": "many"}, "error", "'max_model_len' in model.json must be an integer"),
    "no_engine": ({"model": "a.gguf", "engine": "llama"}, "error", 'is "llama"; it must be one of xllamacpp, vllm, onnx'),
    "too_many": ({"model": "a.gguf", "max_num_seqs": 1000, "max_model_len": 1}, "error", "llama.cpp runs at most 256"),
    "too_long": ({"model": "a.gguf", "max_model_len": 9000, "max_num_seqs": 1}, "warning", "was trained with 8192 tokens"),
    "too_large": ({"model": "large.gguf", "max_model_len": 8192, "max_num_seqs": 256}, "warning", "the machine has"),
    "no_adapter": ({"model": "a.gguf", "enable_lora": True}, "error", "'other' in multi_lora.json is 'none.gguf'"),
    "no_template": ({"model": "a.gguf", "chat_template": "none.jinja"}, "error", "'chat_template' in model.json is"),
    "no_tokenizer": ({"model": "a.onnx"}, "error", "'tokenizer' in model.json is 'tokenizer.json', but there is no '"),
    "vllm_key": ({"model": "some/model", "gpu_memory_utilisation": 1}, "warning", "did you mean 'gpu_memory_utilization'?"),
    "vllm_path": ({"model": "./none"}, "error", "'model' in model.json is './none', but there is no '"),
    "option_word": ({"model": "a.gguf", "engine_options": {"flash_attn": "sometimes"}}, "error", "'flash_attn' in 'engine_options' of model.json is \"sometimes\"; it must be one of auto, enabled, disabled"),
    "option_near": ({"model": "a.gguf", "engine_options": {"cache_type_k": "q9_0"}}, "error", "q4_0, iq4_nl (did you mean '"),
    "option_number": ({"model": "a.gguf", "engine_options": {"n_threads": "2"}}, "error", "'n_threads' in 'engine_options' of model.json must be an integer of 1 or more, not \"2\""),
    "option_flag": ({"model": "a.gguf", "engine_options": {"warmup": "no"}}, "error", "'warmup' in 'engine_options' of model.json must be true or false, not \"no\""),
    "runner": ({"model": "a.gguf", "runner": "poolin"}, "error", "'runner' in model.json is \"poolin\"; it must be one of auto, generate, pooling, draft (did you mean 'pooling'?)"),
    "seed": ({"model": "a.gguf", "seed": "x"}, "error", "'seed' in model.json must be an integer, not \"x\""),
    "pooling": ({"model": "a.gguf", "pooler_config": {"pooling_type": "max"}}, "error", "'pooling_type' in model.json is \"max\"; it must be one of mean, cls,"),
    "pooler": ({"model": "a.gguf", "pooler_config": "mean"}, "error", "'pooler_config' in model.json must be an object"),
    "flags": ({"model": "a.gguf", "enable_lora": "yes", "disable_log_stats": "maybe"}, "error", "'enable_lora' in model.json must be true or false, not \"yes\"; 'disable_log_stats' in model.json must be true or false, not \"maybe\""),
    "vllm_flag": ({"model": "some/model", "enforce_eager": "no"}, "error", "'enforce_eager' in model.json must be true or false"),
    "vllm_word": ({"model": "some/model", "runner": "poolin"}, "warning", "draft (did you mean 'pooling'?), in releases of vLLM up to 0.32"),
    "onnx_threads": ({"model": "a.onnx", "engine_options": {"n_threads": 0}}, "error", "'n_threads' in 'engine_options' of model.json must be an integer of 1"),
}  # fmt: skip
"""By name of a model: `model.json`, the finding's severity, and a part of its text."""


def write(folder: Path, name: str, document: object) -> None:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text('backend: "vllm_like" instance_group { kind: KIND_MODEL }')
    (version / "model.json").write_text(document if isinstance(document, str) else json.dumps(document))
    (version / "multi_lora.json").write_text('{"other": "none.gguf"}')
    for file, content in {
        "a.gguf": GGUF, "cut.gguf": GGUF[:60], "short.gguf": GGUF[:-4], "a.onnx": b"x", "large.gguf": gguf(8192, 60000)
    }.items():  # fmt: skip
        (version / file).write_bytes(content)


@pytest.mark.slow
def test_every_planted_defect_of_model_json_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, (document, _, _) in PLANTED.items():
        write(tmp_path / "models", name, document)
    write(tmp_path / "models", "fine", {"model": "a.gguf", "max_model_len": 512, "max_num_seqs": 2})
    flags = [f"--backend-directory={BACKENDS}", f"--env-store={tmp_path / 'store'}", *PORTS]
    assert main(["doctor", str(tmp_path / "models"), *flags, "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    # The engines' packages are not beside naiad, which every model here is told.
    found = [each for each in findings if "needs the package" not in each["message"] and each["code"] == "model-files"]
    wrong = {
        name: [each["message"] for each in found if each["model"] == name]
        for name, (_, severity, text) in PLANTED.items()
        if not [
            each for each in found if (each["model"], each["severity"]) == (name, severity) and text in each["message"]
        ]
    }
    assert wrong == {}
    assert not [each for each in found if each["model"] == "fine"]
    assert all(each["advice"] and each["where"].endswith("model.json") for each in found)
    assert [each for each in findings if each["model"] == "fine" and "needs the package xllamacpp" in each["message"]]


@pytest.mark.slow
def test_the_alias_of_the_backend_has_the_same_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "models", "m", {"model": "none.gguf"})
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "vllm" instance_group { kind: KIND_MODEL }')
    flags = [f"--backend-directory={BACKENDS}", f"--env-store={tmp_path / 'store'}", *PORTS]
    assert main(["doctor", str(tmp_path / "models"), *flags, "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each for each in findings if "there is no '" in each["message"]]
    # Its code finds that of `vllm_like` by a folder that it appends to sys.path.
    assert [each for each in findings if each["code"] == "missing-import"] == []
