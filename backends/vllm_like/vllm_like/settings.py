"""`model.json`: read once, checked, and turned into what an engine is started with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Mapping, Optional

from vllm_like import keys, weights
from vllm_like.engines import NAMES

FILE = "model.json"
LORA_FILE = "multi_lora.json"
_ENGINE_BY_ENDING = {".gguf": "xllamacpp", ".onnx": "onnx"}


@dataclass(frozen=True)
class Settings:
    """What a model is made of.

    Attributes:
        engine: Which engine runs it.
        directory: The version's directory.
        arguments: `model.json` without what is ours.
        options: Its `engine_options`: what only this engine knows.
        chat_template: Its `chat_template`, as text.
        loras: Paths of adapters by name, of `multi_lora.json`.
        instance: The instance's arguments: `model_instance_kind` and so on.
        devices: The parameter `GPU_DEVICE_IDS` of `config.pbtxt`.
    """

    engine: str
    directory: str
    arguments: Dict[str, Any]
    options: Dict[str, Any] = field(default_factory=dict)
    chat_template: str = ""
    loras: Dict[str, str] = field(default_factory=dict)
    instance: Mapping[str, str] = field(default_factory=dict)
    devices: str = ""

    def flag(self, key: str) -> bool:
        """Whether *key* is set; models for Triton's vLLM backend write it as text, too: `"true"`."""
        return _flag(self.arguments, key)

    def find(self, key: str, default: Optional[str] = None) -> str:
        """The path that the value of *key* names.

        Raises:
            ValueError: If there is no such value or no such file.
        """
        name = self.arguments.get(key, default)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{FILE} in '{self.directory}' names no '{key}', which the engine {self.engine} needs")
        return weights.find(name, self.directory, key)

    def number(self, key: str, default: int, least: int = 1) -> int:
        """The whole number that is the value of *key*.

        Raises:
            ValueError: If it is none, or less than *least*.
        """
        value = self.arguments.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"'{key}' in {FILE} must be a whole number of {least} or more, not {json.dumps(value)}")
        return value

    def tell_ignored(self, used: Iterable[str], log: Callable[[str], None]) -> None:
        """Log which arguments mean nothing to the engine, or set what it cannot do otherwise."""
        ignored = sorted(set(self.arguments) - set(used))
        if ignored:
            log(f"the engine {self.engine} has no use for these keys of {FILE}: {', '.join(ignored)}")


def read(directory: str, instance: Mapping[str, str], devices: str = "") -> Settings:
    """The settings in a version's directory.

    Raises:
        ValueError: If they are missing, no JSON, or unknown.
    """
    document = _document(directory)
    engine = _engine(document)
    if engine != "vllm":  # vLLM itself knows best what its release knows: its engine asks it
        keys.refuse_unknown(document, keys.OURS | keys.VLLM | keys.VLLM_FORMER, f"{FILE} in '{directory}'")
    options = document.get("engine_options", {})
    if not isinstance(options, dict):
        raise ValueError(f"'engine_options' in {FILE} must be an object")
    arguments = keys.without(document, keys.OURS)
    return Settings(
        engine=engine,
        directory=directory,
        arguments=arguments,
        options=options,
        chat_template=_template(document.get("chat_template", ""), directory),
        loras=_loras(directory, arguments, engine),
        instance=instance,
        devices=devices,
    )


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
        raise ValueError(f"'{path}' is no JSON: {error}") from None


def _engine(document: Mapping[str, Any]) -> str:
    engine = document.get("engine")
    if engine is None:
        ending = Path(str(document.get("model", ""))).suffix.lower()
        return _ENGINE_BY_ENDING.get(ending, "vllm")
    if engine not in NAMES:
        raise ValueError(f"'engine' in {FILE} is {json.dumps(engine)}; there are {', '.join(NAMES)}")
    return str(engine)


def _template(given: Any, directory: str) -> str:
    """The chat template: itself, or the content of a file it names."""
    if not isinstance(given, str):
        raise ValueError(f"'chat_template' in {FILE} must be a template or the name of a file with one")
    if not given or "{" in given or "\n" in given:
        return given
    return Path(weights.find(given, directory, "chat_template")).read_text(encoding="utf-8")


def _loras(directory: str, arguments: Mapping[str, Any], engine: str) -> Dict[str, str]:
    path = Path(directory, LORA_FILE)
    if not _flag(arguments, "enable_lora") or not path.is_file():
        return {}
    given = _read_json(path)
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ValueError(f"'{path}' must hold one JSON object: paths of adapters by their names")
    if engine == "vllm":
        return {name: weights.file_or_name(value, directory, name, LORA_FILE) for name, value in given.items()}
    return {name: weights.find(value, directory, name, LORA_FILE) for name, value in given.items()}


def _flag(arguments: Mapping[str, Any], key: str) -> bool:
    value = arguments.get(key)
    return value.lower() == "true" if isinstance(value, str) else bool(value)
