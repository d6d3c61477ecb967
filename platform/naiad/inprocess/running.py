"""A started server: its event loop's thread, its engine, and what is started on them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from naiad.app import build_engine, build_loader
from naiad.config.server.options import ModelControlMode, ServerOptions
from naiad.engine.engine import Engine
from naiad.errors import Code, NaiadError, RepositoryError, UnsupportedRequestError
from naiad.frontends.extensions import Extensions
from naiad.frontends.log_settings import NoLog
from naiad.frontends.metrics.server import MetricsFrontend
from naiad.inprocess.errors import InternalError, InvalidArgumentError, UnsupportedError, translated
from naiad.inprocess.loop import LoopThread
from naiad.inprocess.metrics import own_families
from naiad.inprocess.options import Options, log_settings, server_options
from naiad.listeners import metrics_frontend
from naiad.logs import ActiveLog, configure
from naiad.repository.repositories import LocalRepository

__all__ = ["RunningServer", "register", "unregister"]

# A program that sets up no logging gets no lines from us, as the package's; one that does gets them where it wants.
logging.getLogger("naiad").addHandler(logging.NullHandler())


class RunningServer:
    """What `Server.start` makes and `Server.stop` ends.

    Attributes:
        loop: The thread that everything runs on.
        engine: The engine, to be called on that thread.
        options: The server's options.
        extensions: What all services of this server share.
        alive: All that run.
    """

    alive: ClassVar[set[RunningServer]] = set()

    def __init__(self, options: ServerOptions, loop: LoopThread, log: ActiveLog | None) -> None:
        self.options = options
        self.loop = loop
        self.extensions = Extensions(log=log or NoLog())
        self.engine: Engine
        self._log = log
        self._stack = AsyncExitStack()
        self._has_engine = self._is_stopped = False
        self._held: weakref.ref[_Hold] | None = None
        self._lock = threading.Lock()

    @staticmethod
    def start(given: Options) -> RunningServer:
        """Start a server and load its models.

        Raises:
            TypeError: If an option has the wrong type.
            NaiadError: If a repository cannot be read.
            TritonError: If an option cannot be used, or (exit on error) a model not be loaded.
        """
        options = server_options(given)
        running = RunningServer(options, LoopThread("naiad-engine"), _open_log(given))
        try:
            failures = running.loop.run(running._start_engine())
            if failures and options.general.exit_on_error:
                raise _not_loaded(failures)
        except BaseException:
            running.stop()
            raise
        RunningServer.alive.add(running)
        return running

    def hold(self) -> object:
        """Something whose end stops the server, if nobody has stopped it: for all who would miss it."""
        held = None if self._held is None else self._held()
        if held is None:
            held = _Hold()
            self._held = weakref.ref(held)
            weakref.finalize(held, _abandoned, self).atexit = False
        return held

    async def _start_engine(self) -> list[NaiadError]:
        self.engine = build_engine(self.options, build_loader(self.options))
        self._has_engine = True
        self._stack.push_async_callback(self.engine.stop)
        return await self.engine.start()

    def stop(self, grace: float | None = None) -> None:
        """End services, models and the thread; a second time, nothing.

        Args:
            grace: Seconds that requests in flight have; the options' exit timeout unless given.
        """
        with self._lock:  # whoever stops it a second time waits until it has stopped
            if not self._is_stopped:
                self._is_stopped = True
                RunningServer.alive.discard(self)
                self._end(grace)

    def _end(self, grace: float | None) -> None:
        try:
            self.loop.run(self._close(grace))
        finally:
            self.loop.close()
            if self._log is not None:
                self._log.close()

    async def _close(self, grace: float | None) -> None:
        # As a server does; but a program that ends has nobody left who would go on with a sequence.
        if grace is None and self._has_engine:
            await self.engine.finish_sequences()
        # What is left after that ends with the loop's thread: the kernel ends guests with it.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stack.aclose(), grace)

    def serve(self, start: Callable[[], Awaitable[int]], stop: Callable[[], Awaitable[None]]) -> int:
        """Start a service on the loop, which ends with the server at the latest; return its port."""

        async def begin() -> int:
            port = await start()
            self._stack.push_async_callback(stop)
            return port

        with translated():
            return self.loop.run(begin())

    def end(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Stop a service; not needed before `stop`."""

        async def finish() -> None:
            await stop()

        with translated():
            self.loop.run(finish())

    def metrics_frontend(self, address: str = "", port: int = 0) -> MetricsFrontend:
        """A service of all metrics, not started.

        Raises:
            UnsupportedError: If the options switch them off.
        """
        if not self.options.metrics.is_enabled:
            raise UnsupportedError("metrics not supported")
        options = replace(self.options, metrics=replace(self.options.metrics, address=address, port=port))
        return metrics_frontend(self.engine, options, own_families)

    def metrics(self) -> str:
        """All metrics now."""
        page = self.metrics_frontend()
        with translated():
            return self.loop.call(page.scrape).decode()


class _Hold:
    """Referred to by whoever needs the server; a server's own threads refer to the server itself."""

    __slots__ = ("__weakref__",)


def _abandoned(running: RunningServer) -> None:
    # On a thread, as the last reference may go anywhere, also on the server's own thread.
    threading.Thread(target=running.stop, name="naiad-abandoned", daemon=True).start()


def _open_log(options: Options) -> ActiveLog | None:
    settings = log_settings(options)
    if settings is None:
        return None
    try:
        return configure(settings, of_libraries=False)
    except OSError as error:
        raise InvalidArgumentError(
            f"Options.log_file={options.log_file}: cannot be opened: {error.strerror or error}"
        ) from error


def _not_loaded(failures: list[NaiadError]) -> InternalError:
    reasons = "\n".join(f"  {failure.message}" for failure in failures)
    return InternalError(f"failed to load all models\n{reasons}")


def register(server: RunningServer, path: str, names: Mapping[str, str]) -> None:
    """Serve one more repository. See `Server.register_model_repository`.

    Raises:
        UnsupportedRequestError: In another mode than explicit.
        RepositoryError: If there is no such repository, or it or one of its models is there already.
    """
    _require_explicit(server, "registration")
    if not Path(path).is_dir():
        raise RepositoryError(f"failed to register '{path}', repository not found")
    repositories = server.engine.repositories
    repository = LocalRepository(Path(path).absolute())
    if repository.location in repositories.locations:
        raise RepositoryError(f"model repository '{path}' has already been registered", code=Code.ALREADY_EXISTS)
    known = {files.name for files in repositories.known_models()}
    for directory, name in names.items():
        if name in known:
            raise RepositoryError(
                f"failed to register '{path}': '{directory}' cannot be mapped to '{name}', as there is a model of that "
                "name",
                code=Code.ALREADY_EXISTS,
            )
    repositories.add(repository, names)


def unregister(server: RunningServer, path: str) -> None:
    """Serve a repository no more. See `Server.unregister_model_repository`.

    Raises:
        UnsupportedRequestError: In another mode than explicit.
        RepositoryError: If it is not served.
    """
    _require_explicit(server, "unregistration")
    if not server.engine.repositories.remove(str(Path(path).absolute())):
        raise RepositoryError(f"failed to unregister '{path}', repository not found")


def _require_explicit(server: RunningServer, what: str) -> None:
    if server.options.models.control_mode is not ModelControlMode.EXPLICIT:
        raise UnsupportedRequestError(f"repository {what} is not allowed if model control mode is not EXPLICIT")
