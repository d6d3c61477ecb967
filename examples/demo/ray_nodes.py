"""A Ray cluster of simulated nodes on this machine, which ends with the program."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any, final

import psutil
from typing_extensions import Self

from naiad_operations.deploy.ray_service import HEAD_ENVIRONMENT

# Ray reads these when it is imported. Its ports are open to other machines, so they need a token. Serve kills a proxy
# that is not ready within 5 s, which two busy processors may take.
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="60",
    RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S="60",
    **HEAD_ENVIRONMENT,
)

import ray
from ray import serve
from ray.cluster_utils import Cluster
from server import HOST, free_ports

KILL_SECONDS = 10


@final
class Nodes:
    """Ray's head node and further nodes, each with two CPUs, and Serve; they run inside the `with` block.

    Attributes:
        dashboard: URL of Ray's dashboard.
        url: URL of Serve's HTTP port.
    """

    def __init__(self) -> None:
        # A separate folder, so that other clusters of this machine are not touched. Its path is short, since Ray's
        # sockets are in it, and the path of a socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="naiad-ray-", dir="/tmp"))
        (self.folder / "ray").mkdir()
        os.environ["RAY_TMPDIR"] = os.environ["TMPDIR"] = str(self.folder)
        dashboard, port = free_ports(2)
        self.dashboard = f"http://{HOST}:{dashboard}"
        self.url = f"http://{HOST}:{port}"
        self._dashboard_port, self._port = dashboard, port
        self._workers: dict[str, Any] = {}

    def __enter__(self) -> Self:
        try:
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 2,
                    "include_dashboard": True,
                    "dashboard_host": HOST,
                    "dashboard_port": self._dashboard_port,
                },
            )
            ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
            self.add()
            serve.start(http_options={"host": HOST, "port": self._port})
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end()
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def add(self) -> None:
        """Add a node."""
        node = self._cluster.add_node(num_cpus=2)
        self._workers[node.node_id] = node

    def kill(self, node_id: str) -> None:
        """Kill all processes of a node, as the loss of its machine does: Ray's, the server and the models."""
        node = self._workers.pop(node_id)
        roots = [psutil.Process(each.process.pid) for kind in node.all_processes.values() for each in kind]
        everything = [*roots, *(child for root in roots for child in root.children(recursive=True))]
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everything, KILL_SECONDS)
        node.kill_all_processes(check_alive=False, allow_graceful=False)
        self._cluster.worker_nodes.discard(node)

    def can_kill(self, node_id: str) -> bool:
        """Whether this node may be lost: the cluster ends with its head."""
        return node_id in self._workers

    def _end(self) -> None:
        mine = psutil.Process().children(recursive=True)
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # if Ray fails here, its processes are killed below
                ray.shutdown()
        for process in mine:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(mine, KILL_SECONDS)
