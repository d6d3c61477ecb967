"""The objects of one backend in this process, shared by the functions of the API.

Each object that a backend gets a handle of is a plain class here; the methods in `functions` work on them.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from naiad_stub.exchange import RequestRecord
from naiad_stub.load_spec import LoadSpec, NativeCode
from naiad_stub.native.errors import INTERNAL, UNSUPPORTED, ApiCallError, DeadHandleError
from naiad_stub.native.handles import HandleTable
from naiad_stub.native.memory import CPU, Heap, Lent, Shape, Text, text_of
from naiad_stub.native.signatures import Function
from naiad_stub.request import InferenceRequest, InferenceTrace
from naiad_stub.tensor import Tensor

Log = Callable[[int, str, int, str], None]


class NativeError:
    """A TRITONSERVER_Error."""

    __slots__ = ("code", "text")

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.text = Text(message)


class NativeMessage:
    """A TRITONSERVER_Message: JSON.

    Attributes:
        text: Its bytes.
        is_owned: Whether the backend may delete it.
    """

    __slots__ = ("is_owned", "text")

    def __init__(self, data: bytes, *, is_owned: bool) -> None:
        self.text = Text(data)
        self.is_owned = is_owned


class BufferAttributes:
    """A TRITONSERVER_BufferAttributes."""

    __slots__ = ("byte_size", "cuda_ipc_handle", "is_owned", "memory_type", "memory_type_id")

    def __init__(self, byte_size: int = 0, *, is_owned: bool = True) -> None:
        self.byte_size = byte_size
        self.memory_type = CPU
        self.memory_type_id = 0
        self.cuda_ipc_handle = 0
        self.is_owned = is_owned


class NativeBackend:
    """The TRITONBACKEND_Backend of this process.

    Attributes:
        name: The backend's name.
        directory: The directory of its library.
        config: Its settings, a message that the backend does not own.
        state: What the backend keeps in it.
        policy: The execution policy that it asked for. It has no effect: each instance has its own process.
    """

    def __init__(self, name: str, directory: str, config: int) -> None:
        self.name = Text(name)
        self.directory = Text(directory)
        self.config = config
        self.state = 0
        self.policy = 0


class LoadedModel:
    """The TRITONBACKEND_Model of this process.

    Attributes:
        config: The configuration as JSON; changed by ModelSetConfig.
        auto_completes: Whether the backend is asked to complete the configuration.
        is_completed: Whether it had the occasion to do so before, in a process that ran for that alone.
        may_complete: Whether this is that process.
        is_initializing: Whether ModelInitialize runs: only then the configuration may be set.
        state: What the backend keeps in it.
    """

    def __init__(self, spec: LoadSpec, code: NativeCode) -> None:
        self.name = Text(spec.model_name)
        self.version = spec.model_version
        self.directory = Text(spec.model_dir)
        self.config = spec.model_config.encode()
        self.auto_completes = code.auto_completes
        self.may_complete = spec.completes_config
        self.is_completed = not self.may_complete and code.may_set_config
        self.is_initializing = False
        self.state = 0


class LoadedInstance:
    """The TRITONBACKEND_ModelInstance of this process.

    Attributes:
        name: Its name.
        kind: Number of its kind.
        device: Its device.
        is_passive: Whether it executes no requests.
        host_policy: Its host policy, a message that the backend does not own.
        profiles: Names of its optimization profiles.
        secondary_devices: Kind and number of each.
        state: What the backend keeps in it.
    """

    def __init__(
        self,
        name: str,
        kind: int,
        device: int,
        host_policy: int,
        *,
        is_passive: bool,
        profiles: List[str],
        secondary_devices: List[Tuple[str, int]],
    ) -> None:
        self.name = Text(name)
        self.kind = kind
        self.device = device
        self.host_policy = host_policy
        self.is_passive = is_passive
        self.profiles = [Text(profile) for profile in profiles]
        self.secondary_devices = [(Text(device_kind), number) for device_kind, number in secondary_devices]
        self.state = 0


class NativeInput:
    """A TRITONBACKEND_Input.

    Attributes:
        tensor: The received tensor.
        address: Address of its bytes; 0 until it is asked for.
        attributes: Handle of its buffer's attributes; 0 until they are asked for.
        name: Its name, once it was lent.
        shape: Its shape, once it was lent.
    """

    __slots__ = ("address", "attributes", "name", "shape", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.attributes = 0
        self.address = 0
        self.name: Optional[Text] = None
        self.shape: Optional[Shape] = None


class NativeRequest:
    """A TRITONBACKEND_Request.

    Attributes:
        request: The received request.
        recipient: Where its responses go.
        handle: Its handle.
        thread: The thread that executes its batch; 0 once Execute has returned.
        inputs: Handles of its inputs by position; 0 for those that were not asked for.
        attached: Handles of other objects that end with it: the table and the handle; None before the first.
        kept: What was lent for it; None before the first.
        parameters: Its parameters, once they were asked for.
    """

    __slots__ = ("attached", "handle", "inputs", "kept", "parameters", "recipient", "request", "thread")

    def __init__(self, request: InferenceRequest, record: RequestRecord, thread: int, delivery: Any) -> None:
        self.request = request
        self.recipient = Recipient(record, delivery)
        self.handle = 0
        self.thread = thread
        self.inputs: Optional[List[int]] = None
        self.attached: Optional[List[Tuple[HandleTable[Any], int]]] = None
        self.kept: Optional[List[Any]] = None
        self.parameters: Optional[List[Any]] = None

    def attach(self, table: HandleTable[Any], handle: int) -> None:
        """Have the object with that handle end with the request."""
        self.attached = [*(self.attached or ()), (table, handle)]

    def keep(self, lent: Any) -> None:
        """Keep what was lent for the request as long as it lives."""
        if self.kept is None:
            self.kept = []
        self.kept.append(lent)


class Recipient:
    """Where responses go: what a response and a factory keep of a request that may be released before they are sent.

    Attributes:
        record: The guest's record of the request.
        delivery: Sends the responses.
        states: Updated states, sent with the response; None before the first.
        positions: Numbers the responses in the order in which statistics of them are reported; None until a response
            factory is made.
    """

    __slots__ = ("delivery", "positions", "record", "states")

    def __init__(self, record: RequestRecord, delivery: Any) -> None:
        self.record = record
        self.delivery = delivery
        self.states: Optional[List[Tensor]] = None
        self.positions: Optional[Iterator[int]] = None


class NativeOutput:
    """A TRITONBACKEND_Output.

    Attributes:
        name: Its name.
        code: Number of its datatype.
        shape: Its shape.
        tensor: The tensor that is sent, once a buffer was asked for.
        address: Address of its buffer.
        size: Bytes of its buffer.
        attributes: See `NativeInput`.
    """

    __slots__ = ("address", "attributes", "code", "name", "shape", "size", "tensor")

    def __init__(self, name: str, code: int, shape: Tuple[int, ...]) -> None:
        self.name = name
        self.code = code
        self.shape = shape
        self.tensor: Optional[Tensor] = None
        self.address = 0
        self.attributes = 0
        self.size = 0


class NativeState:
    """A TRITONBACKEND_State.

    Attributes:
        recipient: Where it is sent to, with the response.
        name: Name of the output that it is sent as.
        code: Number of its datatype.
        shape: Its shape.
        tensor: The tensor that is sent, once its buffer was asked for.
        attributes: See `NativeInput`.
    """

    __slots__ = ("attributes", "code", "name", "recipient", "shape", "tensor")

    def __init__(self, recipient: Recipient, name: str, code: int, shape: Tuple[int, ...]) -> None:
        self.recipient = recipient
        self.attributes = 0
        self.name = name
        self.code = code
        self.shape = shape
        self.tensor: Optional[Tensor] = None


class NativeResponse:
    """A TRITONBACKEND_Response.

    Attributes:
        recipient: Where it goes.
        outputs: Handles and outputs in the order in which they were added.
        parameters: Its parameters by name; None before the first.
        kept: What was lent for it; None before the first.
    """

    __slots__ = ("kept", "outputs", "parameters", "recipient")

    def __init__(self, recipient: Recipient) -> None:
        self.recipient = recipient
        self.outputs: List[Tuple[int, NativeOutput]] = []
        self.parameters: Optional[Dict[str, Any]] = None
        self.kept: Optional[List[Any]] = None

    def set_parameter(self, name: Optional[bytes], value: Any) -> None:
        """Set one parameter.

        Raises:
            ApiCallError: If it has no name.
        """
        text = text_of(name, "the parameter's name")
        if self.parameters is None:
            self.parameters = {}
        self.parameters[text] = value


class HeldTrace:
    """A TRITONSERVER_InferenceTrace.

    Attributes:
        number: Its id.
        parent: The id of its parent; 0 without one.
        trace: The trace of the received request that it belongs to, None without one.
        request_id: The id of that request.
        context: Its OpenTelemetry context, if the backend set one.
        release: The backend's function that takes it back; 0 without one.
        userp: That function's argument.
        kept: What was lent for it.
    """

    __slots__ = ("context", "kept", "number", "parent", "release", "request_id", "trace", "userp")

    def __init__(self, number: int, parent: int, trace: Optional[InferenceTrace]) -> None:
        self.number = number
        self.parent = parent
        self.trace = trace
        self.request_id = ""
        self.context: Optional[str] = None
        self.release = self.userp = 0
        self.kept: List[Any] = []


class Core:
    """All live objects of one backend.

    Attributes:
        log: Writes to the server's log.
        log_levels: A bit for each level that is logged, by its number.
        lent: Texts and shapes that repeat.
        heap: Memory that the backend allocated.
        static: Texts that live as long as the process, by their value.
    """

    def __init__(self, log: Log, *, log_levels: int) -> None:
        self.log = log
        self.log_levels = log_levels
        self.lent = Lent()
        self.heap = Heap()
        self.static: Dict[str, Text] = {}
        self.errors: HandleTable[NativeError] = HandleTable("TRITONSERVER_Error")
        self.messages: HandleTable[NativeMessage] = HandleTable("TRITONSERVER_Message")
        self.buffer_attributes: HandleTable[BufferAttributes] = HandleTable("TRITONSERVER_BufferAttributes")
        self.backends: HandleTable[NativeBackend] = HandleTable("TRITONBACKEND_Backend")
        self.backend_attributes: HandleTable[Any] = HandleTable("TRITONBACKEND_BackendAttribute")
        self.memory_managers: HandleTable[Heap] = HandleTable("TRITONBACKEND_MemoryManager")
        self.models: HandleTable[LoadedModel] = HandleTable("TRITONBACKEND_Model")
        self.instances: HandleTable[LoadedInstance] = HandleTable("TRITONBACKEND_ModelInstance")
        self.servers: HandleTable[Any] = HandleTable("TRITONSERVER_Server")
        self.requests: HandleTable[NativeRequest] = HandleTable("TRITONBACKEND_Request")
        self.inputs: HandleTable[NativeInput] = HandleTable("TRITONBACKEND_Input")
        self.outputs: HandleTable[NativeOutput] = HandleTable("TRITONBACKEND_Output")
        self.responses: HandleTable[NativeResponse] = HandleTable("TRITONBACKEND_Response")
        self.traces: HandleTable[HeldTrace] = HandleTable("TRITONSERVER_InferenceTrace")
        self.states: HandleTable[NativeState] = HandleTable("TRITONBACKEND_State")
        self.factories: HandleTable[Recipient] = HandleTable("TRITONBACKEND_ResponseFactory")
        self.memory_manager = self.memory_managers.add(self.heap)
        self.server = self.servers.add(None)
        self.backend = 0
        self.model = 0

    def new_error(self, code: int, message: str) -> int:
        """The handle of a new error."""
        return self.errors.add(NativeError(code, message))

    def lend_attributes(self, lender: Any, size: int) -> int:
        """The handle of the attributes of a buffer of *size* bytes, which *lender* keeps: the same at each call."""
        if not lender.attributes:
            lender.attributes = self.buffer_attributes.add(BufferAttributes(size, is_owned=False))
        return int(lender.attributes)

    def drop_attributes(self, lender: Any) -> None:
        """End the life of attributes that were lent."""
        if lender is not None and lender.attributes:
            self.buffer_attributes.pop(lender.attributes, None)

    def new_message(self, data: bytes) -> int:
        """The handle of a new message that the backend is to delete."""
        return self.messages.add(NativeMessage(data, is_owned=True))

    def take_error(self, handle: int) -> ApiCallError:
        """End the life of an error that the backend handed over."""
        error = self.errors.pop(handle, None)
        if error is None:
            return ApiCallError(INTERNAL, "the backend returned something that is not a TRITONSERVER_Error")
        return ApiCallError(error.code, _decode(error.text))

    def static_text(self, value: str) -> int:
        """The address of a text that lives as long as the process."""
        text = self.static.get(value)
        if text is None:
            text = self.static[value] = Text(value)
        return text.address

    def guard(self, function: Function, implementation: Callable[..., int]) -> Callable[..., int]:
        """*implementation* in a form that never raises: ctypes would drop the exception, and report success.

        What it returns in place of an exception depends on its result: an error, a null pointer, or nothing.
        """
        name = function.name

        def fail(error: BaseException) -> int:
            if function.result != "Error":
                return 0
            if isinstance(error, DeadHandleError):
                return self.new_error(error.code, f"{name}: {error.message}")
            if isinstance(error, ApiCallError):
                return self.new_error(error.code, error.message)
            return self.new_error(INTERNAL, f"{name} failed: {type(error).__name__}: {error}")

        # As in C++, deleting a null pointer does nothing.
        guarded = _ignoring_null(implementation) if name.endswith("Delete") else implementation
        return _guard_of(len(function.arguments))(guarded, fail)

    def reject(self, name: str, reason: str) -> int:
        """The error for a function that is not implemented."""
        return self.new_error(UNSUPPORTED, f"{name} is not supported: {reason}")


def _ignoring_null(implementation: Callable[..., int]) -> Callable[..., int]:
    def delete(handle: int) -> int:
        return implementation(handle) if handle else 0

    return delete


@lru_cache(maxsize=None)
def _guard_of(count: int) -> Callable[[Callable[..., int], Callable[[BaseException], int]], Callable[..., int]]:
    """What guards a function of *count* arguments: with `*arguments` in its place, a call costs 0.1 us more."""
    names = ", ".join([f"a{number}" for number in range(count)])
    made: Dict[str, Any] = {}
    exec(_GUARD.replace("NAMES", names), made)  # noqa: S102 - text of this module alone
    guard: Callable[[Callable[..., int], Callable[[BaseException], int]], Callable[..., int]] = made["guard"]
    return guard


_GUARD = """
def guard(implementation, fail):
    def call(NAMES):
        try:
            return implementation(NAMES) or 0
        except BaseException as error:
            return fail(error)
    return call
"""


def _decode(text: Text) -> str:
    return ctypes.string_at(text.address, text.size).decode("utf-8", "replace")
