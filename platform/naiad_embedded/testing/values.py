"""The values that tests pass to a model and get from it: requests, responses, calls to other models, log records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from naiad_stub.response import InferenceResponse
from naiad_stub.tensor import Tensor

from naiad.core.errors import Code, InvalidRequestError, ModelError

Array: TypeAlias = npt.NDArray[Any]
Parameter: TypeAlias = bool | int | float | str


@dataclass(slots=True, kw_only=True)
class Request:
    """One request to a model.

    Attributes:
        inputs: Arrays (or lists, scalars, text, tensors of `pb_utils`) by the names of the model's inputs.
        request_id: The client's id.
        correlation_id: Id of a sequence.
        flags: `pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `..._END`.
        parameters: Parameters of the request.
        requested_outputs: Names of the outputs to answer with; all of them if empty.
        timeout: Microseconds.
        is_cancelled: Whether the client has cancelled; or a function, called each time the model asks.
    """

    inputs: Mapping[str, Any] = field(default_factory=dict)
    request_id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    requested_outputs: Sequence[str] = ()
    timeout: int = 0
    is_cancelled: bool | Callable[[], bool] = False


class Response(Mapping[str, Array]):
    """One response of a model: its output arrays by name.

    Attributes:
        tensors: The outputs as tensors, which BF16 outputs need: numpy has no such type.
        parameters: Parameters of the response.
        error: The error that the client would get; None without one.
        is_empty: Whether it is only the final mark.
    """

    __slots__ = ("error", "is_empty", "parameters", "tensors")

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        parameters: Mapping[str, Parameter] | None = None,
        error: ModelError | None = None,
        *,
        is_empty: bool = False,
    ) -> None:
        self.tensors = dict(tensors)
        self.parameters = dict(parameters or {})
        self.error = error
        self.is_empty = is_empty

    def __getitem__(self, name: str) -> Array:
        try:
            return self.tensors[name].as_numpy()
        except KeyError:
            raise KeyError(f"no output '{name}'; there are: {', '.join(self.tensors) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Response error={self.error.message!r}>"
        outputs = ", ".join(f"{name}: {list(tensor.shape())}" for name, tensor in self.tensors.items())
        return f"<Response {outputs or 'without outputs'}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call(Mapping[str, Array]):
    """One call of the model to another: the inputs as arrays by name, and the rest as attributes.

    Attributes:
        model_name: The model it calls.
        model_version: Its version, -1 for any.
        tensors: The inputs as tensors.
        request_id: Id of the request.
        correlation_id: Id of its sequence.
        flags: Its sequence flags.
        timeout: Its timeout in microseconds.
        parameters: Its parameters.
        requested_outputs: Outputs it asks for.
        decoupled: Whether it was made with `decoupled=True`.
    """

    model_name: str
    model_version: int
    tensors: Mapping[str, Tensor]
    request_id: str
    correlation_id: int | str
    flags: int
    timeout: int
    parameters: Mapping[str, Parameter]
    requested_outputs: tuple[str, ...]
    decoupled: bool

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name].as_numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One message of `pb_utils.Logger`.

    Attributes:
        level: `INFO`, `WARNING`, `ERROR` or `VERBOSE`.
        message: The text.
        file: The file of the model it was logged in.
        line: The line there.
    """

    level: str
    message: str
    file: str
    line: int


def received(tensor: Tensor) -> Tensor:
    """The tensor as it arrives on the other side: a copy of its bytes, with strings as `bytes`."""
    code, shape, data, _ = tensor._payload()  # noqa: SLF001 - how the guest reads it, too
    return Tensor._received(tensor.name(), code, shape, memoryview(bytearray(data)))  # noqa: SLF001 - see above


def tensor_of(name: str, value: Any, numpy_type: Any = None) -> Tensor:
    """The tensor that a client sends for *value*; lists and scalars become arrays of *numpy_type* if that is given.

    InvalidRequestError if no such array can be made of it.
    """
    if isinstance(value, Tensor):
        return received(value)
    kind = _list_type(value, numpy_type)
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=kind)
    except (TypeError, ValueError, OverflowError) as error:
        wanted = "an array" if kind is None else f"an array of {np.dtype(kind)}"
        raise InvalidRequestError(f"'{name}' cannot be made {wanted}: {error}") from error
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8").astype(np.object_)
    return received(Tensor(name, array))


def _list_type(value: Any, numpy_type: Any) -> Any:
    return numpy_type if isinstance(value, (list, tuple, bool, int, float, str, bytes)) else None


def response_of(response: InferenceResponse, requested: Sequence[str] | None) -> Response:
    """What the client gets of a model's response; outputs that it did not ask for are left out."""
    error = response.error()
    if error is not None:
        return Response({}, error=ModelError(error.message(), code=Code[error.code().name]))
    return Response(
        {
            tensor.name(): received(tensor)
            for tensor in response.output_tensors()
            if requested is None or tensor.name() in requested
        },
        json.loads(response.parameters() or "{}"),
    )
