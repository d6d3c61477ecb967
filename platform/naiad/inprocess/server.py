"""A server in this process: the engine on a thread of its own, asked from any other."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from types import TracebackType
from typing import Any

from naiad.errors import NaiadError, RepositoryError
from naiad.frontends.kserve_http.documents import server_document
from naiad.inprocess.enums import MetricFormat
from naiad.inprocess.errors import InternalError, InvalidArgumentError, UnavailableError, translated
from naiad.inprocess.model import Model, ModelDictionary, plain
from naiad.inprocess.options import Options
from naiad.inprocess.running import RunningServer, register, unregister
from naiad.protocol.model_names import LATEST

__all__ = ["Server"]

_GRACE_AT_EXIT = 2.0
"""Seconds for requests in flight when the program ends: nobody waits for them any more."""

_HELD_STATES = frozenset({"READY", "LOADING", "UNLOADING"})


class Server:
    """Serves model repositories to this process, without a port.

        with naiad.Server(model_repository="models") as server:
            for response in server.model("add_sub").infer(inputs={...}):
                print(response.outputs["OUTPUT0"].to_numpy())

    Models run in guests of their own as under `naiad serve`; they end with `stop`, with the `with` block, when nobody
    refers to the server or a model of it any more, and with the process, however it ends. All methods may be called
    from any thread.
    """

    def __init__(self, options: Options | None = None, **kwargs: Any) -> None:
        """Prepare; `start` starts.

        Args:
            options: What to do.
            kwargs: Fields of `Options`, instead.
        """
        self.options = Options(**kwargs) if options is None else options
        self._running: RunningServer | None = None
        self._hold: object = None
        self._lock = threading.Lock()

    def __enter__(self) -> Server:  # noqa: PYI034 - typing.Self is 3.11+
        return self if self._running is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self.stop()

    async def __aenter__(self) -> Server:  # noqa: PYI034
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(
        self,
        wait_until_ready: bool = False,  # noqa: FBT001, FBT002 - the package's signature
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> Server:
        """Start the server and load its models; return it.

        Args:
            wait_until_ready: Whether to wait for models that are loaded, but not ready yet.
            polling_interval: Seconds between looks.
            timeout: Seconds to wait for that.

        Raises:
            InvalidArgumentError: If it was started before, or an option cannot be used.
            InternalError: If a repository cannot be read, or a model not be loaded (with `exit_on_error`).
            UnavailableError: If it was not ready in time; it goes on running.
        """
        with self._lock:
            if self._running is not None:
                raise InvalidArgumentError("Server already started")
            self._running = _started(self.options)
            self._hold = self._running.hold()
        deadline = None if timeout is None else time.monotonic() + timeout
        while wait_until_ready and not self.ready():
            if deadline is not None and time.monotonic() >= deadline:
                raise UnavailableError("Timeout before ready")
            time.sleep(polling_interval)
        return self

    def stop(self) -> None:
        """Let sequences that have begun and requests in flight end, for the exit timeout at most; then end the server.

        Raises:
            InvalidArgumentError: If it does not run.
        """
        with self._lock:
            running = self._server
            self._running = None
        running.stop()
        self._hold = None

    @property
    def _server(self) -> RunningServer:
        if self._running is None:
            raise InvalidArgumentError("Server not started")
        return self._running

    # -- questions ------------------------------------------------------------------------------------------------

    def live(self) -> bool:
        """Whether it has started and not begun to stop."""
        server = self._server
        with translated():
            return server.loop.call(server.engine.is_live)

    def ready(self) -> bool:
        """Whether it takes requests, and (strict readiness) every model with it."""
        server = self._server
        with translated():
            return server.loop.run(server.engine.check_server_ready())

    def metadata(self) -> dict[str, Any]:
        """Its name, version and protocol extensions."""
        server = self._server
        with translated():
            return plain(server_document(server.loop.call(server.engine.server_metadata)))

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """All metrics, in Prometheus' text format.

        Raises:
            UnsupportedError: If the options switch them off.
        """
        assert metric_format is MetricFormat.PROMETHEUS
        return self._server.metrics()

    def model(self, model_name: str, model_version: int = LATEST) -> Model:
        """A model by its name; whether there is one shows when it is used."""
        server = self._server
        return Model(server.engine, server.loop, model_name, model_version, hold=server.hold())

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:  # noqa: FBT001, FBT002 - the package's signature
        """All models of the repositories by name and version, or only those that are ready."""
        server = self._server
        with translated():
            entries = (
                server.loop.call(server.engine.ready_index)
                if exclude_not_ready
                else server.loop.run(server.engine.repository_index())
            )
        return ModelDictionary(
            Model(
                server.engine,
                server.loop,
                entry.name,
                int(entry.version or LATEST),
                None if entry.state is None else entry.state.value,
                entry.reason or None,
                hold=server.hold(),
            )
            for entry in entries
        )

    # -- loading --------------------------------------------------------------------------------------------------

    def load(self, model_name: str, parameters: dict[str, str | int | bool | bytes] | None = None) -> Model:
        """Load or reload a model and return it; only with `ModelControlMode.EXPLICIT`.

        Args:
            model_name: The model.
            parameters: `config` is a configuration as JSON to take instead of that in the repository; the content of
                files by `file:<path>`.

        Raises:
            TritonError: If it cannot be loaded.
        """
        server = self._server
        with translated():
            server.loop.run(server.engine.load(model_name, _load_parameters(parameters or {})))
        return self.model(model_name)

    def register_model_repository(self, repository_path: str, name_mapping: dict[str, str] | None = None) -> None:
        """Serve one more repository, whose models can then be loaded; only with `ModelControlMode.EXPLICIT`.

        Args:
            repository_path: The repository.
            name_mapping: Other names for some of its models, by the names of their directories.

        Raises:
            UnsupportedError: In another mode.
            InvalidArgumentError: If there is no such repository.
            AlreadyExistsError: If it is served already, or there is a model of such a name.
        """
        with translated():
            register(self._server, repository_path, name_mapping or {})

    def unregister_model_repository(self, repository_path: str) -> None:
        """Serve a repository no more; what is loaded of it stays loaded. Only with `ModelControlMode.EXPLICIT`.

        Raises:
            UnsupportedError: In another mode.
            InvalidArgumentError: If it is not served.
        """
        with translated():
            unregister(self._server, repository_path)

    def poll_model_repository(self) -> None:
        """Look for changes in the repositories now, and follow them; only with `ModelControlMode.POLL`.

        Raises:
            UnavailableError: In another mode.
        """
        server = self._server
        with translated():
            server.loop.run(server.engine.poll())

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,  # noqa: FBT001, FBT002 - the package's signature
        wait_until_unloaded: bool = False,  # noqa: FBT001, FBT002
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> None:
        """Begin to unload a model; only with `ModelControlMode.EXPLICIT`.

        Args:
            model: The model or its name.
            unload_dependents: Whether what only it needs is unloaded, too.
            wait_until_unloaded: Whether to wait until its last request is answered and its guests are gone.
            polling_interval: Seconds between looks.
            timeout: Seconds to wait for that.

        Raises:
            TritonError: If it cannot be unloaded, or not in time.
        """
        server = self._server
        name = model.name if isinstance(model, Model) else model
        with translated():
            server.loop.run(server.engine.unload(name, unload_dependents=unload_dependents))
        deadline = None if timeout is None else time.monotonic() + timeout
        while wait_until_unloaded and self._is_held(name):
            if deadline is not None and time.monotonic() >= deadline:
                raise UnavailableError("Timeout before model unloaded")
            time.sleep(polling_interval)

    def _is_held(self, name: str) -> bool:
        return any(model.name == name and model.state in _HELD_STATES for model in self.models().values())

    # -- the same for callers with an event loop, which goes on meanwhile -----------------------------------------

    async def async_start(self) -> Server:
        """As `start`."""
        return await asyncio.to_thread(self.start)

    async def async_stop(self) -> None:
        """As `stop`."""
        await asyncio.to_thread(self.stop)

    async def async_load(self, model_name: str, parameters: dict[str, str | int | bool | bytes] | None = None) -> Model:
        """As `load`."""
        return await asyncio.to_thread(self.load, model_name, parameters)

    async def async_unload(self, model: str | Model, *, unload_dependents: bool = False) -> None:
        """As `unload`, waiting until the model is unloaded."""
        await asyncio.to_thread(self.unload, model, unload_dependents, wait_until_unloaded=True)


def _started(options: Options) -> RunningServer:
    try:
        running = RunningServer.start(options)
    except RepositoryError as error:
        raise InternalError(error.message) from error  # as the reference has it, whatever is wrong with it
    except NaiadError:
        with translated():
            raise
    return running


def _load_parameters(parameters: dict[str, str | int | bool | bytes]) -> dict[str, str | bytes]:
    return {name: value if isinstance(value, str | bytes) else str(value).lower() for name, value in parameters.items()}


_pid = os.getpid()


@atexit.register
def _stop_all() -> None:
    """End what the program has left running; not in a fork of it, whose copies of servers are none."""
    if os.getpid() == _pid:
        for running in list(RunningServer.alive):
            running.stop(_GRACE_AT_EXIT)
