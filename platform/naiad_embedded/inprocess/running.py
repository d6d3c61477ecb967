"""A started server: the thread of its event loop, its engine, and its services.

A server stops when the first of these happens: `Server.stop`; the program drops its last reference to a `KeepAlive` of
the server; the interpreter exits (`atexit` in `server`). Guests end with the process in any case, because the kernel
kills them with it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from naiad.config.server.options import ModelControlMode, ServerOptions
from naiad.core.errors import Code, NaiadError, RepositoryError, UnsupportedRequestError
from naiad.core.logs import ActiveLog, configure
from naiad.core.standard_streams import open_standard_streams
from naiad.engine.engine import Engine
from naiad.frontends.extensions import Extensions
from naiad.frontends.log_settings import NullLog
from naiad.frontends.metrics.server import MetricsFrontend
from naiad.models.artifacts.policy import artifact_policy
from naiad.models.repository.repositories import local_repository
from naiad.server.app import build_engine, build_loader
from naiad.server.listeners import metrics_frontend
from naiad_embedded.inprocess.errors import InternalError, InvalidArgumentError, UnsupportedError, translate_errors
from naiad_embedded.inprocess.loop import LoopThread
from naiad_embedded.inprocess.metrics import program_families
from naiad_embedded.inprocess.options import Options, log_settings, server_options

# A library must not print unless the program configures logging. Without this handler, Python's handler of last resort
# would print warnings to stderr.
logging.getLogger("naiad").addHandler(logging.NullHandler())


class RunningServer:
    """A server between `Server.start` and `Server.stop`."""

    all_running: ClassVar[set[RunningServer]] = set()

    def __init__(self, options: ServerOptions, loop: LoopThread, log: ActiveLog | None) -> None:
        self.options = options
        self.loop = loop
        # State that all services of this server share, such as registered memory regions.
        self.extensions = Extensions(log=log or NullLog())
        self.engine: Engine  # the engine; only the loop's thread may call it
        self._log = log
        self._stack = AsyncExitStack()
        self._has_engine = self._is_stopped = False
        self._keep_alive: weakref.ref[_KeepAlive] | None = None
        self._lock = threading.Lock()

    @staticmethod
    def start(given: Options) -> RunningServer:
        options = server_options(given)
        open_standard_streams()  # or sockets of guests may get the numbers that these have as streams of the guests
        running = RunningServer(options, LoopThread("naiad-engine"), _open_log(given))
        try:
            failures = running.loop.run(running._start_engine())
            if failures and options.general.exit_on_error:
                reasons = "\n".join(f"  {failure.message}" for failure in failures)
                raise InternalError(f"failed to load all models\n{reasons}")
        except BaseException:
            running.stop()
            raise
        RunningServer.all_running.add(running)
        return running

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def keep_alive(self) -> object:
        """An object that keeps the server running; the server stops when the last reference to it is dropped.

        `Server` and every `Model` refer to it. They cannot serve for this themselves: the loop's thread refers to the
        `RunningServer`, which therefore is never garbage.
        """
        keep_alive = None if self._keep_alive is None else self._keep_alive()
        if keep_alive is None:
            keep_alive = _KeepAlive()
            self._keep_alive = weakref.ref(keep_alive)
            # Not at exit: `server` stops servers then, with a time limit.
            weakref.finalize(keep_alive, _stop_in_background, self).atexit = False
        return keep_alive

    async def _start_engine(self) -> list[NaiadError]:
        try:
            self.engine = build_engine(self.options, build_loader(self.options))
            self._has_engine = True
            self._stack.push_async_callback(self.engine.stop)
            self._stack.push_async_callback(self.extensions.background.close)
            return await self.engine.start()
        except RepositoryError as error:
            raise InternalError(error.message) from error  # the reference's class for every error of a repository

    def stop(self, grace: float | None = None) -> bool:
        """Stop the services, the models and the thread; a second call does nothing.

        Requests in flight have *grace* seconds, or with None the exit timeout of the options. Returns whether
        everything had ended before that time was over; else the rest was ended by force.
        """
        with self._lock:  # a second caller waits until the first has stopped the server
            if self._is_stopped:
                return True
            self._is_stopped = True
            RunningServer.all_running.discard(self)
            return self._stop(grace)

    def _stop(self, grace: float | None) -> bool:
        try:
            return self.loop.run(self._close(grace))
        finally:
            self.loop.close()
            if self._log is not None:
                self._log.close()

    async def _close(self, grace: float | None) -> bool:
        # Sequences may continue for the exit timeout, as in `naiad serve`. With a *grace*, the program exits and cannot
        # continue them.
        if grace is None and self._has_engine:
            await self.engine.finish_sequences()
        # Guests that are still running after the grace are killed by the kernel, with this process.
        try:
            await asyncio.wait_for(self._stack.aclose(), grace)
        except asyncio.TimeoutError:
            return False
        return not self._has_engine or not self.engine.has_overrun

    def start_service(self, make: Callable[[], Any], *grace: float) -> tuple[int, Any]:
        """Make a frontend on the loop and start it; it stops with the server at the latest. Returns its port, too."""

        async def begin() -> tuple[int, Any]:
            frontend = make()
            port = await frontend.start()
            self._stack.push_async_callback(frontend.stop, *grace)
            return port, frontend

        return self.loop.run(begin())

    def stop_service(self, frontend: Any, *grace: float) -> None:
        with self._lock:
            if not self._is_stopped:  # else the service is, too
                self.loop.run(frontend.stop(*grace))

    def metrics_frontend(self, address: str = "", port: int = 0) -> MetricsFrontend:
        if not self.options.metrics.is_enabled:
            raise UnsupportedError("metrics not supported")
        options = replace(self.options, metrics=replace(self.options.metrics, address=address, port=port))
        return metrics_frontend(self.engine, options, program_families)

    def metrics(self) -> str:
        """All metrics, in Prometheus' text format."""
        return self.loop.call(self.metrics_frontend().scrape).decode()


