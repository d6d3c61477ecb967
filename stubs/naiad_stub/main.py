"""The guest program: what runs between the interpreter's start and its end.

Arguments: --socket FD --side FD --inputs FD --outputs FD --inputs-size N --outputs-size N --host PID. Everything else
arrives in the LOAD message. The socket's end of stream is the order to go; the kernel kills this process when its
parent dies, so no guest outlives its server, however busy its model is. With --fork-server FD it is no guest itself but
forks some (`naiad_stub.forkserver`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

from naiad_stub import control, logger, metrics, wire
from naiad_stub.asking import Asking
from naiad_stub.channel import Channel, HostGoneError
from naiad_stub.lifeline import die_with, leave_the_end_to_the_host
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
from naiad_stub.metric_reports import ServerMetrics
from naiad_stub.model_loading import LoadError, complete_config
from naiad_stub.readiness import ReadinessThread
from naiad_stub.segment import Segment
from naiad_stub.serving import ModelServer

_INTERNAL = 1
_HEARTBEAT_SECONDS = 0.5
_THREADS_SECONDS = 2.0
"""How long the model's own threads may run on after `finalize`."""
_WARNING_LEVEL = 1


def main(arguments: list[str]) -> int:
    """Serve one model until told to stop; return the exit status."""
    options = dict(zip(arguments[::2], arguments[1::2]))
    if "--fork-server" in options:
        from naiad_stub import forkserver

        forked = forkserver.serve(options)
        if forked is None:
            return 0
        options = dict(zip(forked[::2], forked[1::2]))
    die_with(int(options["--host"]))
    leave_the_end_to_the_host()
    channel = Channel(socket.socket(fileno=int(options["--socket"])))
    os.register_at_fork(after_in_child=channel.forget)
    try:
        return _serve(channel, options)
    except HostGoneError:
        return 1


def _serve(channel: Channel, options: dict[str, str]) -> int:
    import numpy as np

    version = ".".join(map(str, sys.version_info[:3]))
    channel.send(pack(Hello(wire.PROTOCOL_VERSION, os.getpid(), version, np.__version__)))
    logger.sink = lambda level, file, line, text: channel.send(pack(Log(level, file, line, text)))
    load = unpack(TO_MAIN_THREAD, *channel.receive())
    assert isinstance(load, Load), "the host sends nothing else before LOAD"
    spec = load.spec
    # As the reference has it. Libraries that read a command line would take ours for their own, and end us.
    sys.argv[:] = [""]
    asking = Asking(channel, spec["instance_name"])
    control.server = control.ServerControl(asking)
    metrics.server = ServerMetrics(asking)
    with _Heartbeat(channel):
        try:
            if spec["mode"] == "complete":
                channel.send(pack(Completed(complete_config(spec))))
                return 0
            inputs = _segment(options, "--inputs")
            outputs = _segment(options, "--outputs")
            model = ModelServer(channel, inputs, outputs, spec)
        except LoadError as error:
            channel.send(pack(Failed(_INTERNAL, error.message, error.traceback_text)))
            return 0
    is_ready = getattr(model.model, "is_ready", None)
    side = socket.socket(fileno=int(options["--side"]))
    if is_ready is None:
        side.close()
    else:
        ReadinessThread(side, is_ready, model.running_loop).start()
    channel.send(pack(Ready(hasattr(model.model, "execute"), is_ready is not None)))
    channel.poll_busily(int(spec["busy_poll_us"]))
    model.run()
    model.finalize()
    channel.send(pack(Finalized()))
    _end_in_time(channel, spec["instance_name"])
    return 0


def _end_in_time(channel: Channel, instance_name: str) -> None:
    """Have this process end soon, whatever threads the model has left running, which Python would wait for."""

    def end() -> None:
        import time

        time.sleep(_THREADS_SECONDS)
        left = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
        names = ", ".join([f"'{each.name}'" for each in left])
        if not names:  # Python ends by itself, or waits for something else, such as a handler of atexit
            return
        text = f"'{instance_name}' left threads running, which end with it now: {names}"
        with contextlib.suppress(Exception):
            channel.send(pack(Log(_WARNING_LEVEL, "model.py", 0, text)))
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)

    threading.Thread(target=end, name="naiad-end", daemon=True).start()


def _segment(options: dict[str, str], name: str) -> Segment:
    descriptor = int(options[name])
    segment = Segment(descriptor, int(options[f"{name}-size"]))
    os.close(descriptor)
    return segment


class _Heartbeat:
    """Tells the host, while the model loads, that this process is alive: a slow `initialize` is not a hung one."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="naiad-heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(_HEARTBEAT_SECONDS):
            try:
                self._channel.send(pack(Progress()))
            except HostGoneError:
                return
