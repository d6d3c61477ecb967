"""Whether a request fits a model: names, counts, datatypes, shapes, batch size, bytes.

Texts and their order are the reference's (CORE src/infer_request.cc, `Normalize`), because clients and tests look for
them. What passes here needs no further check on its way to the guest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from naiad.config.model.model_config import ModelConfig, TensorConfig
from naiad.errors import InvalidRequestError, UnsupportedRequestError
from naiad.protocol.datatypes import BYTE_SIZES, Datatype
from naiad.protocol.inference import Buffer, InferRequest, InputTensor

_ID_LIMIT = 0xFFFE
_CORRELATION_ID_LIMIT = 128
_DIMENSIONS_LIMIT = 32
_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class _Input:
    __slots__ = ("datatype", "dims", "has_wildcard", "name", "reshape", "width")

    def __init__(self, config: TensorConfig) -> None:
        self.name = config.name
        self.datatype = config.datatype
        self.dims = config.dims
        self.has_wildcard = -1 in config.dims
        self.width = BYTE_SIZES[config.datatype]
        self.reshape = config.reshape


class RequestCheck:
    """The inputs and outputs of one model, compiled for checking requests."""

    def __init__(self, config: ModelConfig) -> None:
        self._model = config.name
        self._max_batch_size = config.max_batch_size
        self._inputs = {tensor.name: _Input(tensor) for tensor in config.inputs}
        self._outputs = frozenset(tensor.name for tensor in config.outputs)
        self._required = sum(not tensor.optional for tensor in config.inputs)
        self._optional = {tensor.name for tensor in config.inputs if tensor.optional}

    def check(self, request: InferRequest) -> int:
        """Check *request* and reshape its inputs to what the model sees.

        Returns:
            The batch size; 1 for a model without batching.

        Raises:
            InvalidRequestError: With the first thing that is wrong.
        """
        correlation = request.correlation_id
        if isinstance(correlation, str) and len(correlation.encode("utf-8", "replace")) > _CORRELATION_ID_LIMIT:
            raise UnsupportedRequestError(
                f"string correlation ID cannot be longer than {_CORRELATION_ID_LIMIT} characters"
            )
        if request.requested_outputs:
            self._check_outputs(request)
        inputs = request.inputs
        if not self._required <= len(inputs) <= len(self._inputs):
            raise self._count_error(request)
        seen = set()
        configured = []
        for tensor in inputs:
            known = self._inputs.get(tensor.name)
            if known is None:
                raise InvalidRequestError(f"unexpected inference input '{tensor.name}' for model '{self._model}'")
            seen.add(tensor.name)
            configured.append(known)
        if len(seen) != len(inputs) or (self._optional and len(seen - self._optional) < self._required):
            raise self._count_error(request)
        batch_size = self._batch_size(request) if self._max_batch_size > 0 else 1
        for tensor, known in zip(inputs, configured, strict=True):
            self._check_input(request, tensor, known)
        if len(request.request_id.encode()) > _ID_LIMIT:
            raise InvalidRequestError(f"request id must have at most {_ID_LIMIT} bytes")
        return batch_size

    def check_for(self, version: int, request: InferRequest) -> int:
        """As `check`; where the request has a pattern, note there that such requests fit this load of a *version*."""
        batch_size = self.check(request)
        if request.pattern is not None and self.is_repeatable(request):
            request.pattern.checked_by, request.pattern.batch_size = version, batch_size
        return batch_size

    def is_repeatable(self, request: InferRequest) -> bool:
        """Whether a request that differs from this one in its tensors' bytes alone fits too, and needs no reshaping."""
        known = [self._inputs[tensor.name] for tensor in request.inputs]
        return all(tensor.width and tensor.reshape is None for tensor in known)

    def _check_outputs(self, request: InferRequest) -> None:
        for name in request.requested_outputs:
            if name not in self._outputs:
                raise InvalidRequestError(f"unexpected inference output '{name}' for model '{self._model}'")
        twice = _first_repeated(request.requested_outputs)
        if twice is not None:
            raise InvalidRequestError(f"{prefix(request)}output '{twice}' already exists in request")

    def _batch_size(self, request: InferRequest) -> int:
        batch_size = None
        for tensor in request.inputs:
            if not tensor.shape:
                raise InvalidRequestError(
                    f"{prefix(request)}input '{tensor.name}' has no shape but model requires batch dimension for "
                    f"'{self._model}'"
                )
            if tensor.shape[0] < 0:
                raise self._open_dimension_error(request, tensor)
            if batch_size is None:
                batch_size = tensor.shape[0]
            elif tensor.shape[0] != batch_size:
                raise InvalidRequestError(
                    f"{prefix(request)}input '{tensor.name}' batch size does not match other inputs for '{self._model}'"
                )
        if batch_size is None:
            return 1
        if not 1 <= batch_size <= self._max_batch_size:
            limit = f"<= {self._max_batch_size}" if batch_size else ">= 1"
            raise InvalidRequestError(
                f"{prefix(request)}inference request batch-size must be {limit} for '{self._model}'"
            )
        return batch_size

    def _check_input(self, request: InferRequest, tensor: InputTensor, known: _Input) -> None:
        if tensor.datatype is not known.datatype:
            raise InvalidRequestError(
                f"{prefix(request)}inference input '{tensor.name}' data-type is '{_named(tensor.datatype)}', but model "
                f"'{self._model}' expects '{known.datatype.name}'"
            )
        dims = tensor.shape[1:] if self._max_batch_size > 0 else tensor.shape
        if dims != known.dims and not (known.has_wildcard and _fits(dims, known.dims)):
            raise self._shape_error(request, tensor, known)
        if known.has_wildcard and min(dims) < 0:
            raise self._open_dimension_error(request, tensor)
        if known.width:
            expected = prod(tensor.shape) * known.width
            if len(tensor.data) != expected:
                raise InvalidRequestError(
                    f"{prefix(request)}input byte size mismatch for input '{tensor.name}' for model '{self._model}'. "
                    f"Expected {expected}, got {len(tensor.data)}"
                )
        else:
            check_strings(tensor.name, self._model, tensor.data, prod(tensor.shape), prefix(request))
        if known.reshape is not None:
            leading = tensor.shape[:1] if self._max_batch_size > 0 else ()
            tensor.shape = leading + _reshaped(dims, known)

    def _shape_error(self, request: InferRequest, tensor: InputTensor, known: _Input) -> InvalidRequestError:
        expected = (-1, *known.dims) if self._max_batch_size > 0 else known.dims
        note = _BATCH_NOTE if self._max_batch_size > 0 else ""
        return InvalidRequestError(
            f"{prefix(request)}unexpected shape for input '{tensor.name}' for model '{self._model}'. "
            f"Expected {_shape(expected)}, got {_shape(tensor.shape)}. {note}"
        )

    def _open_dimension_error(self, request: InferRequest, tensor: InputTensor) -> InvalidRequestError:
        return InvalidRequestError(
            f"{prefix(request)}All input dimensions should be specified for input '{tensor.name}' for model "
            f"'{self._model}', got {_shape(tensor.shape)}"
        )

    def _count_error(self, request: InferRequest) -> InvalidRequestError:
        got = len(request.inputs)
        names = [tensor.name for tensor in request.inputs]
        twice = _first_repeated(names)
        if twice is not None:
            return InvalidRequestError(f"{prefix(request)}input '{twice}' already exists in request")
        total = len(self._inputs)
        wanted = f"{total}" if self._required == total else f"number of inputs between {self._required} and {total}"
        missing = [name for name in self._inputs if name not in names and name not in self._optional]
        text = (
            f"{prefix(request)}expected {wanted} inputs but got {got} inputs for model '{self._model}'."
            if self._required == total
            else f"{prefix(request)}expected {wanted} but got {got} inputs for model '{self._model}'."
        )
        if missing:
            listed = ",".join(f"'{name}'" for name in names)
            lacking = ",".join(f"'{name}'" for name in missing)
            text += (
                f" Got input(s) [{listed}], but missing required input(s) [{lacking}]. "
                "Please provide all required input(s)."
            )
        return InvalidRequestError(text)


