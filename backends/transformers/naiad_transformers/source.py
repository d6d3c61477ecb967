"""Where a model's weights are, and what its task is: read without the library, which takes seconds to import."""

from __future__ import annotations

import json
import os.path
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

import triton_python_backend_utils as pb_utils
from saved_models.settings import ModelSettings

_CONFIG = "config.json"
_FOLDER = "model"
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
_ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification"}
_ENDINGS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForConditionalGeneration": "text2text-generation",
    "ForImageClassification": "image-classification",
}
"""The task of an architecture, by the end of its name, where the configuration names none."""


@dataclass(frozen=True)
class Source:
    """The weights of a model.

    Attributes:
        place: Their directory, or their name on a hub if the operator allows downloads.
        task: What is asked of them.
        config: `config.json` beside them; empty if it is not here yet.
        allows_code: Whether code beside the weights may be run.
        allows_download: Whether the library may use the network.
    """

    place: str
    task: str
    config: Mapping[str, Any]
    allows_code: bool
    allows_download: bool


def find_source(settings: ModelSettings) -> Source:
    """The weights that the parameter `model` names, else those in the version's directory.

    Raises:
        ModelLoadError: If there are none, or if no task is known for them.
    """
    backend = pb_utils.get_backend_config()
    allows_download = backend.get(_DOWNLOAD_SETTING, "").lower() in {"true", "1"}
    allowed_code = backend.get(_CODE_SETTING, "").lower() in {"true", "1"}
    place = _place(settings, allows_download=allows_download)
    config = _config(place, settings)
    return Source(
        place=place,
        task=_task(settings, config, place),
        config=config,
        allows_code=settings.flag(_CODE_PARAMETER, default=allowed_code),
        allows_download=allows_download,
    )


def _place(settings: ModelSettings, *, allows_download: bool) -> str:
    directory = Path(settings.directory)
    named = settings.parameters.get(_MODEL, "")
    places = [directory / named] if named else [directory, directory / _FOLDER]
    candidates = [Path(os.path.normpath(place)) for place in places]
    for candidate in candidates:
        if (candidate / _CONFIG).is_file():
            return str(candidate)
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


def _config(place: str, settings: ModelSettings) -> Mapping[str, Any]:
    path = Path(place, _CONFIG)
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise settings.error(f"'{path}' cannot be read: {problem}; save the model again by save_pretrained") from None
    if not isinstance(found, dict):
        raise settings.error(f"'{path}' holds no object; save the model again by save_pretrained")
    return found


def _task(settings: ModelSettings, config: Mapping[str, Any], place: str) -> str:
    named = settings.parameters.get(_TASK, "")
    task = _ALIASES.get(named, named)
    if task in TASKS:
        return task
    tasks = ", ".join(TASKS)
    if named == "text-generation":
        raise settings.error("the task text-generation is that of the backend vllm_like; use it in backend")
    if named:
        raise settings.error(f"the parameter {_TASK} is '{named}'; there are {tasks}")
    architectures = [str(name) for name in config.get("architectures") or ()]
    for name in architectures:
        for ending, found in _ENDINGS.items():
            if name.endswith(ending):
                return found
    known = f"'{place}' has the architecture {', '.join(architectures) or 'of no name'}"
    raise settings.error(f"its task is not known: {known}; name it by the parameter {_TASK}: {tasks}")
