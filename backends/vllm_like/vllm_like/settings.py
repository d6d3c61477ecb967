"""`model.json` and `multi_lora.json`: read once and validated, as the settings that an engine is started with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence

from vllm_like import engine_paths, keys, values, weights
from vllm_like.engines import NAMES

FILE = values.FILE
LORA_FILE = "multi_lora.json"
_ENGINE_BY_ENDING = {".gguf": "xllamacpp", ".onnx": "onnx"}


@dataclass(frozen=True)
class Settings:
    """The settings of one model instance."""

    engine: str
    directory: str  # the version's directory
    arguments: Dict[str, Any]  # the keys of `model.json` that vLLM defines
    options: Dict[str, Any] = field(default_factory=dict)  # its `engine_options`, which are specific to the engine
    chat_template: str = ""  # text of its `chat_template`; "" for the model's own
    tool_call_parser: str = ""  # name of the parser that extracts tool calls from the text (vLLM); "" for none
    loras: Dict[str, str] = field(default_factory=dict)  # paths of the adapters in `multi_lora.json` by name
    # Arguments of `initialize`, such as `model_instance_kind`.
    instance: Mapping[str, str] = field(default_factory=dict)
    devices: str = ""  # the parameter `GPU_DEVICE_IDS` of `config.pbtxt`
    paths: Sequence[str] = ()  # its `engine_paths`: those of the engine's own server that the model serves

    @property
    def reasoning_parser(self) -> str:
        """Name of the parser that extracts reasoning from the text (vLLM); "" for none.

        vLLM has the key itself, for structured outputs after reasoning, so it is among the arguments.
        """
        return _parser(self.arguments.get("reasoning_parser") or "", "reasoning_parser", "qwen3")

    def flag(self, key: str) -> bool:
        """The value of *key*; `ValueError` unless it is true or false."""
        return values.flag(self.arguments, key)

    def find(self, key: str, default: Optional[str] = None) -> str:
        """The path of the file that *key* names; `ValueError` if it is missing."""
        name = self.arguments.get(key, default)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{FILE} in '{self.directory}' has no '{key}', which the engine {self.engine} needs")
        return weights.find(name, self.directory, key)

    def number(self, key: str, default: int, least: int = 1) -> int:
        """The value of *key*; `ValueError` unless it is an integer of *least* or more."""
        value = values.integer(self.arguments, key, least=least)
        return default if value is None else value

    def log_ignored(self, used: Iterable[str], log: Callable[[str], None]) -> None:
        ignored = sorted(set(self.arguments) - set(used))
        if ignored:
            log(f"the engine {self.engine} ignores these keys of {FILE}: {', '.join(ignored)}")


def read(directory: str, instance: Mapping[str, str], devices: str = "") -> Settings:
    """The settings in a version's directory; `ValueError` if a file is missing or invalid."""
    document = _document(directory)
    engine = _engine_name(document)
    if engine != "vllm":  # the engine vllm checks against the installed release
        keys.reject_unknown(document, keys.OURS | keys.VLLM | keys.VLLM_FORMER, f"{FILE} in '{directory}'")
    options = document.get("engine_options", {})
    if not isinstance(options, dict):
        raise ValueError(f"'engine_options' in {FILE} must be an object")
    arguments = keys.without(document, keys.OURS)
    values.check(arguments, engine)
    return Settings(
        engine=engine,
        directory=directory,
        arguments=arguments,
        options=options,
        chat_template=_template(document.get("chat_template", ""), directory),
        tool_call_parser=_tool_parser(document.get("tool_call_parser", ""), engine),
        loras=_loras(directory, arguments, engine),
        instance=instance,
        devices=devices,
        paths=engine_paths.read_setting(document.get("engine_paths", []), engine),
    )


def has_paths(directory: str) -> bool:
    """Whether the model in a version's directory serves paths of its engine's own server; `read` finds errors."""
    try:
        return bool(_document(directory).get("engine_paths"))
    except ValueError:
        return False


def _document(directory: str) -> Dict[str, Any]:
    path = Path(directory, FILE)
    if not path.is_file():
        raise ValueError(f"'{FILE}' containing vllm engine args must be provided in '{directory}'")
    document = _read_json(path)
    if not isinstance(document, dict):
        raise ValueError(f"'{path}' must hold one JSON object")
    return document


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"'{path}' is not valid JSON: {error}") from None


def _engine_name(document: Mapping[str, Any]) -> str:
    engine = document.get("engine")
    if engine is None:
        ending = Path(str(document.get("model", ""))).suffix.lower()
        return _ENGINE_BY_ENDING.get(ending, "vllm")
    if engine not in NAMES:
        raise ValueError(f"'engine' in {FILE} is {json.dumps(engine)}; it must be one of {', '.join(NAMES)}")
    return str(engine)


def _template(given: Any, directory: str) -> str:
    """The chat template: *given*, or the content of the file that it names."""
    if not isinstance(given, str):
        raise ValueError(f"'chat_template' in {FILE} must be a template or the name of a template file")
    if not given or "{" in given or "\n" in given:
        return given
    return Path(weights.find(given, directory, "chat_template")).read_text(encoding="utf-8")


def _parser(given: Any, key: str, example: str) -> str:
    if not isinstance(given, str):
        raise ValueError(f"'{key}' in {FILE} must be the name of a parser of vLLM, such as \"{example}\"")
    return given


def _tool_parser(given: Any, engine: str) -> str:
    given = _parser(given, "tool_call_parser", "hermes")
    if given and engine != "vllm":
        raise ValueError(
            f"'tool_call_parser' in {FILE} is for the engine vllm; remove it: llama.cpp extracts the tool calls of the "
            "templates that it knows"
        )
    return str(given)


def _loras(directory: str, arguments: Mapping[str, Any], engine: str) -> Dict[str, str]:
    path = Path(directory, LORA_FILE)
    if not values.flag(arguments, "enable_lora") or not path.is_file():
        return {}
    given = _read_json(path)
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ValueError(f"'{path}' must hold one JSON object that maps names of adapters to paths")
    if engine == "vllm":
        return {name: weights.file_or_name(value, directory, name, LORA_FILE) for name, value in given.items()}
    return {name: weights.find(value, directory, name, LORA_FILE) for name, value in given.items()}
