"""Requests: those the server sends to a model, and those a model makes to call another (BLS)."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional, Sequence, Set, Union

from naiad_stub import runtime
from naiad_stub.arguments import integer, sequence, text
from naiad_stub.exceptions import API_MODULE, NamedNumber, TritonModelException
from naiad_stub.parameters import EMPTY, parameters_json
from naiad_stub.tensor import Tensor

_MISSING: Any = object()
_RELEASE_ALL = 1
_RELEASE_RESCHEDULE = 2


class MemoryType(NamedNumber):
    """Kinds of memory a tensor may be in."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """Where the outputs of a call should be.

    With GPU, outputs are in the memory of that GPU, whose number is that of this process, if it has one: those on the
    CPU are copied there. Without a preference in a process that uses GPU memory, outputs stay in GPU memory if the
    called model made them there. Strings, and other outputs, are on the CPU.
    """

    __slots__ = ("__weakref__", "_device", "_kind")
    __module__ = API_MODULE

    def __init__(self, preferred_memory_type: Any, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            expected = "TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU"
            raise TypeError(f"PreferredMemory takes {expected}, got {preferred_memory_type!r}")
        self._kind = preferred_memory_type
        self._device = integer("preferred_device_id", preferred_device_id, 0, 64)

    @property
    def _is_gpu(self) -> bool:
        """Whether it is GPU memory."""
        return self._kind is MemoryType.TRITONSERVER_MEMORY_GPU


class InferenceTrace:
    """The trace of a request. Given to the requests of calls, whose traces become its children."""

    __slots__ = ("__weakref__", "_context", "_key")
    __module__ = API_MODULE

    def __init__(self, context: Optional[str] = None) -> None:
        self._context = context
        self._key: Optional[int] = None

    @classmethod
    def _received(cls, key: int, context: str) -> InferenceTrace:
        """The trace of the request that the host knows by *key*."""
        self = cls(context or None)
        self._key = key
        return self

    def get_context(self) -> Optional[str]:
        """The OpenTelemetry context as JSON, or None where the request has none."""
        return self._context


def _correlation(value: Any) -> Union[int, str]:
    """*value* as a correlation id: an unsigned 64-bit int or a str."""
    if value is None:
        raise TypeError("correlation_id must be an int or a str, got NoneType")
    if isinstance(value, str):
        return text("", value)
    if not isinstance(value, int):
        raise TritonModelException("Correlation ID must be integer or string")
    if not 0 <= value < 1 << 64:
        raise TritonModelException(f"Correlation ID must be from 0 to {(1 << 64) - 1}, got {value}")
    return int(value)


class InferenceRequest:
    """One request: its tensors, ids, flags and parameters.

    Attributes:
        _handle: The stub's `RequestRecord` of a received request; None if the model made it.
        _parameters: JSON text; empty without any.
        _release_flags: Whether the request is released or scheduled again after `execute`.
    """

    __slots__ = (
        "__weakref__",
        "_correlation",
        "_flags",
        "_handle",
        "_id",
        "_inputs",
        "_model_name",
        "_model_version",
        "_outputs",
        "_parameters",
        "_preferred_memory",
        "_release_flags",
        "_timeout",
        "_trace",
    )
    __module__ = API_MODULE

    _correlation: Union[int, str]
    _flags: int
    _handle: Any
    _id: str
    _inputs: List[Tensor]
    _model_name: str
    _model_version: int
    _outputs: Iterable[str]
    _parameters: str
    _preferred_memory: Optional[PreferredMemory]
    _release_flags: int
    _timeout: int
    _trace: Optional[InferenceTrace]

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        inputs: Sequence[Tensor] = _MISSING,
        requested_output_names: Sequence[str] = _MISSING,
        model_name: str = _MISSING,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _MISSING,
        trace: InferenceTrace = _MISSING,
        parameters: Any = None,
    ) -> None:
        self._id = text("request_id must be a str", request_id)
        self._correlation = _correlation(correlation_id)
        self._flags = integer("flags", flags, 0, 32)
        self._timeout = integer("timeout", timeout, 0, 64)
        self._model_version = integer("model_version", model_version, -(1 << 63), 64)
        self._parameters = parameters_json(parameters)
        self._handle = None
        self._release_flags = _RELEASE_ALL
        self._set_optional(preferred_memory, trace)
        self._set_required(inputs, requested_output_names, model_name)

    def _set_optional(self, preferred_memory: Any, trace: Any) -> None:
        """Check and set the arguments that may be missing but not None."""
        self._preferred_memory = None if preferred_memory is _MISSING else preferred_memory
        self._trace = None if trace is _MISSING else trace
        if preferred_memory is not _MISSING and not isinstance(preferred_memory, PreferredMemory):
            raise TypeError(f"preferred_memory must be a PreferredMemory, got {type(preferred_memory).__name__}")
        if trace is not _MISSING and not isinstance(trace, InferenceTrace):
            raise TypeError(f"trace must be an InferenceTrace, got {type(trace).__name__}")

    def _set_required(self, inputs: Any, requested_output_names: Any, model_name: Any) -> None:
        """Check and set the required arguments."""
        arguments = (("inputs", inputs), ("requested_output_names", requested_output_names), ("model_name", model_name))
        missing = [name for name, value in arguments if value is _MISSING]
        if missing:
            raise TypeError(f"InferenceRequest() misses its argument {' and '.join(missing)}")
        self._model_name = text("model_name must be a str", model_name)
        about = f"for request with id '{self._id}' and model name '{self._model_name}' should not be empty."
        self._inputs = list(sequence("inputs", inputs))
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException("Input tensor " + about)
            if not isinstance(tensor, Tensor):
                raise TypeError(f"inputs must hold Tensor objects, got {type(tensor).__name__}")
        rule = "requested_output_names must hold names: each must be a str"
        names = sequence("requested_output_names", requested_output_names)
        self._outputs = tuple([text(rule, name) for name in names])
        if not all(self._outputs):
            raise TritonModelException("Requested output name " + about)

    @classmethod
    def _received(
        cls,
        request_id: str,
        correlation_id: Union[int, str],
        flags: int,
        timeout: int,
        inputs: List[Tensor],
        requested_output_names: Iterable[str],
        parameters_json: str,
        handle: Any,
    ) -> InferenceRequest:
        """A request from the server, which has checked it."""
        self = cls.__new__(cls)
        self._id = request_id
        self._correlation = correlation_id
        self._flags = flags
        self._timeout = timeout
        self._inputs = inputs
        self._outputs = requested_output_names
        self._parameters = parameters_json
        self._handle = handle
        self._model_name = ""
        self._model_version = -1
        self._preferred_memory = None
        self._trace = None
        self._release_flags = _RELEASE_ALL
        return self

    def inputs(self) -> List[Tensor]:
        """The input tensors; those that are optional and were not sent are absent."""
        return self._inputs

    def request_id(self) -> str:
        """The client's id, empty if it gave none."""
        return self._id

    def correlation_id(self) -> Union[int, str]:
        """The id of the sequence; 0 without one."""
        return self._correlation

    def flags(self) -> int:
        """The sequence flags."""
        return self._flags

    def set_flags(self, flags: int, /) -> None:
        """Set the sequence flags of a request the model is about to make."""
        self._flags = integer("flags", flags, 0, 32)

    def timeout(self) -> int:
        """Microseconds, as sent by the client; 0 if it sent none."""
        return self._timeout

    def parameters(self) -> str:
        """The request's parameters as JSON text."""
        return self._parameters or EMPTY

    def requested_output_names(self) -> Set[str]:
        """The requested outputs: all of the model's if the client named none."""
        return set(self._outputs)

    def trace(self) -> InferenceTrace:
        """The trace of the request, for the requests of calls that it leads to."""
        if self._trace is None:
            self._trace = InferenceTrace()
        return self._trace

    def is_cancelled(self) -> bool:
        """Whether the client cancelled the request or disconnected."""
        return self._handle is not None and runtime.current().senders.is_cancelled(self._handle)

    def get_response_sender(self) -> Any:
        """The object that sends any number of responses to this request."""
        return runtime.current().senders.sender_of(self)

    def set_release_flags(self, flags: int, /) -> None:
        """Have the request released or scheduled again after `execute`."""
        flags = integer("flags", flags, 0, 32)
        if flags not in (_RELEASE_ALL, _RELEASE_RESCHEDULE):
            raise TritonModelException(
                "Unable to set request release flags. Use TRITONSERVER_REQUEST_RELEASE_ALL or "
                f"TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, got {flags}."
            )
        self._release_flags = flags

    def exec(self, decoupled: bool = False) -> Any:  # noqa: FBT001, FBT002 - the API's signature
        """Run the request on its model and wait for the response, or iterate over responses if *decoupled*."""
        return runtime.current().calls.exec(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:  # noqa: FBT001, FBT002 - the API's signature
        """The same as `exec`, to be awaited."""
        return runtime.current().calls.async_exec(self, decoupled)
