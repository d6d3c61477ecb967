"""Responses: those that a model returns, and the results of its calls to other models."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from naiad_stub.arguments import sequence
from naiad_stub.exceptions import API_MODULE, TritonError, TritonModelException
from naiad_stub.parameters import EMPTY, parameters_json
from naiad_stub.tensor import Tensor


class InferenceResponse:
    """Output tensors and parameters, or an error.

    Attributes:
        _parameters: JSON text; empty without any, None if this is the final mark of a call.
    """

    __slots__ = ("__weakref__", "_error", "_outputs", "_parameters")
    __module__ = API_MODULE

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: Optional[TritonError] = None, parameters: Any = None
    ) -> None:
        self._outputs = list(sequence("output_tensors", output_tensors))
        for tensor in self._outputs:
            if tensor is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"output_tensors must hold Tensor objects, got {type(tensor).__name__}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a TritonError, got {type(error).__name__}")
        self._error = error
        self._parameters: Optional[str] = "" if parameters is None else parameters_json(parameters)

    @classmethod
    def _received(
        cls, tensors: List[Tensor], error: Optional[TritonError], parameters: Optional[str]
    ) -> InferenceResponse:
        """A response from the server, whose parameters are JSON text already."""
        self = cls.__new__(cls)
        self._outputs = tensors
        self._error = error
        self._parameters = parameters
        return self

    def output_tensors(self) -> List[Tensor]:
        """The outputs; the server ignores them if there is an error."""
        return self._outputs

    def has_error(self) -> bool:
        """Whether there is an error."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """The error, or None."""
        return self._error

    def parameters(self) -> str:
        """The response's parameters as JSON text; an empty text if this is only the end of a stream."""
        return "" if self._parameters is None else self._parameters or EMPTY
