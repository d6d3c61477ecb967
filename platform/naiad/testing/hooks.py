"""The stub's hooks, led to the model under test that is at work.

A guest has one model, so the stub's hooks are variables of its modules. Here several models share them: what a thread
does while it is inside a model's method belongs to that model, and what other threads do to the model that was entered
last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from naiad_stub import control, logger, metrics
from naiad_stub import request as requests
from naiad_stub.exceptions import TritonModelException

from naiad.testing.control import ControlDesk
from naiad.testing.fakes import run_in_executor
from naiad.testing.guest import is_cancelled, sender_of
from naiad.testing.metrics import MetricDesk, MetricHook


class Active(Protocol):
    """A model under test, as the hooks see it."""

    def call(self, request: requests.InferenceRequest, *, decoupled: bool) -> Any:
        """Answer a call to another model."""

    def log(self, level: int, file: str, line: int, message: str) -> None:
        """Note a message."""

    @property
    def control(self) -> ControlDesk:
        """What it does to other models."""

    @property
    def metrics(self) -> MetricDesk:
        """Its metrics."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.models: list[Active] = []


_thread = _Thread()
_open: list[Active] = []
_lock = threading.RLock()
_before: list[Any] = []


@contextmanager
def inside(model: Active) -> Iterator[None]:
    """What this thread does belongs to *model*."""
    _thread.models.append(model)
    try:
        yield
    finally:
        _thread.models.pop()


def opened(model: Active) -> None:
    """Lead the hooks here from the first model on."""
    with _lock:
        if not _open:
            _before[:] = [requests.calls, requests.is_cancelled, logger.sink, control.server, metrics.server]
            requests.calls, requests.is_cancelled = _Calls(), is_cancelled
            logger.sink, control.server = _log, _Control()
            metrics.server = MetricHook(_metric_desk)
        _open.append(model)


def closed(model: Active) -> None:
    """Set the hooks as they were after the last model."""
    with _lock:
        _open.remove(model)
        if not _open:
            requests.calls, requests.is_cancelled, logger.sink, control.server, metrics.server = _before
            _before.clear()


def active() -> Active | None:
    """The model at work on this thread."""
    if _thread.models:
        return _thread.models[-1]
    return _open[-1] if _open else None


def _metric_desk() -> MetricDesk | None:
    model = active()
    return model.metrics if model is not None else None


def _log(level: int, file: str, line: int, message: str) -> None:
    model = active()
    if model is not None:
        model.log(level, file, line, message)


class _Calls(requests.Calls):
    """Calls of all models under test."""

    def exec(self, request: requests.InferenceRequest, decoupled: bool) -> Any:  # noqa: FBT001 - the hook's signature
        """Run *request* on the fake of its model."""
        return self._bound(request, decoupled=decoupled)()

    def async_exec(self, request: requests.InferenceRequest, decoupled: bool) -> Any:  # noqa: FBT001 - likewise
        """Likewise on another thread, so that calls awaited together overlap."""
        return run_in_executor(self._bound(request, decoupled=decoupled))

    def get_response_sender(self, request: requests.InferenceRequest) -> Any:
        """The sender that answers *request*."""
        return sender_of(request)

    def _bound(self, request: requests.InferenceRequest, *, decoupled: bool) -> Callable[[], Any]:
        """The call, belonging to the model at work here and now."""
        model = active()
        if model is None:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        caller = model

        def run() -> Any:
            with inside(caller):
                return caller.call(request, decoupled=decoupled)

        return run


class _Control(control.Control):
    """Model control by all models under test."""

    def load_model(self, model_name: str, config: str, files: dict[str, Any] | None) -> None:
        """Note a load."""
        self._desk().load(model_name, config, files)

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:  # noqa: FBT001 - the hook's signature
        """Note an unload."""
        self._desk().unload(model_name, unload_dependents=unload_dependents)

    def is_model_ready(self, model_name: str, model_version: str) -> bool:  # noqa: ARG002 - fakes have no versions
        """Whether a fake counts as ready."""
        return self._desk().is_ready(model_name)

    def _desk(self) -> ControlDesk:
        model = active()
        if model is None:
            raise TritonModelException("model control is only supported while a model is under test")
        return model.control
