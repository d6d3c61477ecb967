"""Reads an estimator from its file, and runs no code in it that nobody allowed."""

from __future__ import annotations

import re
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
# Each estimator in a pickle ends with this member. Between both texts are a few bytes of the pickle's own.
_VERSION = re.compile(rb"_sklearn_version[^0-9]{1,120}([0-9]+(?:\.[0-9a-z]+)+)")
_SHOWN = 200  # characters that are shown of a reason


def load(settings: ModelSettings) -> Any:
    """The estimator in a model's file. Code in it runs only if it is allowed."""
    path = _find(settings)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = _load_skops(path, settings) if path.suffix == ".skops" else _load_pickle(path, settings)
        except pb_utils.TritonModelException:
            raise
        except Exception as problem:  # noqa: BLE001 - unpickling raises anything
            raise settings.error(_explanation(path, problem)) from None
    for text in dict.fromkeys(str(warning.message).split("\n", 1)[0] for warning in said):
        pb_utils.Logger.log_warn(f"while '{path}' was read: {text}")
    if not hasattr(found, "predict") and not hasattr(found, "transform"):
        raise settings.error(f"'{path}' holds an object of {type(found).__name__}, which is no estimator")
    return found


def _explanation(path: Path, problem: Exception) -> str:
    """Why a file cannot be read; if another version of scikit-learn wrote it, with a way out."""
    why = f"{type(problem).__name__}: {problem}".split("\n", 1)[0]  # the other lines of a forest list numpy's types
    reading = f"scikit-learn {sklearn.__version__} cannot read '{path}'"
    version = _writer(path)
    if version in {"", sklearn.__version__}:
        return f"{reading}: {why[:_SHOWN]}"
    return (
        f"{reading}, which scikit-learn {version} wrote ({why[:_SHOWN]}); give the model an environment with "
        f"scikit-learn=={version}, or save the estimator again with {sklearn.__version__}"
    )


def _writer(path: Path) -> str:
    """The version of scikit-learn that wrote a file; empty where the file does not say it, as a compressed one."""
    with path.open("rb") as file:
        rest = b""
        while piece := file.read(1 << 20):
            found = _VERSION.search(rest + piece)
            if found is not None:
                return found[1].decode()
            rest = piece[-256:]
    return ""


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
    if unknown and not settings.allows(_PARAMETER, _SETTING):
        raise settings.error(
            f"'{path}' has objects of types that skops does not know to be safe: {', '.join(unknown)}; if you trust "
            f"them, start the server with --backend-config=sklearn,{_TRUSTED}={','.join([*trusted, *unknown])}"
        )
    return skops.io.load(path, trusted=[*trusted, *unknown])


def _load_pickle(path: Path, settings: ModelSettings) -> Any:
    if not settings.allows(_PARAMETER, _SETTING):
        raise settings.error(
            f"'{path}' is a pickle, which may run any code when it is read; save the estimator by skops.io.dump as "
            f'{_SKOPS}, or allow it by the parameter {_PARAMETER}: "true" in config.pbtxt or '
            f"--backend-config=sklearn,{_SETTING}=true"
        )
    return joblib.load(path)
