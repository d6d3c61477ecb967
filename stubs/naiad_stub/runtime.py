"""The runtime: what the classes of the API need of the process they run in.

Models construct `pb_utils` objects without saying where they run: `Tensor.allocate`, `InferenceRequest(...).exec()`,
`Logger.log_info`. Behind them is one `Runtime`, an object with a part for each such need. There are three:

- In a guest, `main` builds it from the channel and the segments, and installs it before it imports the model.
- In a test, `naiad.testing` builds one for each model under test. Several models are open in one process.
- Elsewhere (a notebook, an editor, a model's own script) it is `Runtime()`, whose parts report that no server exists.

`current()` finds the runtime, and is the only global state of the API. It looks in two places:

- The runtime that was activated in this context (`activate`). A context variable and not a thread-local one, because a
  coroutine runs on the thread of its event loop with the context of the code that scheduled it. Tests use this.
- Else the runtime that was installed last (`install`). Threads that a model starts itself begin with an empty context,
  so they need a runtime for the process. Guests use this alone.

The base classes of the parts are the parts outside a server. Their texts are the reference's where it has any.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Callable, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple

from naiad_stub.exceptions import TritonModelException

Log = Callable[[int, str, int, str], None]
"""Called with level, file, line and message."""
Allocate = Callable[[int], Tuple[Optional[int], memoryview]]
"""Memory of some bytes for a tensor to be sent: its block in the output segment, None outside one, and its bytes."""

_LETTERS = "IWEI"
"""First letter of a line in Triton's default format, by level; verbose messages have that of INFO."""


def log_to_stderr(level: int, filename: str, line: int, message: str) -> None:
    """Write a line in Triton's default format."""
    import os
    import time

    now = time.time()
    clock = time.strftime("%m%d %H:%M:%S", time.gmtime(now))
    micros = int(now % 1 * 1_000_000)
    place = f"{os.path.basename(filename)}:{line}"
    sys.stderr.write(f"{_LETTERS[level]}{clock}.{micros:06d} {os.getpid()} {place}]  {message}\n")


def allocate_private(size: int) -> Tuple[Optional[int], memoryview]:
    """Memory of this process alone."""
    return None, memoryview(bytearray(size))


class ModelCalls:
    """Calls of a model to other models."""

    def exec(self, request: Any, decoupled: bool) -> Any:  # noqa: ARG002, FBT001 - the API's signature
        """Run *request* on another model and wait for the response; an iterator over responses if *decoupled*."""
        raise TritonModelException("BLS is only supported during the 'execute' function.")

    def async_exec(self, request: Any, decoupled: bool) -> Any:  # noqa: FBT001 - the API's signature
        """The same as an awaitable."""
        return self.exec(request, decoupled)


class ResponseSenders:
    """Senders for the responses to received requests."""

    def sender_of(self, request: Any) -> Any:  # noqa: ARG002 - subclasses use it
        """The sender of *request*."""
        raise TritonModelException(
            "Unable to send response. Response sender has no reference to the decoupled state of the model."
        )

    def is_cancelled(self, handle: Any) -> bool:  # noqa: ARG002 - subclasses use it
        """Whether the client of the request with that handle cancelled it or disconnected."""
        return False


class ModelControl:
    """Loading and unloading of other models."""

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, Any]]) -> None:  # noqa: ARG002 - a guest's subclass uses it
        """Load a model and wait until it is loaded, with a configuration and files if they are given."""
        _reject("Failed to load model", model_name)

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:  # noqa: ARG002, FBT001 - a guest's subclass uses it
        """Begin to unload a model."""
        _reject("Failed to unload model", model_name)

    def is_model_ready(self, model_name: str, model_version: str) -> bool:  # noqa: ARG002 - a guest's subclass uses it
        """Whether a model accepts requests."""
        _reject("Failed to check model readiness", model_name)


def _reject(prefix: str, model_name: str) -> NoReturn:
    raise TritonModelException(f"{prefix}: there is no server here that could answer for '{model_name}'")


class MetricStore:
    """Keeps a model's metrics. Its methods raise TritonModelException with the whole text for the model.

    Attributes:
        instance_name: The model instance, for errors.
    """

    instance_name = ""

    def new_family(self, name: str, description: str, kind: Any) -> Any:  # noqa: ARG002 - subclasses use them
        """Create a family of a `MetricKind`; return its handle."""
        raise TritonModelException(
            f"Error when creating MetricFamily: '{name}' cannot be created, as there is no server here that would show "
            "it"
        )

    def new_metric(self, family: Any, labels: Dict[str, str], buckets: Optional[List[float]]) -> Any:
        """Create a metric of *family*, or find the one with these labels; return its handle."""

    def drop_family(self, family: Any) -> None:
        """Remove a family and its metrics. Called by a finalizer: must not block."""

    def increment(self, metric: Any, value: float) -> None:
        """Add to a counter or gauge."""

    def set(self, metric: Any, value: float) -> None:
        """Set a gauge."""

    def observe(self, metric: Any, value: float) -> None:
        """Count a value in a histogram."""

    def observe_counts(self, metric: Any, total: float, counts: Sequence[int]) -> None:
        """Count values in a histogram that were counted elsewhere: their sum, and how many are in each bucket."""

    def value(self, metric: Any) -> float:
        """The value of a counter or gauge."""
        raise NotImplementedError


class Runtime:
    """What the API needs of one model's process.

    Attributes:
        model_dir: Folder of the model's version in the model repository.
        backend_config: The settings of the model's backend.
        log: Writes a message to the server's log.
        allocate: Allocates memory for `Tensor.allocate`.
        calls: Runs requests on other models.
        senders: Sends responses.
        control: Loads and unloads models.
        metrics: Keeps metrics.
    """

    __slots__ = ("allocate", "backend_config", "calls", "control", "log", "metrics", "model_dir", "senders")

    def __init__(
        self,
        *,
        model_dir: str = "",
        backend_config: Optional[Mapping[str, str]] = None,
        log: Log = log_to_stderr,
        allocate: Allocate = allocate_private,
        calls: Optional[ModelCalls] = None,
        senders: Optional[ResponseSenders] = None,
        control: Optional[ModelControl] = None,
        metrics: Optional[MetricStore] = None,
    ) -> None:
        """A runtime whose parts are those outside a server unless given."""
        self.model_dir = model_dir
        self.backend_config: Mapping[str, str] = backend_config or {}
        self.log = log
        self.allocate = allocate
        self.calls = calls or ModelCalls()
        self.senders = senders or ResponseSenders()
        self.control = control or ModelControl()
        self.metrics = metrics or MetricStore()


_installed: List[Runtime] = [Runtime()]
_active: ContextVar[Optional[Runtime]] = ContextVar("naiad_runtime", default=None)


def current() -> Runtime:
    """The runtime of the model whose code calls this."""
    return _active.get() or _installed[-1]


def install(runtime: Runtime) -> None:
    """Make *runtime* that of the process, until another one is installed or it is uninstalled."""
    _installed.append(runtime)


def uninstall(runtime: Runtime) -> None:
    """Take *runtime* back; the process has the one installed before it, if *runtime* was the last."""
    _installed.remove(runtime)


@contextmanager
def activate(runtime: Runtime) -> Iterator[None]:
    """Make *runtime* the current one in this context."""
    token = _active.set(runtime)
    try:
        yield
    finally:
        _active.reset(token)