def prefix(request: InferRequest) -> str:
    """How most errors about a request begin (CORE src/infer_request.h, `LogRequest`)."""
    return f"[request id: {request.request_id or '<id_unknown>'}] "


def check_strings(name: str, model: str, data: Buffer, expected: int, start: str) -> None:
    """Check that *data* holds exactly *expected* length-prefixed elements.

    Raises:
        InvalidRequestError: With the reference's text (CORE src/infer_request.cc, `ValidateBytesInputs`).
    """
    position, size, count = 0, len(data), 0
    while position < size:
        if count >= expected:
            raise InvalidRequestError(
                f"{start}unexpected number of string elements {count + 1} for inference input '{name}' for model "
                f"'{model}', expecting {expected}"
            )
        if position + 4 > size:
            raise InvalidRequestError(
                f"{start}incomplete string length indicator for inference input '{name}' for model '{model}', "
                f"expecting 4 bytes but only {size - position} bytes available. Please make sure the string length "
                "indicator is in one buffer."
            )
        length = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if position + length > size:
            raise InvalidRequestError(
                f"{start}incomplete string data for inference input '{name}' for model '{model}', expecting string of "
                f"length {length} but only {size - position} bytes available"
            )
        position += length
        count += 1
    if count != expected:
        raise InvalidRequestError(
            f"{start}expected {expected} string elements for inference input '{name}' for model '{model}', got {count}"
        )


def _first_repeated(names: Sequence[str]) -> str | None:
    if len(set(names)) == len(names):
        return None
    return next(name for index, name in enumerate(names) if name in names[:index])


def _fits(dims: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(dims) == len(expected) and all(e in (d, -1) for d, e in zip(dims, expected, strict=True))


def _reshaped(dims: tuple[int, ...], known: _Input) -> tuple[int, ...]:
    """The reshape's dimensions; its variable ones take the request's, in order (CORE src/infer_request.cc)."""
    assert known.reshape is not None
    variable = iter([d for d, e in zip(dims, known.dims, strict=True) if e == -1])
    return tuple(next(variable) if d == -1 else d for d in known.reshape)


def _named(datatype: Datatype) -> str:
    return "<invalid>" if datatype is Datatype.INVALID else datatype.name


def _shape(dims: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
