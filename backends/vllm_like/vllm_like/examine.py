"""Examines `model.json` for `naiad doctor`, without loading the model: keys, sizes, files, the engine's package."""

from __future__ import annotations

import difflib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from vllm_like import gguf_header, keys, settings, values, weights
from vllm_like.engines import llama_defaults
from vllm_like.settings import FILE, Settings

_PACKAGES = {"xllamacpp": "xllamacpp", "vllm": "vllm", "onnx": "onnxruntime"}
_ERROR, _WARNING = "error", "warning"


def examine(directory: str, config: Dict[str, Any]) -> List[Dict[str, str]]:
    """The problems of the model in a version's directory: objects with `severity`, `message`, `advice` and `where`.

    *config* has the parameters in `config.pbtxt` by name.
    """
    problems: List[Dict[str, str]] = []
    where = str(Path(directory, FILE))

    def add(severity: str, message: str, advice: str) -> None:
        problems.append({"severity": severity, "message": message, "advice": advice, "where": where})

    try:
        given = settings.read(directory, {}, config.get("GPU_DEVICE_IDS", ""))
    except (ValueError, OSError) as error:
        add(_ERROR, str(error), f"correct {FILE}; docs/reference/vllm_like.md lists its keys")
        return problems
    package = _PACKAGES[given.engine]
    if importlib.util.find_spec(package) is None:
        add(
            _ERROR,
            f"the engine {given.engine} needs the package {package}, which is not in '{sys.prefix}'",
            f"add {package} to the model's environment, or choose another 'engine'",
        )
    checks = {"xllamacpp": _check_llama, "vllm": _check_vllm, "onnx": _check_onnx}
    checks[given.engine](given, add)
    return problems


def _checked(add: Any, read: Any, *args: Any, **named: Any) -> Any:
    """The result of *read*; None if it raises an error, which is added."""
    try:
        return read(*args, **named)
    except (ValueError, OSError) as error:
        add(_ERROR, str(error), f"correct it in {FILE}")
        return None


def _check_llama(given: Settings, add: Any) -> None:
    _checked(add, keys.reject_unknown, given.options, llama_defaults.OPTIONS, f"'engine_options' in {FILE}")
    for key in llama_defaults.OPTIONS:
        _checked(add, llama_defaults.option, given.options, key)
    _checked(add, values.pooling, given.arguments, given.engine)
    length = _checked(add, given.number, "max_model_len", llama_defaults.MAX_MODEL_LEN)
    seqs = _checked(add, given.number, "max_num_seqs", llama_defaults.MAX_NUM_SEQS)
    _checked(add, given.number, "max_num_batched_tokens", llama_defaults.BATCHED_TOKENS, llama_defaults.LEAST_BATCH)
    _checked(add, given.number, "max_logprobs", 20, 0)
    if length is not None and seqs is not None:
        _checked(add, llama_defaults.check_sizes, length, seqs)
    path = _checked(add, given.find, "model")
    header = path and _checked(add, gguf_header.read, Path(path))
    if not header or length is None or seqs is None:
        return
    _check_length(length, header.context_length, add)
    needed = llama_defaults.cache_bytes(length, seqs, header.cache_numbers)
    memory = llama_defaults.memory_bytes()
    if needed + header.size > memory:
        add(
            _WARNING,
            f"the model needs {_gigabytes(needed + header.size)}: {_gigabytes(needed)} for a cache of {length} x {seqs}"
            f" tokens (max_model_len, max_num_seqs), and the machine has {_gigabytes(memory)}",
            "lower 'max_model_len' or 'max_num_seqs'",
        )


def _check_length(length: int, trained: Optional[int], add: Any) -> None:
    if trained and length > trained:
        add(
            _WARNING,
            f"'max_model_len' is {length}, and the model was trained with {trained} tokens: longer texts become "
            "worse, and the memory for them is allocated at start",
            f"set it to {trained} or less",
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _check_vllm(given: Settings, add: Any) -> None:
    known = keys.VLLM | keys.VLLM_FORMER
    for key in given.arguments:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), 1, 0.6)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            add(_WARNING, f"'{key}' in {FILE} is in no release of vLLM up to 0.32{hint}", "correct or remove the key")
    for key, words in values.WORDS.items():
        try:
            values.choice(given.arguments, key, words)
        except ValueError as error:
            add(_WARNING, f"{error}, in releases of vLLM up to 0.32", f"correct it, or check '{key}' in your release")
    _checked(add, keys.reject_unknown, given.options, (), f"'engine_options' in {FILE}")
    length = _checked(add, given.number, "max_model_len", 0)
    _checked(add, given.number, "max_num_seqs", 0)
    model = given.arguments.get("model")
    if not isinstance(model, str) or not model:
        add(_ERROR, f"{FILE} has no 'model'", "name a folder with the model, or a model in a hub")
        return
    path = Path(_checked(add, weights.file_or_name, model, given.directory, "model") or model)
    if model.startswith((".", "/", "~", weights.ENVIRONMENT)) and not path.exists():
        add(_ERROR, f"'model' in {FILE} is '{model}', but there is no '{path}'", "correct the path")
    if (path / "config.json").is_file():
        document = _checked(add, json.loads, (path / "config.json").read_text(encoding="utf-8"))
        trained = document.get("max_position_embeddings") if isinstance(document, dict) else None
        _check_length(length or 0, trained if isinstance(trained, int) else None, add)
    elif path.is_dir():
        add(_ERROR, f"'model' in {FILE} is '{model}', a folder without config.json", "name the folder of the model")


def _check_onnx(given: Settings, add: Any) -> None:
    _checked(add, keys.reject_unknown, given.options, ("n_threads",), f"'engine_options' in {FILE}")
    _checked(add, values.integer, given.options, "n_threads", values.OPTIONS, least=1)
    _checked(add, values.pooling, given.arguments, given.engine)
    _checked(add, given.number, "max_model_len", 512)
    _checked(add, given.find, "model")
    _checked(add, given.find, "tokenizer", "tokenizer.json")
