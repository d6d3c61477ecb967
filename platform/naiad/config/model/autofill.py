"""The backend of a model whose configuration does not name one, inferred from the names of its files.

As in the reference, files of native backends take precedence over `model.py`: a directory with `model.onnx` and
`model.py` must not be served by another backend than in Triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import ConfigError

PYTHON_BACKEND = "python"
PYTHON_FILENAME = "model.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """The file or directory by which a backend's models are recognised; `directory` is None if it may be either."""

    backend: str
    filename: str
    platforms: tuple[str, ...] = ()
    directory: bool | None = False


# In order of precedence.
_SIGNATURES = (
    _Signature(backend="tensorflow", filename="model.savedmodel", platforms=("tensorflow_savedmodel",), directory=True),
    _Signature(backend="tensorflow", filename="model.graphdef", platforms=("tensorflow_graphdef",)),
    _Signature(backend="tensorrt", filename="model.plan", platforms=("tensorrt_plan",)),
    _Signature(backend="onnxruntime", filename="model.onnx", platforms=("onnxruntime_onnx",), directory=None),
    _Signature(backend="openvino", filename="model.xml", directory=None),
    _Signature(backend="pytorch", filename="model.pt", platforms=("pytorch_libtorch", "libtorch")),
    _Signature(backend="pytorch", filename="model.pt2", platforms=("torch_aoti",)),
    _Signature(backend=PYTHON_BACKEND, filename=PYTHON_FILENAME, directory=None),
)

# Files of backends that ship with naiad. The reference recognises none of them: a `model.py` beside one is meant.
_FILES_OF_OWN_BACKENDS = {
    # First: models of MLflow have files of other backends beside it.
    "MLmodel": "mlflow",
    "xgboost.json": "fil",
    "xgboost.ubj": "fil",
    "xgboost.model": "fil",
    "checkpoint.tl": "fil",
    "model.skops": "sklearn",
    "model.joblib": "sklearn",
    "model.pkl": "sklearn",
    "model.safetensors": "transformers",
    "model.safetensors.index.json": "transformers",
    "adapter_config.json": "transformers",
}


def fill_backend(message: pb.ModelConfig, model_name: str, listing: Mapping[str, bool] | None) -> None:
    """Fill in `name`, `backend`, `platform` and `default_model_filename` where they are empty and can be inferred.

    Args:
        listing: Entries of the first version directory, with whether each is a directory; None without a version.
    """
    if not message.name:
        message.name = model_name
    for signature in _SIGNATURES:
        if _matches(signature, message, listing or {}):
            _apply(signature, message)
            return
    if message.backend or message.platform or message.default_model_filename:
        return
    for filename, backend in _FILES_OF_OWN_BACKENDS.items():
        if (listing or {}).get(filename) is False:
            message.backend = backend
            return
    _fill_from_name(message, model_name)


def _matches(signature: _Signature, message: pb.ModelConfig, listing: Mapping[str, bool]) -> bool:
    if message.backend:
        return message.backend == signature.backend and _is_variant(signature, message)
    if message.platform in signature.platforms or message.default_model_filename == signature.filename:
        return True
    if message.platform or message.default_model_filename or signature.filename not in listing:
        return False
    return signature.directory is None or listing[signature.filename] is signature.directory


def _is_variant(signature: _Signature, message: pb.ModelConfig) -> bool:
    return not message.platform or not signature.platforms or message.platform in signature.platforms


def _apply(signature: _Signature, message: pb.ModelConfig) -> None:
    message.backend = signature.backend
    if not message.platform and signature.platforms:
        message.platform = signature.platforms[0]
    if not message.default_model_filename:
        message.default_model_filename = signature.filename


def _fill_from_name(message: pb.ModelConfig, model_name: str) -> None:
    """Infer the backend from a name `anything.<backend>`: everything after the first dot."""
    _, dot, backend = model_name.partition(".")
    if not dot:
        raise ConfigError(
            f"Invalid model name: Could not determine backend for model '{model_name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
    message.backend = backend
    message.default_model_filename = f"model.{backend}"