class _KeepAlive:
    __slots__ = ("__weakref__",)


def _stop_in_background(running: RunningServer) -> None:
    # The last reference may be dropped on any thread. On the loop's thread, `stop` would wait for itself.
    threading.Thread(target=running.stop, name="naiad-stop", daemon=True).start()


def _open_log(options: Options) -> ActiveLog | None:
    settings = log_settings(options)
    if settings is None:
        return None
    try:
        return configure(settings, of_libraries=False, is_queued=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"Options.log_file={options.log_file}: cannot be opened: {error.strerror or error}"
        ) from error


# -- repositories of a running server. Texts: CORE src/model_repository_manager/ ---------------------------------------


@translate_errors()
def register_repository(server: RunningServer, path: str, names: Mapping[str, str]) -> None:
    """Serve another repository; see `Server.register_model_repository`.

    UnsupportedError if the model control mode is not explicit; InvalidArgumentError if the folder does not exist,
    AlreadyExistsError if the repository or one of its names is registered already.
    """
    _require_explicit(server, "registration")
    if not Path(path).is_dir():
        raise RepositoryError(f"failed to register '{path}', repository not found")
    repositories = server.engine.repositories
    if str(Path(path).absolute()) in repositories.locations:
        raise RepositoryError(f"model repository '{path}' has already been registered", code=Code.ALREADY_EXISTS)
    existing = {files.name for files in repositories.known_models()}
    for directory, name in names.items():
        if name in existing:
            raise RepositoryError(
                f"failed to register '{path}': '{directory}' cannot be mapped to '{name}', as there is a model of that "
                "name",
                code=Code.ALREADY_EXISTS,
            )
    repositories.add(local_repository(Path(path), artifact_policy(server.options)), names)


@translate_errors()
def unregister_repository(server: RunningServer, path: str) -> None:
    """Stop serving a repository; see `Server.unregister_model_repository`.

    UnsupportedError if the model control mode is not explicit; InvalidArgumentError if it is not registered.
    """
    _require_explicit(server, "unregistration")
    if not server.engine.repositories.remove(str(Path(path).absolute())):
        raise RepositoryError(f"failed to unregister '{path}', repository not found")


def _require_explicit(server: RunningServer, what: str) -> None:
    if server.options.models.control_mode is not ModelControlMode.EXPLICIT:
        raise UnsupportedRequestError(f"repository {what} is not allowed if model control mode is not EXPLICIT")
