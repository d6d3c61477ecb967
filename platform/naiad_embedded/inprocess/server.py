"""A server in this process: the engine runs on a separate thread, and any other thread may call it.

`loop` describes how callers' threads and the engine's event loop work together.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from naiad.protocol.documents import server_document
from naiad.protocol.model_names import LATEST
from naiad_embedded.inprocess.enums import MetricFormat
from naiad_embedded.inprocess.errors import InternalError, InvalidArgumentError, UnavailableError
from naiad_embedded.inprocess.model import Model, ModelDictionary, ServerBinding, as_plain_dict
from naiad_embedded.inprocess.options import OptionFields, Options
from naiad_embedded.inprocess.running import RunningServer, register_repository, unregister_repository

if TYPE_CHECKING:
    from typing_extensions import Unpack  # `typing` has it from Python 3.11 on; type checkers always know this module

_GRACE_AT_EXIT_SECONDS = 2.0  # time for requests in flight when the program exits; nothing can read their responses

_NOT_UNLOADED = frozenset({"READY", "LOADING", "UNLOADING"})


class Server:
    """Serves model repositories to this process, without a port.

        with naiad.Server(model_repository="models") as server:
            for response in server.model("add_sub").infer(inputs={...}):
                print(response.outputs["OUTPUT0"].to_numpy())

    Models run in separate processes, as with `naiad serve`. The server stops with `stop`, with the `with` block,
    when the program drops its last reference to the server and its models, and with the process, even if that crashes.
    All methods may be called from any thread.
    """

    def __init__(self, options: Options | None = None, **kwargs: Unpack[OptionFields]) -> None:
        """Prepare the server; `start` starts it.

        Args:
            options: The options.
            kwargs: Fields of `Options`, in the place of *options*.
        """
        self.options = Options(**kwargs) if options is None else options
        self._running: RunningServer | None = None
        self._keep_alive: object = None
        self._lock = threading.Lock()

    def __enter__(self) -> Server:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self if self._running is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is None:
            return
        try:
            self.stop()
        except InternalError:
            if error is None:  # else it would hide the error of the block
                raise

    async def __aenter__(self) -> Server:  # noqa: PYI034 - typing.Self needs Python 3.11
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    # -- start and stop -------------------------------------------------------------------------------------------

    def start(
        self,
        wait_until_ready: bool = False,  # noqa: FBT001, FBT002 - the package's signature
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> Server:
        """Start the server and load its models; returns the server itself.

        Args:
            wait_until_ready: Whether to wait until all loaded models are ready.
            polling_interval: Seconds between checks.
            timeout: Seconds to wait; None for no limit.

        Raises:
            InvalidArgumentError: If the server is started, or an option is invalid.
            InternalError: If a repository cannot be read, or, with `exit_on_error`, a model cannot be loaded.
            UnavailableError: If the server is not ready in time; it keeps running.
        """
        with self._lock:
            if self._running is not None:
                raise InvalidArgumentError("Server already started")
            self._running = RunningServer.start(self.options)
            self._keep_alive = self._running.keep_alive()
        deadline = None if timeout is None else time.monotonic() + timeout
        while wait_until_ready and not self.ready():
            if deadline is not None and time.monotonic() >= deadline:
                raise UnavailableError("Timeout before ready")
            time.sleep(polling_interval)
        return self

    def stop(self) -> None:
        """Stop the server, after the requests in flight and open sequences, or after the exit timeout.

        Raises:
            InvalidArgumentError: If the server is not running.
            InternalError: If the exit timeout has expired; the server is stopped all the same.
        """
        with self._lock:
            running = self._server
            self._running = None
        is_complete = running.stop()
        self._keep_alive = None  # not before: without it, the server stops in the background
        if not is_complete:
            raise InternalError("Exit timeout expired. Exiting immediately.")

    @property
    def _server(self) -> RunningServer:
        if self._running is None:
            raise InvalidArgumentError("Server not started")
        return self._running

    # -- health, metadata, models ---------------------------------------------------------------------------------

    def live(self) -> bool:
        """Whether the server is started and not stopping."""
        server = self._server
        return server.loop.call(server.engine.is_live)

    def ready(self) -> bool:
        """Whether the server accepts requests and, with strict readiness, all models are ready."""
        server = self._server
        return server.loop.run(server.engine.check_server_ready())

    def metadata(self) -> dict[str, Any]:
        """The server's name, version and protocol extensions."""
        server = self._server
        return as_plain_dict(server_document(server.loop.call(server.engine.server_metadata)))

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """All metrics, in Prometheus' text format.

        Raises:
            UnsupportedError: If the options disable metrics.
        """
        assert metric_format is MetricFormat.PROMETHEUS
        return self._server.metrics()

    def model(self, model_name: str, model_version: int = LATEST) -> Model:
        """The model with this name; a missing model raises an error when it is used."""
        server = self._server
        return Model(_binding(server), model_name, model_version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:  # noqa: FBT001, FBT002 - the package's signature
        """The models of the repositories, by name and version; with *exclude_not_ready*, only those that are ready."""
        server = self._server
        entries = (
            server.loop.call(server.engine.ready_index)
            if exclude_not_ready
            else server.loop.run(server.engine.repository_index())
        )
        return ModelDictionary(
            Model(
                _binding(server),
                entry.name,
                int(entry.version or LATEST),
                None if entry.state is None else entry.state.value,
                entry.reason or None,
            )
            for entry in entries
        )

    # -- loading --------------------------------------------------------------------------------------------------

    def load(self, model_name: str, parameters: dict[str, str | int | bool | bytes] | None = None) -> Model:
        """Load or reload a model; returns the model. Requires `ModelControlMode.EXPLICIT`.

        Args:
            model_name: The model.
            parameters: `config`: a configuration as JSON that replaces the repository's; `file:<path>`: the content of
                a file of the model.

        Raises:
            TritonError: If the model cannot be loaded.
        """
        server = self._server
        _check_name(model_name)
        server.loop.run(server.engine.load(model_name, _load_parameters(parameters or {})))
        return self.model(model_name)

    def register_model_repository(self, repository_path: str, name_mapping: dict[str, str] | None = None) -> None:
        """Register another repository; `load` can then load its models. Requires `ModelControlMode.EXPLICIT`.

        Args:
            repository_path: The repository.
            name_mapping: New names for some of its models, by directory name.

        Raises:
            UnsupportedError: If the model control mode is not explicit.
            InvalidArgumentError: If the folder does not exist.
            AlreadyExistsError: If the repository is registered, or a model has one of the new names.
        """
        register_repository(self._server, repository_path, name_mapping or {})

    def unregister_model_repository(self, repository_path: str) -> None:
        """Unregister a repository; its loaded models stay loaded. Requires `ModelControlMode.EXPLICIT`.

        Raises:
            UnsupportedError: If the model control mode is not explicit.
            InvalidArgumentError: If the repository is not registered.
        """
        unregister_repository(self._server, repository_path)

    def poll_model_repository(self) -> None:
        """Load, reload and unload models after changes in the repositories, now. Requires `ModelControlMode.POLL`.

        Raises:
            UnavailableError: If the model control mode is not poll.
        """
        server = self._server
        server.loop.run(server.engine.poll())

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,  # noqa: FBT001, FBT002 - the package's signature
        wait_until_unloaded: bool = False,  # noqa: FBT001, FBT002 - the package's signature
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> None:
        """Start to unload a model. Requires `ModelControlMode.EXPLICIT`.

        Args:
            model: The model or its name.
            unload_dependents: Whether to unload models that only this one needs.
            wait_until_unloaded: Whether to wait until its requests are finished and its processes have exited.
            polling_interval: Seconds between checks.
            timeout: Seconds to wait; None for no limit.

        Raises:
            TritonError: If the model cannot be unloaded, or is not unloaded in time.
        """
        server = self._server
        name = model.name if isinstance(model, Model) else model
        _check_name(name)
        server.loop.run(server.engine.unload(name, unload_dependents=unload_dependents))
        deadline = None if timeout is None else time.monotonic() + timeout
        while wait_until_unloaded and self._is_loaded(name):
            if deadline is not None and time.monotonic() >= deadline:
                raise UnavailableError("Timeout before model unloaded")
            time.sleep(polling_interval)

    def _is_loaded(self, name: str) -> bool:
        return any(model.name == name and model.state in _NOT_UNLOADED for model in self.models().values())

    # -- the same for callers with an event loop; a thread waits, so that the loop is not blocked ------------------

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


def _binding(running: RunningServer) -> ServerBinding:
    return ServerBinding(running.engine, running.loop, running.keep_alive())


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a model must be a string, not {name!r}")


def _load_parameters(parameters: dict[str, str | int | bool | bytes]) -> dict[str, str | bytes]:
    return {name: value if isinstance(value, str | bytes) else str(value).lower() for name, value in parameters.items()}


_pid = os.getpid()


@atexit.register
def _stop_all() -> None:
    """Stop the servers that the program has left running; a forked child inherits the handler, but not the threads."""
    if os.getpid() == _pid:
        for running in list(RunningServer.all_running):
            running.stop(_GRACE_AT_EXIT_SECONDS)
