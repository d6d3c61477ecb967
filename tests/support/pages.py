"""Follows a page of the documentation: types its commands, and compares what they print with what the page shows.

A page that is followed has its commands in blocks of `sh`, and what a command prints in the block of `text` after it.
A line `...` of the output stands for any lines, and `...` within a line for any characters. A block that begins with
`naiad serve`, `tritonserver` or a bundle's `run` with flags starts a server in the place of the last one at the same
port; the text after it is in its log.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.server import TRITONSERVER, ServerProcess

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SERVERS = ("naiad serve ", "tritonserver ", "shop/run --")
_NO_PORTS = "--http-port=0 --grpc-port=0 --metrics-port=0"
_PORT_FLAGS = {"--http-port": 8000, "--grpc-port": 8001, "--metrics-port": 8002}


@dataclass(frozen=True)
class Step:
    """Commands of a page, and what they print; None where the page shows nothing."""

    commands: str
    printed: str | None

    @property
    def is_server(self) -> bool:
        return self.commands.startswith(_SERVERS)


def languages(page: str) -> list[str]:
    """The languages of the blocks of a page; "" for blocks without one."""
    return [language for language, _ in _BLOCK.findall(page)]


def steps(page: str) -> list[Step]:
    """The steps of a page."""
    blocks = [(language, text) for language, text in _BLOCK.findall(page) if language in {"sh", "text"}]
    found = []
    for number, (language, text) in enumerate(blocks):
        if language == "sh":
            following = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            found.append(Step(text, following[1] if following[0] == "text" else None))
    return found


def is_as_shown(printed: str, shown: str) -> bool:
    """Whether a text is what a page shows."""
    lines = [
        "(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"[ ]*\n"
        for line in shown.splitlines()
    ]
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch("".join(lines), text) is not None


def follow(
    page: Path,
    folder: Path,
    environ: Mapping[str, str],
    timeout: float = 200,
    *,
    done: Container[str] = (),
    instead: Mapping[str, str] | None = None,
) -> Iterator[tuple[Step, str]]:
    """Follow a page in a folder; yields each step with what it has printed, after it was compared with the page.

    Args:
        page: The page.
        folder: Where its reader is; it should be empty.
        environ: Variables of the reader beside those of the tests; PATH finds `naiad`.
        timeout: Bound of each step, in seconds.
        done: Commands that the caller has already typed, or that nobody is to type.
        instead: Addresses of the page, with those that the test has in their place.
    """
    variables = {**os.environ, "HOME": str(folder), "NAIAD_STORE": str(folder / ".store"), **environ}
    servers: dict[int, ServerProcess] = {}
    addresses = dict(instead or {})
    try:
        for step in steps(page.read_text(encoding="utf-8")):
            if step.commands in done:
                continue
            if step.is_server:
                commands = _replaced(step.commands, instead or {})
                port, server, found = _server(commands, folder / f".server-{len(servers)}", variables, timeout)
                if port in servers:
                    servers.pop(port).stop()
                servers[port] = server
                addresses |= found
                server.start()
                server.wait_health("ready")
                printed = _replaced(server.log, addresses, back=True)
                assert step.printed is None or is_as_shown(printed, f"...\n{step.printed}...\n"), printed
            else:
                # Another server of this machine may listen on the ports of the page.
                commands = re.sub(r"\bnaiad doctor (?=\w)", f"naiad doctor {_NO_PORTS} ", step.commands)
                printed = _replaced(
                    _printed_by(_replaced(commands, addresses), folder, variables, timeout), addresses, back=True
                )
                assert step.printed is None or is_as_shown(printed, step.printed), f"{step.commands}\n{printed}"
            yield step, printed
        for server in servers.values():
            server.stop()
    finally:
        for server in servers.values():
            server.kill()


def _replaced(text: str, addresses: Mapping[str, str], *, back: bool = False) -> str:
    """A text with the addresses of the test instead of those of the page, or the reverse."""
    for address, instead in addresses.items():
        text = text.replace(instead, address) if back else text.replace(address, instead)
    return text


def _printed_by(commands: str, folder: Path, variables: Mapping[str, str], timeout: float) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _server(
    command: str, work: Path, variables: Mapping[str, str], timeout: float
) -> tuple[int, ServerProcess, dict[str, str]]:
    """HTTP port of a page's command, its server on free ports, and the addresses of the page with those to use instead."""
    words = shlex.split(command)
    program = words[:2] if words[0] == "naiad" else words[:1]
    ports = dict(_PORT_FLAGS)
    flags = []
    for word in words[len(program) :]:
        name, _, value = word.partition("=")
        if name in ports:
            ports[name] = int(value)
        else:
            flags.append(word)
    found = shutil.which(program[0], path=variables["PATH"])
    if program[0] in {"naiad", "tritonserver"} and found and Path(found).parent == TRITONSERVER.parent:
        program = [str(TRITONSERVER)]  # `naiad serve` is the same; servers of this one are forked, and start sooner
    changes = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    server = ServerProcess(
        None, *flags, work=work, command=program, environ=changes, timeout=timeout, directory=work.parent
    )
    urls = (server.http_url, server.grpc_url, server.metrics_url)
    addresses = {f"localhost:{port}": url for port, url in zip(ports.values(), urls, strict=True)}
    return ports["--http-port"], server, addresses
