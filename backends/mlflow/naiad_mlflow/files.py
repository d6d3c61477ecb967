"""Finds and loads the model in a version's directory, and says what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Optional, Tuple

import triton_python_backend_utils as pb_utils
import yaml
from saved_models.settings import ModelSettings

_FILE = "MLmodel"
_FLAVOR = "python_function"
_AGENTS = ("chat_model", "chat_agent", "responses_agent")  # modules of MLflow whose models read the first row alone
_PARAMETER, _SETTING = "allow_code", "allow-code"


@dataclass(frozen=True)
class Metadata:
    """What `MLmodel` says."""

    directory: Path
    # As written: JSON texts by `inputs`, `outputs` and `params`; None without one.
    signature: Optional[Mapping[str, Any]]
    is_typed: bool  # whether the signature was made of type hints, which `predict` gets values of
    written_by: str  # version of MLflow; empty if the file does not say it
    is_agent: bool = False  # whether it answers one row at a time

    @property
    def path(self) -> Path:
        return self.directory / _FILE


def read_metadata(settings: ModelSettings) -> Metadata:
    """What a model says about itself. No code of the model runs, and MLflow is not imported: that takes seconds."""
    directory = _find(settings)
    path = directory / _FILE
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise settings.error(f"cannot read '{path}': {_one_line(problem)}; save the model again") from None
    if not isinstance(content, dict) or not isinstance(content.get("flavors"), dict):
        raise settings.error(f"'{path}' has no 'flavors', so it is no model of MLflow; save the model again")
    if _FLAVOR not in content["flavors"]:
        found = ", ".join(sorted(content["flavors"])) or "none"
        raise settings.error(
            f"'{path}' has no flavor {_FLAVOR} (it has {found}), by which any model can be called; save it with a "
            "flavor of MLflow that adds it"
        )
    signature = content.get("signature")
    return Metadata(
        directory,
        signature if isinstance(signature, dict) else None,
        is_typed=bool(content.get("is_signature_from_type_hint")),
        written_by=str(content.get("mlflow_version") or ""),
        is_agent=str((content["flavors"][_FLAVOR] or {}).get("loader_module")).endswith(_AGENTS),
    )


def _find(settings: ModelSettings) -> Path:
    for directory in (Path(settings.directory), Path(settings.directory, "model")):
        if (directory / _FILE).is_file():
            return directory
    raise settings.error(
        f"'{settings.directory}' has neither {_FILE} nor model/{_FILE}; copy the directory of the model there, with "
        "all files that MLflow wrote"
    )


def load(metadata: Metadata, settings: ModelSettings) -> Any:
    """The model, as `mlflow.pyfunc.load_model` gives it. This runs code of the model."""
    # As a model.py, unless the operator says otherwise.
    if not settings.allows(_PARAMETER, _SETTING, default=True):
        raise settings.error(
            f"loading '{metadata.directory}' runs code that is in it, and it is allowed none; if you trust it, allow "
            f'it by the parameter {_PARAMETER}: "true" in config.pbtxt, or start the server without '
            f"--backend-config=mlflow,{_SETTING}=false"
        )
    import mlflow.pyfunc

    if _release(metadata.written_by) > _release(mlflow.__version__):
        pb_utils.Logger.log_warn(
            f"'{metadata.path}' was written by MLflow {metadata.written_by}, which is newer than the "
            f"{mlflow.__version__} of its environment; if it does not work, correct its requirements"
        )
    try:
        return mlflow.pyfunc.load_model(str(metadata.directory))
    except Exception as problem:  # noqa: BLE001 - loaders of flavors and code of models raise anything
        raise settings.error(
            f"MLflow cannot load '{metadata.directory}': {type(problem).__name__}: {_one_line(problem)}; MLflow "
            f"{metadata.written_by or 'of an unknown version'} wrote it, and MLflow {mlflow.__version__} reads it"
        ) from None


def _release(version: str) -> Tuple[int, ...]:
    """Major and minor version; empty for a text that is none."""
    parts = version.split(".")[:2]
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())
