"""Two servers on two nodes of a Ray cluster, under load: a new version, a killed node, a rolling update.

The nodes are simulated on this machine. Ends with code 0 only if no requests failed but those in flight on the killed
node.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ray_clients import MODEL, Clients, Failure
from rich.box import SIMPLE_HEAD
from rich.table import Table
from telling import console, note, step

from naiad.core.errors import NaiadError
from naiad.ray import ServerList

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 6
REQUESTS = {"version": 2_000, "node": 2_000, "rolling": 10_000}  # at least so many in each phase
LIMIT_SECONDS = 240  # two busy processors take two minutes for what takes ten seconds otherwise
LOOK_SECONDS = 0.1
FLAGS = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1", "--drain-seconds=3"]


class DemoError(Exception):
    """The demo cannot continue."""


class Row(NamedTuple):
    """What happened in one phase."""

    event: str
    answered: int
    failures: Sequence[Failure]
    allowed: int
    seconds: float
    until: str


def main() -> int:
    """Run the demo; returns the exit code."""
    started = time.perf_counter()
    # Raise as Ctrl-C does, so that every `with` block is left and stops its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        from ray_nodes import Nodes
    except ImportError as error:
        console.print(f"The demo needs Ray ({error}): pip install 'naiad[ray]', or `make demo-ray`", style="red")
        return 1
    nodes = Nodes()
    try:
        with tempfile.TemporaryDirectory(prefix="naiad-demo-") as models, nodes:
            rows = run(nodes, Path(models))
    except (NaiadError, DemoError) as error:
        console.print(f"The demo failed: {error}\nRay's logs: {nodes.folder}", style="red", markup=False)
        return 1
    console.print()
    console.print(table(rows))
    bad = [row for row in rows if len(row.failures) > row.allowed]
    for row in bad:
        for failure in row.failures:
            console.print(f"{row.event}: client {failure.client}, {failure.address}: {failure.reason}", style="red")
    verdict = (
        "[red]Requests failed that should not"
        if bad
        else "[green]No requests failed but those in flight on the lost node"
    )
    console.print(f"\n{verdict}[/]; {time.perf_counter() - started:.1f} s in all")
    return 1 if bad else 0


def run(nodes: Any, models: Path) -> list[Row]:
    """Run all steps of the demo."""
    shutil.copytree(ROOT / "examples" / "add_sub" / "models", models, dirs_exist_ok=True)
    servers = ServerList(nodes.url)
    with step("naiad ray up: two servers on two nodes"):
        up(nodes, models, "--revision=1")
        before = ready(servers, lambda each: each["revision"] == "1", "two servers")
        if len({each["node"] for each in before}) != 2:
            raise DemoError("Ray has placed both servers on one node")
        for each in before:
            note(f"{each['addresses']['http']} on node {each['node'][:8]}")
    with Clients(servers, CLIENTS) as clients:
        return [
            new_version(nodes, models, servers, clients),
            killed(nodes, servers, clients),
            rolled(nodes, models, servers, clients),
        ]


def new_version(nodes: Any, models: Path, servers: ServerList, clients: Clients) -> Row:
    """Version 2 of the model, loaded by the running servers."""
    with step("naiad ray up --revision=2: the same servers load a new version of the model"):
        phase = Phase(clients)
        shutil.copytree(models / MODEL / "1", models / MODEL / "2")
        up(nodes, models, "--revision=2")
        ready(servers, lambda each: each["revision"] == "2", "version 2 in both servers")
        return phase.end("new version, loaded in place", REQUESTS["version"], 0, "until both servers have it")


def killed(nodes: Any, servers: ServerList, clients: Clients) -> Row:
    """A node is lost with everything on it."""
    with step("A node is killed (SIGKILL to each of its processes), and a new one joins"):
        lost = next(each for each in servers.servers() if nodes.can_kill(each["node"]))
        phase = Phase(clients)
        nodes.kill(lost["node"])
        ready(servers, lambda each: each["replica"] != lost["replica"], "another server")
        row = phase.end("node killed", REQUESTS["node"], 2 * CLIENTS, "until two servers are ready again")
        nodes.add()
    # A client has one request in flight. It may send the next one to this node, too, while the processes are killed one
    # after the other; a failure elsewhere is a wrong one.
    is_right = {failure.address for failure in row.failures} <= {lost["addresses"]["http"]}
    return row if is_right else row._replace(allowed=0)


def rolled(nodes: Any, models: Path, servers: ServerList, clients: Clients) -> Row:
    """All servers are replaced, as for a new release of naiad or other flags."""
    with step("naiad ray up with another flag: all servers are replaced, new ones first"):
        old = {each["replica"] for each in servers.servers()}
        phase = Phase(clients)
        up(nodes, models, "--revision=2", "--log-verbose=1")
        ready(servers, lambda each: each["replica"] not in old, "two new servers")
        return phase.end("rolling update with surge", REQUESTS["rolling"], 0, "until both servers are replaced")


class Phase:
    """Counts what happens to the clients' requests from now on."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._answered, self._failed = clients.answered, len(clients.failures)
        self._began = time.perf_counter()

    def end(self, event: str, requests: int, allowed: int, until: str) -> Row:
        """The result, once there were enough requests; its time is that of this call."""
        seconds = time.perf_counter() - self._began
        wait(lambda: self._clients.answered - self._answered >= requests, f"{requests} requests")
        failures = self._clients.failures[self._failed :]
        row = Row(event, self._clients.answered - self._answered, failures, allowed, seconds, until)
        note(f"{row.answered:,} requests answered, {len(failures)} failed; {seconds:.1f} s {until}")
        return row


def up(nodes: Any, models: Path, *flags: str) -> None:
    """Run `naiad ray up`, which ends when the application runs."""
    command = [sys.executable, "-m", "naiad", "ray", "up", f"--model-repository={models}", "--min=2"]
    command += [f"--address={nodes.dashboard}", f"--wait-seconds={LIMIT_SECONDS}", *FLAGS, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS + 30)
    if done.returncode != 0:
        raise DemoError(f"`naiad ray up` ended with code {done.returncode}: {done.stderr.strip()}")


def ready(
    servers: ServerList, condition: Callable[[Mapping[str, Any]], bool], what: str
) -> Sequence[Mapping[str, Any]]:
    """Wait for two ready servers that meet the condition, and no others."""

    def found() -> Sequence[Mapping[str, Any]]:
        listed = servers.servers()
        return listed if len(listed) == 2 and all(each["ready"] and condition(each) for each in listed) else ()

    wait(found, what)
    return found()


def wait(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise DemoError(f"waited {LIMIT_SECONDS} s for {what}")
        time.sleep(LOOK_SECONDS)


def table(rows: Sequence[Row]) -> Table:
    """What happened."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    shown.add_column("event")
    for heading in ("requests", "failed", "may fail", "seconds"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for row in rows:
        shown.add_row(
            row.event, f"{row.answered:,}", str(len(row.failures)), str(row.allowed), f"{row.seconds:.1f}", row.until
        )
    return shown


if __name__ == "__main__":
    sys.exit(main())
