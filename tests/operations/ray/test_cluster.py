"""naiad on a Ray cluster of two simulated nodes: a killed replica, a new revision and a second application, under load.

CI installs Ray for these (`make .venv/.ready-demo-ray`). It is not among the developers' packages, since it is 490 MB:
without it these are skipped. `-s` shows the figures of docs/benchmarks.md.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from support.late_import import needs_ray
from support.once import one_at_a_time
from support.server import free_ports, still_running
from support.waiting import until

from naiad_operations.deploy.ray_service import describe_serving, serve_config

pytestmark = [
    needs_ray,
    pytest.mark.endurance,
    pytest.mark.server,
    pytest.mark.timeout(1000),  # the first one also waits for the demonstration of Ray
    # Ray's own, and sockets that its threads leave open.
    pytest.mark.filterwarnings("ignore"),
]
ROOT = Path(__file__).parents[3]
BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [4], "data": [1.0, 2.0, 3.0, 4.0]} for name in ("LEFT", "RIGHT")
        ]
    }
)
FLAGS = [*(f"--{each}-address=127.0.0.1" for each in ("http", "grpc", "metrics")), "--drain-seconds=0"]
SLOW_CONFIG = """
backend: "python"
input { name: "SECONDS" data_type: TYPE_FP32 dims: 1 }
output { name: "PID" data_type: TYPE_INT32 dims: 1 }
"""
SLOW_MODEL = """
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(float(pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()[0]))
            pid = pb_utils.Tensor("PID", np.array([os.getpid()], np.int32))
            responses.append(pb_utils.InferenceResponse([pid]))
        return responses
