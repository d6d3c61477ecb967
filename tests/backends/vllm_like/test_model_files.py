"""`model.json`, sampling parameters, schemas and conversations, as pure functions."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path

import pytest

from .conftest import BACKENDS


def read(folder: Path, **document):
    from vllm_like import settings

    (folder / "model.json").write_text(json.dumps(document))
    return settings.read(str(folder), {})


def vllm_settings(folder: Path, kind: str, devices: str, **document):
    """Settings of an instance of a kind, number 3, with the parameter `GPU_DEVICE_IDS`."""
    from vllm_like import settings

    (folder / "model.json").write_text(json.dumps({"model": "some/model", **document}))
    instance = {"model_instance_kind": kind, "model_instance_device_id": "3"}
    return settings.read(str(folder), instance, devices)


@pytest.mark.parametrize(
    ("document", "engine"),
    [
        ({"model": "a.gguf"}, "xllamacpp"),
        ({"model": "pkg:a/b.GGUF"}, "xllamacpp"),
        ({"model": "a.onnx"}, "onnx"),
        ({"model": "facebook/opt-125m"}, "vllm"),
        ({"model": "a.gguf", "engine": "vllm"}, "vllm"),
    ],
)
def test_engine_is_told_from_the_models_file(tmp_path: Path, document: dict, engine: str):
    assert read(tmp_path, **document).engine == engine


def test_unknown_keys_are_all_named_with_the_nearest(tmp_path: Path):
    with pytest.raises(ValueError, match=r"unknown keys in model\.json") as caught:
        read(tmp_path, model="a.gguf", max_model_length=3, zzz=1)
    assert "'max_model_length' (did you mean 'max_model_len'?), 'zzz'" in str(caught.value)


def test_keys_of_every_release_of_vllm_are_known(tmp_path: Path):
    given = {
        "disable_log_requests": True,
        "enforce_eager": True,
        "swap_space": 4,
        "max_num_scheduled_tokens": 64,
        "ngram_prompt_lookup_max": 4,
        "calculate_kv_scales": True,
        "image_token_id": 1,
    }
    assert read(tmp_path, model="a.gguf", **given).arguments


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"model": "none.gguf"}, "there is no '"),
        ({"model": "model.json", "engine": "xllamacpp"}, "is not a GGUF file"),
        ({"model": "pkg:no_such_package/a.gguf"}, "there is no package 'no_such_package' in '"),
        ({"model": "a.gguf", "engine_options": {"threads": 3}}, "'threads' (did you mean 'n_threads'?)"),
        ({"model": "a.gguf", "engine": "llama"}, 'is "llama"; it must be one of xllamacpp, vllm, onnx'),
    ],
)
def test_a_model_is_refused_before_llama_cpp_is_needed(tmp_path: Path, document: dict, told: str):
    from vllm_like.engines import xllamacpp_engine

    with pytest.raises(ValueError, match=re.escape(told)):
        xllamacpp_engine.start(read(tmp_path, **document), print, print)


def test_a_number_of_requests_is_at_least_one(tmp_path: Path):
    with pytest.raises(ValueError, match=r"^'max_num_seqs' in model\.json must be an integer of 1 or more, not 0$"):
        read(tmp_path, model="a.gguf", max_num_seqs=0).number("max_num_seqs", 4)


def test_a_version_without_model_json_says_what_must_be_provided(tmp_path: Path):
    from vllm_like import settings

    with pytest.raises(ValueError, match=r"^'model\.json' containing vllm engine args must be provided in '"):
        settings.read(str(tmp_path), {})


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_model_json_must_hold_an_object(tmp_path: Path, text: str):
    from vllm_like import settings

    (tmp_path / "model.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.json' (is not valid JSON|must hold one JSON object)"):
        settings.read(str(tmp_path), {})


def test_chat_templates_come_as_text_or_from_a_file(tmp_path: Path):
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    assert read(tmp_path, model="a.gguf", chat_template="{{ bos_token }}").chat_template == "{{ bos_token }}"
    assert read(tmp_path, model="a.gguf", chat_template="chat.jinja").chat_template == "{{ messages }}"


def test_weights_are_found_in_packages_without_importing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from vllm_like import weights

    package = tmp_path / "site" / "some_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('its dependencies are not there')")
    (package / "w.gguf").touch()
    monkeypatch.syspath_prepend(package.parent)
    assert weights.find("pkg:some_weights/w.gguf", "/nowhere", "model") == str(package / "w.gguf")
    with pytest.raises(ValueError, match="there is no package 'no_weights' in"):
        weights.find("pkg:no_weights/w.gguf", "/nowhere", "model")
    with pytest.raises(ValueError, match="write 'pkg:<package>/<file>'"):
        weights.find("pkg:some_weights", "/nowhere", "model")


def test_weights_are_found_in_the_version_and_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from vllm_like import weights

    (tmp_path / "w.gguf").touch()
    assert weights.find("w.gguf", str(tmp_path), "model") == str(tmp_path / "w.gguf")
    assert weights.find(str(tmp_path / "w.gguf"), "/nowhere", "model") == str(tmp_path / "w.gguf")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert weights.find("env:w.gguf", "/nowhere", "model") == str(tmp_path / "w.gguf")
    with pytest.raises(ValueError, match="relative paths start in the version's directory"):
        weights.find("x.gguf", str(tmp_path), "model")


@pytest.mark.parametrize(
    ("given", "is_set"), [("true", True), ("True", True), ("false", False), (True, True), (None, False)]
)
def test_flags_may_be_written_as_text(tmp_path: Path, given: object, is_set: bool):
    (tmp_path / "multi_lora.json").write_text('{"poems": "."}')
    made = read(tmp_path, model="a.gguf", enable_lora=given, disable_log_stats=given)
    assert list(made.loras) == ["poems"][: int(is_set)]
    assert made.flag("disable_log_stats") is is_set


@pytest.mark.parametrize("value", ["yes", "", 1, 0, [], "on"])
@pytest.mark.parametrize("key", ["enable_lora", "disable_log_stats", "enable_prefix_caching"])
def test_flags_that_are_neither_true_nor_false_are_refused(tmp_path: Path, key: str, value: object):
    with pytest.raises(
        ValueError, match=rf"^'{key}' in model\.json must be true or false, not {re.escape(json.dumps(value))}$"
    ):
        read(tmp_path, model="a.gguf", **{key: value})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"runner": "poolin"},
            "'runner' in model.json is \"poolin\"; it must be one of auto, generate, pooling, draft (did ",
        ),
        ({"convert": 1}, "'convert' in model.json is 1; it must be one of auto, none, embed,"),
        ({"task": "embeds"}, "'task' in model.json is \"embeds\"; it must be one of "),
        ({"seed": "x"}, "'seed' in model.json must be an integer, not \"x\""),
        ({"seed": True, "enable_lora": "yes"}, "not \"yes\"; 'seed' in model.json must be an integer, not true"),
    ],
)
def test_values_that_no_engine_could_use_are_refused(tmp_path: Path, given: dict, told: str):
    with pytest.raises(ValueError, match=re.escape(told)):
        read(tmp_path, model="a.gguf", **given)


def test_words_of_vllm_are_left_to_the_installed_release(tmp_path: Path):
    assert read(tmp_path, model="some/model", runner="next", task="new").arguments["runner"] == "next"


@pytest.mark.parametrize(
    ("key", "value", "read_as"),
    [
        ("n_threads", 3, 3),
        ("n_threads", None, None),
        ("poll", 50, 50),
        ("flash_attn", "ENABLED", "enabled"),
        ("cache_type_k", "q8_0", "q8_0"),
        ("kv_unified", "true", True),
        ("warmup", None, True),
        ("cache_ram_mib", -1, -1),
        ("n_gpu_layers", -1, -1),
        ("rope_freq_base", 10000, 10000.0),
        ("rope_scaling", "YARN", "yarn"),
        ("split_mode", "row", "row"),
        ("tensor_split", [3, 1.5], [3.0, 1.5]),
        ("draft_model", "small.gguf", "small.gguf"),
        ("mmproj", "eyes.gguf", "eyes.gguf"),
        ("draft_max", 8, 8),
        ("main_gpu", None, None),
    ],
)
def test_options_of_llama_cpp_are_read(key: str, value: object, read_as: object):
    from vllm_like.engines import llama_defaults

    assert llama_defaults.option({key: value}, key) == read_as


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("n_threads", "2", 'must be an integer of 1 or more, not "2"'),
        ("n_threads_batch", 0, "must be an integer of 1 or more, not 0"),
        ("poll", 101, "must be an integer from 0 to 100, not 101"),
        ("flash_attn", True, "is true; it must be one of auto, enabled, disabled"),
        ("cache_type_v", "q6_k", 'is "q6_k"; it must be one of f32, f16, bf16, q8_0'),
        ("warmup", 1, "must be true or false, not 1"),
        ("verbosity", 1.5, "must be an integer of -1 or more, not 1.5"),
        ("rope_freq_scale", 0, "must be a number above 0, not 0"),
        ("tensor_split", [], "must be a list of numbers of 0 or more, not []"),
        ("tensor_split", [1, True], "must be a list of numbers of 0 or more, not [1, true]"),
        ("split_mode", "rows", 'is "rows"; it must be one of none, layer, row, tensor'),
        ("draft_model", 3, "must be the name of a GGUF file, not 3"),
        ("mmproj", 3, "must be the name of a GGUF file, not 3"),
    ],
)
def test_invalid_options_of_llama_cpp_are_refused(key: str, value: object, told: str):
    from vllm_like.engines import llama_defaults

    with pytest.raises(ValueError, match=re.escape(f"'{key}' in 'engine_options' of model.json {told}")):
        llama_defaults.option({key: value}, key)


def test_every_option_of_llama_cpp_has_a_rule():
    from vllm_like.engines import llama_defaults

    for key, (default, _) in llama_defaults.OPTIONS.items():
        assert llama_defaults.option({}, key) == default


def test_adapters_of_vllm_may_be_names_of_a_hub_those_of_others_are_files(tmp_path: Path):
    (tmp_path / "multi_lora.json").write_text('{"poems": "someone/poems", "here": "adapters"}')
    (tmp_path / "adapters").mkdir()
    made = read(tmp_path, model="some/model", enable_lora=True)
    assert made.loras == {"poems": "someone/poems", "here": str(tmp_path / "adapters")}
    with pytest.raises(ValueError, match=r"'poems' in multi_lora\.json is 'someone/poems', but there is no '"):
        read(tmp_path, model="a.gguf", enable_lora=True)


@pytest.mark.parametrize(("text", "needed", "visible"), [("0", 1, "0"), (" 2, 0 ", 2, "2,0"), ("0,1", 1, "0,1")])
def test_models_over_several_gpus_may_be_given_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, needed: int, visible: str
):
    from vllm_like.engines import vllm_engine

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    given = vllm_settings(tmp_path, "MODEL", text, tensor_parallel_size=needed)
    vllm_engine.choose_devices(given)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.parametrize(
    ("sizes", "needed"),
    [
        ({"data_parallel_size": 2, "tensor_parallel_size": 2}, 4),
        ({"data_parallel_size": 8, "data_parallel_size_local": 2}, 2),
        ({"data_parallel_size": 8, "data_parallel_rank": 3, "tensor_parallel_size": 2}, 2),
    ],
)
def test_replicas_of_a_model_have_gpus_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict, needed: int
):
    from vllm_like.engines import vllm_engine

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    devices = ",".join(map(str, range(needed)))
    vllm_engine.choose_devices(vllm_settings(tmp_path, "MODEL", devices, **sizes))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == devices
    with pytest.raises(ValueError, match=f"which has {needed + 1} GPUs; .* needs {needed}"):
        vllm_engine.choose_devices(vllm_settings(tmp_path, "MODEL", f"{devices},9", **sizes))
    with pytest.raises(ValueError, match=r"KIND_GPU is for models on one GPU; .* use KIND_MODEL"):
        vllm_engine.choose_devices(vllm_settings(tmp_path, "GPU", "", **sizes))


@pytest.mark.parametrize(
    ("kind", "devices", "visible"), [("MODEL", "", "before"), ("CPU", "1", "before"), ("GPU", "1", "3")]
)
def test_devices_are_chosen_for_models_of_kind_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, devices: str, visible: str
):
    from vllm_like.engines import vllm_engine

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    vllm_engine.choose_devices(vllm_settings(tmp_path, kind, devices))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.parametrize(
    ("before", "visible"), [("4,5,6,7", "7"), ("0,1,2, MIG-d", "MIG-d"), ("0", "3"), ("", "3"), (None, "3")]
)
def test_the_device_of_an_instance_is_a_position_among_the_visible_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, visible: str
):
    from vllm_like.engines import vllm_engine

    # Set first, so that the variable is as it was after the test: of one that is missing, `delenv` records nothing.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before or "")
    if before is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    vllm_engine.choose_devices(vllm_settings(tmp_path, "GPU", ""))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0,a", "it must list GPU numbers, such as '0,2'"),
        ("-1", "it must list GPU numbers, such as '0,2'"),
        ("1,0,1", "which lists 1 more than once"),
        ("0,1,2", "which has 3 GPUs; tensor_parallel_size times pipeline_parallel_size in model.json needs 4"),
    ],
)
def test_gpus_that_cannot_be_given_are_refused(tmp_path: Path, text: str, told: str):
    from vllm_like.engines import vllm_engine

    given = vllm_settings(tmp_path, "MODEL", text, tensor_parallel_size=2, pipeline_parallel_size=2)
    with pytest.raises(ValueError, match="GPU_DEVICE_IDS is") as caught:
        vllm_engine.choose_devices(given)
    assert str(caught.value) == f"GPU_DEVICE_IDS is '{text}', {told}".replace("', it", "'; it")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"temperature": "0.5", "n": "2", "ignore_eos": "TRUE"}, {"temperature": 0.5, "n": 2, "ignore_eos": True}),
        ({"stop": "a", "seed": None, "max_tokens": None}, {"stop": ["a"], "max_tokens": None}),
        ({"stop": '["a", "[b"]'}, {"stop": ["a", "[b"]}),
        ({"stop": "[1"}, {"stop": ["[1"]}),
        ({"logit_bias": {"5": "-1"}}, {"logit_bias": {5: -1.0}}),
        ({"guided_decoding": {"choice": ["a"]}}, {"structured_outputs": {"choice": ["a"]}}),
        ({"id": "7", "priority": 1, "timeout": 3, "max_tokens": 4}, {"priority": 1, "max_tokens": 4}),
    ],
)
def test_sampling_parameters_are_cast(given: dict, made: dict):
    from vllm_like import sampling

    assert sampling.parse(json.dumps(given), "here") == made


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"n": 1.5}, "sampling parameter 'n' must be an integer, not 1.5"),
        ({"n": 0}, "sampling parameter 'n' must be between 1 and 128, got 0"),
        ({"n": "1_0"}, "sampling parameter 'n' must be an integer, not \"1_0\""),
        ({"n": " 2"}, "sampling parameter 'n' must be an integer, not \" 2\""),
        ({"temperature": "1_0.5"}, "sampling parameter 'temperature' must be a number, not \"1_0.5\""),
        ({"temperature": "nan"}, "sampling parameter 'temperature' must be a number, not \"nan\""),
        ({"logit_bias": {"1_0": 1}}, "sampling parameter 'logit_bias' must be an object of numbers by token"),
        ({"max_tokens": 0}, "sampling parameter 'max_tokens' must be at least 1, got 0"),
        ({"stop": [1]}, "sampling parameter 'stop' must be a string or a list of strings, not [1]"),
        ({"ignore_eos": "maybe"}, "sampling parameter 'ignore_eos' must be true or false"),
        ({"logit_bias": [1]}, "sampling parameter 'logit_bias' must be an object of numbers by token"),
        ({"temprature": 1}, "unknown sampling parameter in here: 'temprature' (did you mean 'temperature'?)"),
        ([], "here must be a JSON object"),
    ],
)
def test_wrong_sampling_parameters_are_named(given: object, told: str):
    from vllm_like import sampling
    from vllm_like.engines.base import CallerError

    with pytest.raises(CallerError) as caught:
        sampling.parse(json.dumps(given), "here")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": ["string", "null"], "minLength": 1, "title": "x"},
        {"$defs": {"a/b": {"const": 1}}, "anyOf": [{"$ref": "#/$defs/a~1b"}, {"enum": [1, 2]}]},
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": False, "maxItems": 3},
        {"type": "string", "format": "uuid"},
    ],
)
def test_schemas_that_are_followed_pass(schema: object):
    from vllm_like.engines import llama_schema

    llama_schema.check(schema)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (3, "# is not an object"),
        ({"not": {}}, "'not' at #"),
        ({"properties": {"a": {"if": {}}}}, "'if' at #/properties/a"),
        ({"type": "string", "format": "colour"}, "'format' at # is 'colour'"),
        ({"type": "string", "pattern": "(?=a)"}, "'pattern' at #"),
        ({"anyOf": {}}, "'anyOf' at # has the wrong type"),
        ({"$ref": "https://example.org/schema"}, "'$ref' at # does not resolve"),
    ],
)
def test_schemas_that_would_be_dropped_are_refused(schema: object, told: str):
    from vllm_like.engines import llama_schema
    from vllm_like.engines.base import CallerError

    with pytest.raises(CallerError) as caught:
        llama_schema.check(schema)
    assert told in str(caught.value)


def test_messages_grow_by_their_parts():
    from vllm_like import chat

    whole: dict = {"role": "assistant", "content": None}
    parts = (
        {"content": "a"},
        {"content": "b", "reasoning_content": "why"},
        {"tool_calls": [{"index": 1, "id": "x", "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]},
    )
    for part in parts:
        chat.merge_message(whole, part)
    assert whole["content"] == "ab"
    assert whole["reasoning_content"] == "why"
    calls = chat.finish_message(whole)["tool_calls"]
    assert calls == [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_the_server_routes_the_paths_that_a_model_may_serve_and_no_others():
    from vllm_like import engine_paths

    from naiad_llm.openai.engine_paths import FORM_PATHS, PATHS

    assert set().union(*engine_paths.PATHS.values()) == {*PATHS, *FORM_PATHS}


def test_token_buckets_rise_by_one_two_five():
    from vllm_like.metrics import token_buckets

    assert token_buckets(120) == [1, 2, 5, 10, 20, 50, 100]


@pytest.mark.parametrize("path", sorted((BACKENDS / "vllm_like").rglob("*.py")), ids=lambda path: path.stem)
def test_the_backend_is_written_in_the_oldest_python_of_guests(path: Path):
    ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


@pytest.mark.parametrize(
    ("length", "seqs", "told"),
    [
        (4096, 257, "'max_num_seqs' in model.json is 257, and llama.cpp runs at most 256 requests at a time"),
        (
            1 << 30,
            4,
            "cannot allocate a cache of 1073741824 x 4 tokens ('max_model_len', 'max_num_seqs' in model.json)",
        ),
    ],
)
def test_sizes_beyond_the_limits_of_llama_cpp_are_refused(length: int, seqs: int, told: str):
    from vllm_like.engines import llama_defaults

    llama_defaults.check_sizes(4096, 256)
    with pytest.raises(ValueError, match=re.escape(told)):
        llama_defaults.check_sizes(length, seqs)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            [
                "0.00.097.515 E llama_model_load: error loading model: unknown model architecture: 'new'",
                "0.00.097.624 E llama_model_load_from_file_impl: failed to load model",
                "0.00.097.668 E common_fit_params: encountered an error while trying to fit params to free device memory: x",
                "0.00.106.373 E llama_model_load: error loading model: unknown model architecture: 'new'",
            ],
            "unknown model architecture: 'new'",
        ),
        (
            [
                "0.00.718.357 E common_chat_templates_init: error: Unexpected token: %} of type 9",
                "0.00.718.358 E common_chat_templates_init: failed to initialize chat template",
                "0.00.718.373 E srv          init: init: chat template parsing error: std::exception",
            ],
            "Unexpected token: %} of type 9",
        ),
        (["0.1 E llama_model_load: failed to load model"], "0.1 E llama_model_load: failed to load model"),
        (["all is well"], ""),
    ],
)
def test_the_reason_of_a_failed_load_is_the_first_line_that_names_it(lines: list[str], reason: str):
    from vllm_like.engines import llama_responses

    assert llama_responses.load_error(lines) == reason


@pytest.mark.parametrize(
    ("weights", "threads", "has_gpu", "tokens"),
    [
        (135_000_000, 1, False, 37),
        (135_000_000, 8, False, 296),
        (7_000_000_000, 1, False, 16),
        (7_000_000_000, 64, False, 45),
        (1_000_000, 1, False, 512),
        (0, 1, False, 512),
        (7_000_000_000, 1, True, 512),
    ],
)
def test_a_batch_of_prompts_is_what_a_cpu_reads_in_half_a_second(weights, threads, has_gpu, tokens):
    from vllm_like.engines import llama_defaults

    assert llama_defaults.batched_tokens(weights, threads, has_gpu=has_gpu) == tokens
