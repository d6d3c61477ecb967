"""Finds a model's file, and reads it as what it holds."""

from __future__ import annotations

from pathlib import Path

from saved_models.settings import ModelSettings

from naiad_pytorch.contents import Content, content_of
from naiad_pytorch.model import Model
from naiad_pytorch.modules import ModuleModel
from naiad_pytorch.options import Options
from naiad_pytorch.packages import open_package
from naiad_pytorch.torchscript import ScriptModel

_SCRIPT, _PACKAGE, _CODE = "model.pt", "model.pt2", "model.py"


def open_model(settings: ModelSettings, options: Options) -> Model:
    """The model in a version's directory."""
    path = find_file(settings)
    if path.suffix == ".py":
        return ModuleModel(path, settings, options)
    if content_of(path) in {Content.COMPILED, Content.EXPORTED} or path.suffix == ".pt2":
        return open_package(path, settings, options)
    return ScriptModel(path, settings, options)


def find_file(settings: ModelSettings) -> Path:
    """The file, or the code of a module.

    The server writes the name of the reference's first kind into configurations that name none, so such a name says
    little: what is there counts. Weights beside code belong to the code.
    """
    named = settings.config.get("default_model_filename") or ""
    if named not in {"", _SCRIPT, _PACKAGE}:
        return settings.find_file(named)
    first = named or (_PACKAGE if settings.config.get("platform") == "torch_aoti" else _SCRIPT)
    directory = Path(settings.directory)
    code = directory / _CODE
    for name in dict.fromkeys((first, _SCRIPT, _PACKAGE)):
        path = directory / name
        if path.exists():
            return code if code.exists() and content_of(path) is Content.WEIGHTS else path
    return code if code.exists() else settings.find_file(first)