"""


def servers_at(url: str) -> list[dict]:
    """The list of servers of the application with this URL."""
    try:
        with urllib.request.urlopen(f"{url}/replicas", timeout=10) as response:
            return json.load(response)
    except OSError:
        return []  # Serve or the directory is starting


class Application:
    """naiad on the cluster: two servers of a repository in a folder."""

    def __init__(self, models: Path, port: int) -> None:
        self.models = models
        self.url = f"http://127.0.0.1:{port}"
        self.revision = "0"

    def deploy(self, *others: dict) -> None:
        """Deploy the next revision as Ray's dashboard does for `naiad ray up`, and wait until both servers have it.

        Args:
            others: The other applications on the cluster.
        """
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        self.revision = str(int(self.revision) + 1)
        serving = describe_serving(
            "naiad", [self.models], FLAGS, min_replicas=2, max_replicas=2, revision=self.revision
        )
        applications = [*serve_config(serving)["applications"], *others]
        _get_global_client().deploy_apps(ServeDeploySchema(applications=applications))
        until(self.two_ready, f"revision {self.revision}", timeout=300)

    def replicas(self) -> list[dict]:
        """The list of servers."""
        return servers_at(self.url)

    def two_ready(self, *, without: str = "") -> list[dict]:
        """The list, if it has two ready servers with the newest revision and without one of this id."""
        found = [each for each in self.replicas() if each["ready"] and each["replica"] != without]
        return found if len(found) == 2 and all(each["revision"] == self.revision for each in found) else []

    def redirect(self, path: str) -> tuple[int, str]:
        """Status and location of Serve's response."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status, response.getheader("Location", "")


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    models = tmp_path_factory.mktemp("ray") / "models"
    shutil.copytree(ROOT / "examples/add_sub/models", models)
    others = set(psutil.Process().children(recursive=True))
    # A short path: Ray's sockets are in it.
    with (
        one_at_a_time(tmp_path_factory, "ray"),
        tempfile.TemporaryDirectory(prefix="naiad-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
    ):
        (Path(folder) / "ray").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            for name in ("RAY_TMPDIR", "TMPDIR"):
                patch.setenv(name, folder)
            patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
            patch.setenv("RAY_AUTH_MODE", "disabled")
            for name in ("READY", "HEALTH"):  # else Serve kills proxies that are slow to start on a busy machine
                patch.setenv(f"RAY_SERVE_PROXY_{name}_CHECK_TIMEOUT_S", "60")
            patch.setenv("RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "1")  # instead of 10 s
            try:
                with serving_cluster(models) as served:
                    yield served
            finally:
                mine = set(psutil.Process().children(recursive=True)) - others
                for process in mine:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                still_running(mine, 10)


@contextlib.contextmanager
def serving_cluster(models):
    """Two nodes with a server each."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        # One CPU on each node, and one for each server: the second server runs on the second node.
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        (port,) = free_ports(1)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        served = Application(models, port)
        served.deploy()
        yield served
        serve.shutdown()
    finally:
        ray.shutdown()


class Load:
    """One client for each server, with one connection each, that sends requests one after the other."""

    def __init__(self, addresses: list[str]) -> None:
        self.counts = dict.fromkeys(addresses, 0)
        self.failures = dict.fromkeys(addresses, 0)
        self._is_ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in addresses]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        until(lambda: all(self.counts.values()), "the first responses")
        return self

    def __exit__(self, *_):
        self._is_ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, address: str) -> None:
        """Send until the end, or until the server cannot be connected: then a client would ask for another one."""
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
        while not self._is_ending.is_set():
            try:
                connection.request("POST", "/v2/models/add_sub/infer", BODY)
                response = connection.getresponse()
                response.read()
            except ConnectionRefusedError:
                return
            except (OSError, http.client.HTTPException):
                self.failures[address] += 1
                connection.close()
                continue
            self.counts[address] += 1
            self.failures[address] += response.status != 200


def test_a_new_revision_is_loaded_by_the_same_servers_with_no_failed_request(application):
    before = application.two_ready()
    assert len({each["node"] for each in before}) == 2
    for each in before:  # models of the backend `remote` prefer servers of their node
        assert psutil.Process(each["pid"]).environ()["NAIAD_RAY_NODE"] == each["node"]
    status, location = application.redirect("/v2/models/add_sub?x=1")
    assert status == 307
    assert location in {each["addresses"]["http"] + "/v2/models/add_sub?x=1" for each in before}

    shutil.copytree(application.models / "add_sub/1", application.models / "add_sub/2")
    with Load([each["addresses"]["http"] for each in before]) as load:
        application.deploy()
        after = application.two_ready()

    assert {each["pid"] for each in after} == {each["pid"] for each in before}
    assert [each["problems"] for each in after] == [[], []]
    for each in after:
        with urllib.request.urlopen(each["addresses"]["http"] + "/v2/models/add_sub", timeout=10) as response:
            assert json.load(response)["versions"] == ["2"]
    assert set(load.failures.values()) == {0}
    print(f"\nnew revision: {sum(load.counts.values())} requests, 0 failed")


def test_a_killed_replica_is_replaced_and_only_its_requests_in_flight_fail(application):
    killed, other = application.two_ready()
    addresses = [each["addresses"]["http"] for each in (killed, other)]

    with Load(addresses) as load:
        begin = time.monotonic()
        os.kill(psutil.Process(killed["pid"]).ppid(), signal.SIGKILL)  # the process of Ray's replica
        until(lambda: application.two_ready(without=killed["replica"]), "another server", timeout=300)
        seconds = time.monotonic() - begin

    # One connection has one request in flight. The next one may be accepted while the server is being ended, too.
    assert load.failures[addresses[0]] <= 2
    assert load.failures[addresses[1]] == 0
    until(lambda: not psutil.pid_exists(killed["pid"]), "the end of the killed replica's server")
    failed = sum(load.failures.values())
    print(f"\nkilled replica: replaced after {seconds:.1f} s, {sum(load.counts.values())} requests, {failed} failed")


def infer_slow(address: str, seconds: float) -> tuple[int, dict]:
    """Status and content of the response of the model `slow`."""
    tensor = {"name": "SECONDS", "datatype": "FP32", "shape": [1], "data": [seconds]}
    with contextlib.closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)) as connection:
        connection.request("POST", "/v2/models/slow/infer", json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        return response.status, json.load(response)


@pytest.fixture
def second(application, tmp_path):
    """URL of a second application, of one or two servers of the model `slow`, which the first one calls by `remote`."""
    (tmp_path / "models/slow/1").mkdir(parents=True)
    (tmp_path / "models/slow/config.pbtxt").write_text(SLOW_CONFIG)
    (tmp_path / "models/slow/1/model.py").write_text(SLOW_MODEL)
    serving = describe_serving(
        "slow", [tmp_path / "models"], FLAGS, route="/slow", min_replicas=1, max_replicas=2, target_requests=2, cpus=0
    )
    (config,) = serve_config(serving)["applications"]
    url = f"{application.url}/slow"
    caller = application.models / "slow"
    try:
        application.deploy(config)
        until(lambda: [each for each in servers_at(url) if each["ready"]], "the second application", timeout=300)
        (caller / "1").mkdir(parents=True)
        (caller / "config.pbtxt").write_text(
            f'backend: "remote"\nparameters {{ key: "servers" value {{ string_value: "{url}/replicas" }} }}\n'
        )
        application.deploy(config)
        yield url
    finally:
        shutil.rmtree(caller, ignore_errors=True)
        application.deploy()


def test_a_second_application_is_called_by_its_list_and_gets_servers_with_its_load(application, second):
    (target,) = servers_at(second)
    guests = {each.pid for each in psutil.Process(target["pid"]).children(recursive=True)}
    callers = [each["addresses"]["http"] for each in application.two_ready()]
    assert [each["problems"] for each in application.replicas()] == [[], []]
    for address in callers:
        status, response = infer_slow(address, 0.0)
        assert status == 200
        assert response["outputs"][0]["data"][0] in guests

    statuses: list[int] = []
    is_over = threading.Event()

    def send(address: str) -> None:
        while not is_over.is_set():
            statuses.append(infer_slow(address, 0.2)[0])

    threads = [threading.Thread(target=send, args=(address,)) for address in callers for _ in range(4)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        until(lambda: sum(each["ready"] for each in servers_at(second)) == 2, "a second server", timeout=300)
        seconds = time.monotonic() - begin
        # Each of the callers prefers a server of its node; the other one, or both, get the requests without one.
        until(lambda: all(each["requests"] for each in servers_at(second)), "requests for both servers")
    finally:
        is_over.set()
        for thread in threads:
            thread.join()

    assert set(statuses) == {200}
    print(f"\nsecond server after {seconds:.1f} s of load; {len(statuses)} requests, 0 failed")
