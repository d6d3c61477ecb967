"""A replica of Ray Serve whose work is to run one server: it starts it, reports it, reloads its models and stops it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import ray
from ray import serve

from naiad.config.server.command_line import read_options
from naiad.config.server.getopt import split_arguments
from naiad.config.server.options import SERVER_FLAGS, ServerOptions
from naiad.core.errors import NaiadError
from naiad_operations.deploy.ray_service import DIRECTORY
from naiad_operations.ray.directory import REPORT_SECONDS, Report
from naiad_operations.ray.policy import metrics_of
from naiad_operations.supervised_server import SupervisedServer

_log = logging.getLogger("ray.serve")
_NODE_VARIABLE = "NAIAD_RAY_NODE"  # models of the backend `remote` prefer servers of this node
_EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound


class ServerReplica:
    """The deployment of servers. The methods without underscore are those that Serve calls."""

    def __init__(self, flags: Sequence[str], stop_seconds: float) -> None:
        """Start the server; Serve counts the replica as running when its models are loaded."""
        context = serve.get_replica_context()
        self._stop_seconds = stop_seconds
        self._is_stopping = threading.Event()
        self._revision: str | None = None
        self._models: Mapping[str, int] = {}
        self._directory = serve.get_deployment_handle(DIRECTORY, context.app_name)
        node = ray.get_runtime_context().get_node_id()
        self._server = SupervisedServer(flags, {_NODE_VARIABLE: node})
        found, _ = split_arguments(flags, SERVER_FLAGS, "naiad ray")
        self._report = Report(
            replica=context.replica_id.unique_id,
            node=node,
            pid=self._server.pid,
            addresses=_addresses(self._server.ports, read_options(found, environ=os.environ)),
        )
        threading.Thread(target=self._report_always, name="naiad-reports", daemon=True).start()

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Load what has changed in the repositories, if the configuration has a new revision.

        A version that cannot be loaded does not fail the replica: the server keeps the one it has, and the list of
        replicas names the problem.
        """
        revision, first = str(user_config["revision"]), self._revision is None
        if revision == self._revision:
            return
        problems: Sequence[str] = ()
        if not first:  # a server that has just started has loaded everything
            problems = await asyncio.to_thread(self._server.poll)
            for problem in problems:
                _log.error("revision %s: %s", revision, problem)
        self._revision = revision
        self._report = replace(self._report, revision=revision, problems=problems)

    async def check_health(self) -> None:
        """Raise an error if the server has exited or does not answer; Serve then replaces the replica."""
        await asyncio.to_thread(self._server.report)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return metrics_of(self._models)

    async def __del__(self) -> None:
        """Leave the directory, drain and stop the server. Serve calls and awaits this; Python alone does not."""
        self._is_stopping.set()
        try:
            # Without a directory, Serve would keep the call until there is one.
            await asyncio.wait_for(self._directory.leave.remote(self._report.replica), REPORT_SECONDS)
        except Exception as error:  # noqa: BLE001 - any of Ray's errors: the directory may be gone before the servers
            _log.info("the directory was not told that this server stops: %s", error)
        await asyncio.to_thread(self._server.stop, self._stop_seconds)

    def _report_always(self) -> None:
        while not self._is_stopping.wait(REPORT_SECONDS):
            try:
                state = self._server.report()
            except NaiadError:
                return  # the health check fails, too
            self._report = replace(self._report, ready=state["ready"], requests=sum(state["models"].values()))
            self._models = {**dict.fromkeys(self._models, 0), **state["models"]}
            try:
                self._directory.report.remote(asdict(self._report)).result(timeout_s=REPORT_SECONDS * 2)
            except Exception as error:  # noqa: BLE001 - any of Ray's errors: it is being replaced
                _log.info("the directory did not take a report: %s", error)


def _addresses(ports: Mapping[str, int], options: ServerOptions) -> dict[str, str]:
    """The address of each port, under which other machines reach it."""
    scheme = "https" if options.http.tls is not None else "http"
    bound = {
        "http": (f"{scheme}://", options.http.address),
        "openai": (f"{scheme}://", options.openai.address),
        "metrics": ("http://", options.metrics.address),
        "grpc": ("", options.grpc.address),
    }
    node = ray.util.get_node_ip_address()
    addresses = {}
    for name, port in ports.items():
        prefix, address = bound[name]
        host = node if address in _EVERY_ADDRESS else address
        addresses[name] = f"{prefix}[{host}]:{port}" if ":" in host else f"{prefix}{host}:{port}"
    return addresses
