"""The guest program, from the interpreter's start to its end.

Arguments: --socket FD --side FD --bridges FD --inputs FD --outputs FD --inputs-size N --outputs-size N --host PID, and
where frontend processes write inputs --shared FD --shared-size N; --instance and --model, which come first, are only
shown in lists of processes. With
--fork-server FD it is not a guest but a process that forks guests (`naiad_stub.forkserver`).

The start, as messages on the socket:

    guest                                    host
    HELLO protocol, pid, versions    ->
                                     <-      LOAD everything about the model
    PROGRESS every half second       ->      (a start without progress is killed after stub-timeout-seconds)
    READY, or FAILED with the error  ->
                                     <-      EXECUTE ...

Where it says so, LOAD asks only for the model's `auto_complete_config`: the guest sends COMPLETED and exits.

The end: FINALIZE lets the model finalize. The end of the stream means that the host is gone: then this process exits
at once. If the model's code does not return to the channel, the kernel kills this process when its parent exits
(`naiad_stub.lifeline`), so a guest never outlives its server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

from naiad_stub import limits, runtime, wire
from naiad_stub.bridges import Bridges
from naiad_stub.channel import Channel, HostGoneError
from naiad_stub.control import HostControl
from naiad_stub.descriptors import move_up, tolerate_closed_output
from naiad_stub.host_metrics import HostMetrics
from naiad_stub.lifeline import die_with, ignore_termination_signals, raise_oom_score
from naiad_stub.load_spec import LoadSpec, PythonCode
from naiad_stub.messages import (
    TO_MAIN_THREAD,
    Completed,
    Failed,
    Finalized,
    Hello,
    Load,
    Log,
    Progress,
    Ready,
    pack,
    unpack,
)
from naiad_stub.model_loading import LoadError, complete_config, method_of
from naiad_stub.primitives import allocate_lock, sleep, start_thread
from naiad_stub.process_group import accept_leading
from naiad_stub.process_title import rename_process
from naiad_stub.queries import ServerQueries
from naiad_stub.readiness import ReadinessThread
from naiad_stub.segment import Segment
from naiad_stub.serving import ModelServer
from naiad_stub.stacks import write_stack_on_crash, write_stacks_on_signal

_NO_BYTES = memoryview(b"")
_HEARTBEAT_SECONDS = 0.5
_THREADS_SECONDS = 2.0
"""How long the model's own threads may run after `finalize`."""
_WARNING_LEVEL = 1


def main(arguments: list[str]) -> int:
    """Serve one model until the host ends it; return the exit status."""
    write_stack_on_crash()
    tolerate_closed_output()
    _hide_library_path()
    options = dict(zip(arguments[::2], arguments[1::2]))
    is_unprivileged = options.get("--unprivileged") == "1"
    if is_unprivileged:
        limits.forbid_new_privileges()
    if "--fork-server" in options:
        from naiad_stub import forkserver

        if is_unprivileged:
            limits.set_inspectable(is_inspectable=False)
        forked = forkserver.serve(options)
        if forked is None:
            return 0
        options = dict(zip(forked[::2], forked[1::2]))
    die_with(int(options["--host"]))
    ignore_termination_signals()
    if is_unprivileged:  # guests of other models may run as the same user
        limits.set_inspectable(is_inspectable=True)  # a forked guest would not own the file that the next line writes
        raise_oom_score()
        limits.set_inspectable(is_inspectable=False)
    else:
        raise_oom_score()
    guest = os.getpid()
    accept_leading()
    number, side_number, bridges_number = [move_up(int(options[each])) for each in ("--socket", "--side", "--bridges")]
    channel = Channel(socket.socket(fileno=number))
    os.register_at_fork(after_in_child=channel.detach)
    try:
        return _serve(channel, socket.socket(fileno=side_number), socket.socket(fileno=bridges_number), options)
    except HostGoneError:
        if os.getpid() == guest and not _is_open(number):
            sys.stderr.write(
                f"the model closed descriptor {number}, the connection of its process to the server; "
                "close only descriptors that the model has opened\n"
            )
        return 1


