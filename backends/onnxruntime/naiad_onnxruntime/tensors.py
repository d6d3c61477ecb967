"""Runs a session on arrays."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from saved_models.execution import Arrays
from saved_models.interface import ModelInterface
from saved_models.settings import ModelSettings

from naiad_onnxruntime.session import parse_error

_SHRINKAGE = "memory.enable_memory_arena_shrinkage"


class SessionRunner:
    """A session, with the conversions between the protocol's tensors and those of ONNX Runtime."""

    def __init__(self, session: Any, settings: ModelSettings, interface: ModelInterface) -> None:
        self._run = session.run
        self._options: Any = None
        if settings.parameters.get(_SHRINKAGE):
            self._options = onnxruntime.RunOptions()
            self._options.add_run_config_entry(_SHRINKAGE, settings.parameters[_SHRINKAGE])
        inputs = (*interface.inputs, *interface.overridable)
        self._strings = frozenset(tensor.name for tensor in inputs if tensor.data_type == "TYPE_STRING")
        self._scalars = frozenset(tensor.name for tensor in inputs if not tensor.shape)
        scalars = {tensor.name for tensor in interface.outputs if not tensor.shape}
        # Scalars are configured with dimensions of 1, which the reference gives them.
        self._scalar_outputs: Mapping[str, Sequence[int]] = {
            tensor.name: tensor.dims for tensor in settings.outputs if tensor.name in scalars
        }

    def run(self, arrays: Arrays, wanted: Sequence[str]) -> Dict[str, np.ndarray[Any, Any]]:
        """The outputs of these names.

        Raises:
            TritonModelException: If ONNX Runtime refuses the inputs, or fails.
        """
        for name in self._strings & arrays.keys():
            arrays[name] = _decoded(name, arrays[name])
        for name in self._scalars & arrays.keys():
            arrays[name] = arrays[name].reshape(())
        try:
            found = dict(zip(wanted, self._run(wanted, arrays, self._options)))
        except Exception as problem:  # noqa: BLE001 - its exceptions have no common class of their own
            number, text = parse_error(problem)
            raise pb_utils.TritonModelException(f"onnx runtime error {number}: {text}") from None
        for name, dims in self._scalar_outputs.items():
            if name in found:
                found[name] = np.asarray(found[name]).reshape(dims)
        return found


def _decoded(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The strings as ONNX Runtime's binding takes them: it would write bytes as Python's literals."""
    found: np.ndarray[Any, Any] = np.empty(array.shape, np.object_)
    try:
        found.ravel()[:] = [item.decode() for item in array.ravel().tolist()]
    except UnicodeDecodeError as problem:
        raise pb_utils.TritonModelException(f"input '{name}' has a string that is not UTF-8: {problem}") from None
    return found
