"""Real nginx and HAProxy in front of servers: started with a configuration of the test's own, ended by their ids.

    with nginx(configuration, port, tmp_path):
        ...

Tests that need one are skipped where it is not installed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.server import HOST
from support.system_packages import require
from support.waiting import until

_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_STOP_SECONDS = 10


@contextlib.contextmanager
def nginx(http: str, port: int, work: Path) -> Iterator[None]:
    """nginx with the directives *http* in its block `http`, from when it accepts connections at *port*."""
    work.mkdir(parents=True, exist_ok=True)
    temporary = "\n".join(f"{name}_temp_path {work}/{name};" for name in _TEMPORARY)
    # Started by root, its workers would become a user who may not write to the test's folder.
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = work / "nginx.conf"
    configuration.write_text(
        f"{user}\ndaemon off;\nworker_processes 1;\npid {work}/nginx.pid;\nerror_log {work}/nginx.log info;\n"
        f"events {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\n{temporary}\n{http}\n}}\n"
    )
    with _running(
        [require("nginx"), "-p", str(work), "-e", str(work / "nginx.log"), "-c", str(configuration)], port, work
    ):
        yield


@contextlib.contextmanager
def haproxy(sections: str, port: int, work: Path) -> Iterator[None]:
    """HAProxy with the given sections, from when it accepts connections at *port*."""
    work.mkdir(parents=True, exist_ok=True)
    configuration = work / "haproxy.cfg"
    configuration.write_text(f"global\n    log stdout format raw local0\n{sections}\n")
    with _running([require("haproxy"), "-db", "-f", str(configuration)], port, work):
        yield


@contextlib.contextmanager
def _running(command: list[str], port: int, work: Path) -> Iterator[None]:
    output = work / "proxy.log"
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: process.poll() is not None or _accepts(port), f"{command[0]} to listen")
        assert process.poll() is None, output.read_text()
        yield
    finally:
        process.terminate()  # nginx's first process ends its workers
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