def _hide_library_path() -> None:
    """Set LD_LIBRARY_PATH for processes that the model starts.

    The loader of this process has read the folder of the environment's libraries from it. Programs of the machine would
    not run with these libraries.
    """
    found = os.environ.pop("NAIAD_CHILD_LIBRARY_PATH", None)
    if found:
        os.environ["LD_LIBRARY_PATH"] = found
    elif found is not None:
        os.environ.pop("LD_LIBRARY_PATH", None)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _serve(channel: Channel, side: socket.socket, bridges: socket.socket, options: dict[str, str]) -> int:
    import numpy as np

    version = ".".join(map(str, sys.version_info[:3]))
    channel.send(pack(Hello(wire.PROTOCOL_VERSION, os.getpid(), version, np.__version__)))
    load = unpack(TO_MAIN_THREAD, *channel.receive())
    assert isinstance(load, Load), "the host sends nothing else before LOAD"
    spec = LoadSpec.from_message(load)
    rename_process(spec.instance_name, spec.code.file, rewrites_arguments="--instance" not in options)
    # As in the reference. Libraries that read a command line would take our arguments for theirs, and exit.
    sys.argv[:] = [""]
    queries = ServerQueries(channel, spec.instance_name)
    with _Heartbeat(channel):
        try:
            limit = spec.memory_limit
            if spec.completes_config:
                if limit:
                    limits.limit_memory(limit)
                runtime.install(_runtime(queries, spec, None))
                channel.send(pack(Completed(complete_config(spec))))
                return 0
            shared = _segment(options, "--shared").view if "--shared" in options else _NO_BYTES
            inputs, outputs = _segment(options, "--inputs"), _segment(options, "--outputs")
            server = ModelServer(queries, inputs, outputs, spec, shared, Bridges(bridges, channel))
            runtime.install(_runtime(queries, spec, server))
            if limit:
                limits.limit_memory(limit)
            server.load()
        except LoadError as error:
            limits.exit_if_out_of_memory(error.__cause__)
            channel.send(pack(Failed(error.code, error.message, error.traceback_text)))
            return 0
    is_ready = method_of(server.model, "is_ready")
    if is_ready is None:
        side.close()
    else:
        ReadinessThread(side, is_ready, server.running_loop).start()
    if spec.writes_stacks:
        write_stacks_on_signal()
    channel.send(pack(Ready(method_of(server.model, "execute") is not None, is_ready is not None)))
    channel.enable_busy_poll(spec.busy_poll_us)
    server.run()
    server.finalize()
    channel.send(pack(Finalized()))
    _exit_soon(channel, spec.instance_name)
    return 0


def _runtime(queries: ServerQueries, spec: LoadSpec, server: ModelServer | None) -> runtime.Runtime:
    """The runtime of the model; *server* is None while it only completes its configuration."""

    def log(level: int, file: str, line: int, text: str) -> None:
        if queries.channel.is_detached:  # in a child that the model forked, whose stderr is the guest's
            runtime.log_to_stderr(level, file, line, text)
            return
        queries.channel.send(pack(Log(level, file, line, text)))

    return runtime.Runtime(
        model_dir=spec.version_dir,
        backend_config=spec.code.settings if isinstance(spec.code, PythonCode) else None,
        log=log,
        control=HostControl(queries),
        metrics=HostMetrics(queries),
        calls=None if server is None else server.calls,
        senders=None if server is None else server.senders,
        allocate=runtime.allocate_private if server is None else server.blocks.allocate_for_model,
    )


def _exit_soon(channel: Channel, instance_name: str) -> None:
    """Have this process exit in _THREADS_SECONDS, even if the model left threads running."""

    def end() -> None:
        sleep(_THREADS_SECONDS)
        left = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
        names = ", ".join([f"'{each.name}'" for each in left])
        if not names:  # the interpreter is exiting, or runs a handler of atexit
            return
        text = f"'{instance_name}' left threads running, which end with it now: {names}"
        with contextlib.suppress(Exception):
            channel.send(pack(Log(_WARNING_LEVEL, "model.py", 0, text)))
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)

    start_thread(end)


def _segment(options: dict[str, str], name: str) -> Segment:
    descriptor = int(options[name])
    segment = Segment(descriptor, int(options[f"{name}-size"]))
    os.close(descriptor)
    return segment


class _Heartbeat:
    """Sends PROGRESS while the model loads, so that a slow `initialize` does not look like a hang."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        # Both are locked while the model loads.
        self._loading, self._running = allocate_lock(), allocate_lock()

    def __enter__(self) -> None:
        self._loading.acquire()
        self._running.acquire()
        start_thread(self._beat)

    def __exit__(self, *_: object) -> None:
        self._loading.release()
        self._running.acquire()

    def _beat(self) -> None:
        try:
            while not self._loading.acquire(timeout=_HEARTBEAT_SECONDS):
                self._channel.send(pack(Progress()))
        except HostGoneError:
            return
        finally:
            self._running.release()
