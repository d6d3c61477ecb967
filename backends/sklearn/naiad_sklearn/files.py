"""Reads an estimator from its file, and runs no code in it that nobody allowed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import joblib
import sklearn
import skops.io
import triton_python_backend_utils as pb_utils
from saved_models.settings import ModelSettings

_SKOPS, _PICKLES = "model.skops", ("model.joblib", "model.pkl")
_PARAMETER, _SETTING = "allow_code", "allow-code"
_TRUSTED = "trusted-types"


def load(settings: ModelSettings) -> Any:
    """The estimator in a model's file.

    Raises:
        ModelLoadError: If there is no file, if it would run code that nobody allowed, or if it cannot be read.
    """
    path = _find(settings)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = _load_skops(path, settings) if path.suffix == ".skops" else _load_pickle(path, settings)
        except pb_utils.TritonModelException:
            raise
        except Exception as problem:  # noqa: BLE001 - unpickling raises anything
            raise settings.error(
                f"scikit-learn {sklearn.__version__} cannot read '{path}': {type(problem).__name__}: {problem}"
            ) from None
    for text in dict.fromkeys(str(warning.message).split("\n", 1)[0] for warning in said):
        pb_utils.Logger.log_warn(f"while '{path}' was read: {text}")
    if not hasattr(found, "predict") and not hasattr(found, "transform"):
        raise settings.error(f"'{path}' holds an object of {type(found).__name__}, which is no estimator")
    return found


def _find(settings: ModelSettings) -> Path:
    if not settings.config.get("default_model_filename"):
        for name in (_SKOPS, *_PICKLES):
            path = Path(settings.directory, name)
            if path.exists():
                return path
    return settings.find_file(_SKOPS)


def _load_skops(path: Path, settings: ModelSettings) -> Any:
    trusted = [name.strip() for name in pb_utils.get_backend_config().get(_TRUSTED, "").split(",") if name.strip()]
    unknown = [name for name in skops.io.get_untrusted_types(file=path) if name not in trusted]
    if unknown and not _allows_code(settings):
        raise settings.error(
            f"'{path}' has objects of types that skops does not know to be safe: {', '.join(unknown)}; if you trust "
            f"them, start the server with --backend-config=sklearn,{_TRUSTED}={','.join([*trusted, *unknown])}"
        )
    return skops.io.load(path, trusted=[*trusted, *unknown])


def _load_pickle(path: Path, settings: ModelSettings) -> Any:
    if not _allows_code(settings):
        raise settings.error(
            f"'{path}' is a pickle, which may run any code when it is read; save the estimator by skops.io.dump as "
            f'{_SKOPS}, or allow it by the parameter {_PARAMETER}: "true" in config.pbtxt or '
            f"--backend-config=sklearn,{_SETTING}=true"
        )
    return joblib.load(path)


def _allows_code(settings: ModelSettings) -> bool:
    """Whether the operator lets files run code."""
    allowed = pb_utils.get_backend_config().get(_SETTING, "").lower() in {"true", "1"}
    return settings.flag(_PARAMETER, default=allowed)
