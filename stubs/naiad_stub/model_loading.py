"""Loads a model in a guest: imports its class, completes its configuration, constructs and initialises it."""

from __future__ import annotations

import sys
from typing import Any

from naiad_stub import loader
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.load_spec import LoadSpec, NativeCode, PythonCode


class LoadError(Exception):
    """The model cannot be loaded.

    Attributes:
        message: The reason, in the reference's form (exception type, text, "At:" and the frames).
        traceback_text: Python's own traceback, for the log.
        code: Number of the error code.
    """

    def __init__(self, message: str, traceback_text: str, code: int = TritonError.INTERNAL) -> None:
        super().__init__(message)
        self.message = message
        self.traceback_text = traceback_text
        self.code = int(code)


def method_of(model: Any, name: str) -> Any:
    """The method of that name, or None.

    As in the reference, a model does not have it either if looking for it raises: many a `__getattr__` raises KeyError.
    """
    try:
        return getattr(model, name, None)
    except Exception:  # noqa: BLE001 - `__getattr__` of a model may raise anything
        return None


def load_class(spec: LoadSpec, code: PythonCode) -> type:
    """The model's class, from its imported module.

    Raises:
        LoadError: With the exception the module raised.
    """
    if code.imports_from_cwd and sys.path[:1] != [""]:
        sys.path.insert(0, "")
    try:
        return loader.load_model_class(code.file, spec.version_dir, spec.model_dir, code.utils_dir, code.is_shared)
    except BaseException as error:
        raise _load_error(error, code) from error


def _load_error(error: BaseException, code: PythonCode) -> LoadError:
    """The error for an exception of the model's code; a failed import names the interpreter, where to install it."""
    text, full = loader.format_exception(error)
    if isinstance(error, ImportError) and code.environment:
        first, separator, frames = text.partition("\n\nAt:\n")
        version = ".".join(map(str, sys.version_info[:3]))
        text = f"{first} (in Python {version}: {sys.executable}, {code.environment}){separator}{frames}"
    return LoadError(text, full)


def complete_config(spec: LoadSpec) -> str:
    """The configuration as JSON, after the model's `auto_complete_config`.

    Raises:
        LoadError: If it raises or does not return a ModelConfig.
    """
    code = spec.code
    if isinstance(code, NativeCode):
        from naiad_stub.native.errors import ApiCallError
        from naiad_stub.native.model import complete_native_config

        try:
            return complete_native_config(spec, code)
        except ApiCallError as error:
            raise LoadError(error.message, "", error.code) from error
    import json

    model_class = load_class(spec, code)
    complete = method_of(model_class, "auto_complete_config")
    if complete is None:
        return spec.model_config
    model_config_class = sys.modules["triton_python_backend_utils"].ModelConfig
    try:
        completed = complete(model_config_class(spec.model_config))
        if not isinstance(completed, model_config_class):
            raise TritonModelException(
                f"auto_complete_config function in model '{spec.model_name}' must return a valid pb.ModelConfig object."
            )
        return json.dumps(completed.as_dict())
    except BaseException as error:
        raise _load_error(error, code) from error


def initialize_model(spec: LoadSpec, code: PythonCode) -> Any:
    """The model's object, imported, constructed and initialised.

    Raises:
        LoadError: If any of that raises.
    """
    model_class = load_class(spec, code)
    try:
        model = model_class()
        initialize = method_of(model, "initialize")
        if initialize is not None:
            initialize(spec.arguments())
    except BaseException as error:
        raise _load_error(error, code) from error
    return model
