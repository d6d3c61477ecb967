"""Where a model's weights are, and what its task is: read without the library, which takes seconds to import."""

from __future__ import annotations

import json
import os.path
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

import triton_python_backend_utils as pb_utils
from saved_models.settings import ModelSettings

_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_FOLDER = "model"
MODULES, WEIGHTS = "modules.json", "0_Transformer"  # of sentence-transformers: modules, and weights in old models
_MODEL, _TASK = "model", "task"
_CODE_PARAMETER, _CODE_SETTING = "trust_remote_code", "trust-remote-code"
_DOWNLOAD_SETTING = "allow-download"

TASKS = (
    "text-classification",
    "token-classification",
    "fill-mask",
    "feature-extraction",
    "zero-shot-classification",
    "summarization",
    "translation",
    "text2text-generation",
    "image-classification",
)
OTHER_TASK = (
    f"name the task that it was trained for by the parameter task: {', '.join(TASKS)}; serve other models, such as "
    "those of audio, by a model.py"
)  # what to do about a model of another task
_ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification"}
_ENDINGS = {
    "ForSequenceClassification$": "text-classification",
    "ForTokenClassification$": "token-classification",
    "ForMaskedLM$": "fill-mask",
    "ForConditionalGeneration$": "text2text-generation",
    "ForImageClassification$": "image-classification",
    "ForCausalLM$|Heads?Model$": "text-generation",
    "Model$": "feature-extraction",
}  # the task of an architecture, by a pattern of its name, where the configuration names none


@dataclass(frozen=True)
class Source:
    """The weights of a model."""

    place: str  # their directory, or their name on a hub if the operator allows downloads
    folder: Path  # of the files in JSON beside them
    task: str
    config: Mapping[str, Any]  # `config.json` beside them
    allows_code: bool  # whether code beside the weights may be run
    allows_download: bool  # whether the library may use the network


def find_source(settings: ModelSettings) -> Source:
    """The weights that the parameter `model` names, else those in the version's directory."""
    allows_download = pb_utils.get_backend_config().get(_DOWNLOAD_SETTING, "").lower() in {"true", "1"}
    place = _place(settings, allows_download=allows_download)
    folder = Path(place) if Path(place).is_dir() else _download(place, settings)
    config = read_json(folder / _CONFIG, settings)
    if not isinstance(config, dict):
        raise settings.error(f"'{place}/{_CONFIG}' holds no object; save the model again by save_pretrained")
    return Source(
        place=place,
        folder=folder,
        task=_task(settings, config, folder),
        config=config,
        allows_code=settings.allows(_CODE_PARAMETER, _CODE_SETTING),
        allows_download=allows_download,
    )


def _place(settings: ModelSettings, *, allows_download: bool) -> str:
    directory = Path(settings.directory)
    named = settings.parameters.get(_MODEL, "")
    places = [directory / named] if named else [directory, directory / _FOLDER]
    candidates = [Path(os.path.normpath(place)) for place in places]
    for candidate in (*candidates, *(candidate / WEIGHTS for candidate in candidates)):
        if (candidate / _CONFIG).is_file():
            return str(candidate)
        if (candidate / _ADAPTER).is_file():
            raise settings.error(
                f"'{candidate}' has an adapter ({_ADAPTER}), and not the model that it changes; join them by "
                "merge_and_unload of peft, and save the result by save_pretrained"
            )
    if named and allows_download and not named.startswith((".", "/")):
        return named
    searched = " and ".join(f"'{candidate / _CONFIG}'" for candidate in candidates)
    hub = ""
    if named and not allows_download:
        hub = (
            f"; if '{named}' is a name on a hub, download it there, or allow it for the server by "
            f"--backend-config=transformers,{_DOWNLOAD_SETTING}=true"
        )
    raise settings.error(
        f"there is no {searched}; put what save_pretrained wrote there, or name its directory by the parameter {_MODEL}"
        f"{hub}"
    )


def _download(name: str, settings: ModelSettings) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json"]))
    except Exception as problem:  # noqa: BLE001 - the library raises anything
        raise settings.error(f"'{name}' cannot be downloaded: {' '.join(str(problem).split())}") from None


def read_json(path: Path, settings: ModelSettings) -> Any:
    """The value in a file; None without the file."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise settings.error(f"'{path}' cannot be read: {problem}; save the model again by save_pretrained") from None


def _task(settings: ModelSettings, config: Mapping[str, Any], folder: Path) -> str:
    named = settings.parameters.get(_TASK, "")
    task = _ALIASES.get(named, named) or known_task(config)
    # Folders of sentence-transformers often name the architecture that the weights were trained with.
    is_embedding = (folder / MODULES).is_file() or folder.name == WEIGHTS
    if is_embedding and not named and task != "text-classification":
        return "feature-extraction"
    if task in TASKS:
        return task
    if task == "text-generation":
        raise settings.error("the task text-generation is that of the backend vllm_like; use it in backend")
    if named:
        raise settings.error(f"the parameter {_TASK} is '{named}'; there are {', '.join(TASKS)}")
    raise settings.error(f"its task is not known: '{folder}' has {architecture(config)}; {OTHER_TASK}")


def known_task(config: Mapping[str, Any]) -> str:
    """The task of the architecture in `config.json`; empty where its name does not say it."""
    names = map(str, config.get("architectures") or ())
    return next((task for name in names for ending, task in _ENDINGS.items() if re.search(ending, name)), "")


def architecture(config: Mapping[str, Any]) -> str:
    """The name of the architecture in `config.json`."""
    return f"the architecture {', '.join(map(str, config.get('architectures') or ['without a name']))}"
