"""Runs a session on arrays."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from saved_models.conversion import InputError, strings
from saved_models.execution import Arrays
from saved_models.interface import ModelInterface
from saved_models.settings import ModelSettings

from naiad_onnxruntime.session import parse_error

_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_INVALID_ARGUMENT = 2


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
        """The outputs of these names; InputError if ONNX Runtime refuses inputs, TritonModelException if it fails."""
        for name in self._strings & arrays.keys():
            # The binding would write bytes as literals of Python.
            arrays[name] = strings(name, arrays[name])
        for name in self._scalars & arrays.keys():
            arrays[name] = arrays[name].reshape(())
        try:
            found = dict(zip(wanted, self._run(wanted, arrays, self._options)))
        except Exception as problem:  # noqa: BLE001 - its exceptions have no common class of their own
            number, text = parse_error(problem)
            kind = InputError if number == _INVALID_ARGUMENT else pb_utils.TritonModelException
            raise kind(f"onnx runtime error {number}: {text}") from None
        for name, dims in self._scalar_outputs.items():
            if name in found:
                found[name] = np.asarray(found[name]).reshape(dims)
        return found
