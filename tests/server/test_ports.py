"""Ports that are taken are named before models are loaded."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from naiad.config.server.command_line import read_options
from naiad.config.server.getopt import split_arguments
from naiad.config.server.options import SERVER_FLAGS, ServerOptions
from naiad.core.errors import OptionError
from naiad.server.ports import require_free_ports

FREE = {"http": "--http-port=0", "grpc": "--grpc-port=0", "metrics": "--metrics-port=0"}


def options(*flags: str) -> ServerOptions:
    given = ["--model-repository=.", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", *flags]
    return read_options(split_arguments(given, SERVER_FLAGS, "naiad")[0], environ={})


@pytest.mark.parametrize(("name", "service"), [("http", "HTTP"), ("grpc", "gRPC"), ("metrics", "metrics")])
def test_a_port_that_is_taken_is_named_with_what_to_do(name: str, service: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = [f"--{name}-port={port}", "--metrics-address=127.0.0.1"]
        with pytest.raises(OptionError) as refused:
            require_free_ports(options(*(flag for key, flag in FREE.items() if key != name), *given))
    assert refused.value.message == (
        f"cannot serve {service} at 127.0.0.1:{port}: Address already in use by process {os.getpid()} "
        f"({psutil.Process().name()}); set another address or port with --{name}-address or --{name}-port"
    )
    require_free_ports(options(*(flag for key, flag in FREE.items() if key != name), *given))


def test_a_port_that_is_shared_or_switched_off_is_not_checked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        require_free_ports(options(FREE["grpc"], FREE["metrics"], f"--http-port={port}", "--reuse-http-port=true"))
        require_free_ports(options(FREE["grpc"], FREE["metrics"], f"--http-port={port}", "--allow-http=false"))
