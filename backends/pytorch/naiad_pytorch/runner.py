"""Calls a model with tensors of PyTorch, and checks what it returns."""

from __future__ import annotations

from typing import Any, ContextManager, Dict, List, Mapping, Sequence

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from saved_models.conversion import strings
from saved_models.settings import ModelSettings

from naiad_pytorch.model import Model, as_outputs, output_at
from naiad_pytorch.options import Options
from naiad_pytorch.tensors import DATA_TYPES, array_of_strings, settle


class ModelRunner:
    """A model with the names of its configuration; ModelLoadError if that does not fit the model."""

    def __init__(self, model: Model, settings: ModelSettings, options: Options) -> None:
        self._model = model
        self._keys = model.bind(settings)
        self._types = {tensor.name: tensor.data_type for tensor in settings.outputs}
        self._is_inference = options.is_inference
        self._cleans_cache = options.cleans_cache and torch.cuda.is_available()

    def run(self, arrays: Dict[str, Any], wanted: Sequence[str]) -> Dict[str, Any]:
        """The outputs of these names; InputError if a text is not UTF-8, TritonModelException for all else."""
        device = self._model.device
        values = {
            name: strings(name, value).ravel().tolist() if isinstance(value, np.ndarray) else value.to(device)
            for name, value in arrays.items()
        }
        try:
            with self._mode():
                outputs = as_outputs(self._model.call(values))
        except pb_utils.TritonModelException:
            raise
        except Exception as problem:  # noqa: BLE001 - models raise anything
            raise pb_utils.TritonModelException(f"PyTorch execute failure: {_describe(problem)}") from None
        finally:
            if self._cleans_cache:
                torch.cuda.empty_cache()
        try:
            return {name: self._checked(name, output_at(outputs, name, self._keys[name])) for name in wanted}
        except IndexError as problem:
            raise pb_utils.TritonModelException(str(problem)) from None

    def try_out(self, values: Mapping[str, Any]) -> Any:
        """The outputs of a call, by whatever the model calls them, for a configuration that lacks them."""
        with self._mode():
            return as_outputs(self._model.call(values))

    def _mode(self) -> ContextManager[Any]:
        return torch.inference_mode() if self._is_inference else torch.no_grad()

    def _checked(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            value = self._strings(name, value)
            provided = "TYPE_STRING"
        elif isinstance(value, torch.Tensor):
            provided = DATA_TYPES.get(value.dtype, f"{value.dtype}, which tensors of requests cannot have")
        else:
            raise pb_utils.TritonModelException(f"output '{name}' must be of type Tensor or List[str].")
        if provided != self._types[name]:
            raise pb_utils.TritonModelException(
                f"configuration expects datatype {self._types[name]} for output '{name}', model provides {provided}"
            )
        if not len(value.shape):
            raise pb_utils.TritonModelException(f"output '{name}' is a scalar which is not supported.")
        return value if isinstance(value, np.ndarray) else settle(value)

    def _strings(self, name: str, values: List[Any]) -> np.ndarray[Any, Any]:
        if not all(isinstance(value, str) for value in values):
            kind = next(type(value).__name__ for value in values if not isinstance(value, str))
            raise pb_utils.TritonModelException(
                f"output '{name}' must be of type Tensor or List[str], received List[{kind}]"
            )
        return array_of_strings(values)


def _describe(problem: Exception) -> str:
    text = str(problem).strip()
    # An assertion without a text says nothing by its text.
    return text if isinstance(problem, RuntimeError) and text else f"{type(problem).__name__}: {text}".rstrip(": ")
