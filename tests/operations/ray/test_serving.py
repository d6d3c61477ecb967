"""What `naiad ray` decides and writes, and the server that a replica supervises; none of it needs Ray."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from support.late_import import LateModule
from support.pages import steps
from support.server import ServerProcess
from support.waiting import until

from naiad.core.errors import DeploymentError, OptionError
from naiad_operations.cli.ray import ray
from naiad_operations.deploy.ray_service import HEAD_ENVIRONMENT, RAY_VERSION, describe_serving, serve_config
from naiad_operations.ray.directory import ReplicaTable, Report
from naiad_operations.ray.policy import metrics_of, replicas_for_requests
from naiad_operations.ray.server_list import ServerList
from naiad_operations.supervised_server import SupervisedServer

jsonschema = LateModule("jsonschema")
kubernetes_validate = LateModule("kubernetes_validate")

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "tests/operations/deploy/rayservice.schema.json").read_text())
LOOPBACK = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1")
# Marks this module's tests as `server` (tests/conftest.py): they start servers, though not by this class.
_ = ServerProcess


def report(replica, requests=0, *, ready=True, **addresses):
    addresses = addresses or {"http": f"http://{replica}"}
    return Report(replica=replica, node="n", pid=1, addresses=addresses, ready=ready, requests=requests)


def test_clients_are_sent_to_the_server_with_the_fewest_requests():
    table = ReplicaTable()
    table.add(report("a", 2), 0.0)
    table.add(report("b", 0), 0.0)

    assert [table.choose("/v2", 1.0) for _ in range(4)] == ["http://b", "http://b", "http://a", "http://b"]
    table.add(report("b", 9), 1.0)
    assert table.choose("/v2", 1.0) == "http://a"


def test_servers_that_are_not_ready_silent_or_stopping_get_no_clients():
    table = ReplicaTable()
    table.add(report("silent"), 0.0)
    table.add(report("loading", ready=False), 9.0)
    table.add(report("stopping"), 9.0)
    table.remove("stopping")

    assert table.choose("/v2", 10.0) == ""
    assert [each.replica for each in table.current(10.0)] == ["loading"]


def test_requests_of_openai_go_to_its_own_port():
    table = ReplicaTable()
    table.add(report("a", http="http://h", openai="http://o"), 0.0)
    table.add(report("b", http="http://without"), 0.0)

    assert table.choose("/v1/chat/completions", 0.0) == "http://o"


def test_servers_whose_report_is_late_get_no_clients_while_others_report():
    table = ReplicaTable()
    table.add(report("late"), 0.0)
    table.add(report("loaded", 50), 2.0)

    assert table.choose("/v2", 2.0) == "http://loaded"
    table.remove("loaded")
    assert table.choose("/v2", 2.0) == "http://late"


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([{}], 1),  # no request yet
        ([{"m": 0}], 1),
        ([{"m": 8}], 1),
        ([{"m": 9}], 2),
        ([{"m": 30}, {"m": 3}], 5),
        # The models of a server do not fill each other's instances: the busiest one decides.
        ([{"m": 8, "n": 8, "o": 8}], 1),
        ([{"m": 8, "n": 3}, {"n": 14}], 3),
        # A request in an ensemble is one in each of its steps, too.
        ([{"ensemble": 8, "first": 4, "second": 4}], 1),
        ([], 3),  # nothing is known: no change
    ],
)
def test_there_are_as_many_servers_as_the_busiest_model_needs(reported, expected):
    by_metric = {}
    for replica, requests in enumerate(reported):
        for metric, value in metrics_of(requests).items():
            by_metric.setdefault(metric, {})[replica] = value
    context = SimpleNamespace(
        aggregated_metrics=by_metric,
        target_num_replicas=3,
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 8),
    )

    assert replicas_for_requests(context) == (expected, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_replicas": 0}, "cannot run 0 servers: requests do not pass through Ray"),
        ({"min_replicas": 3, "max_replicas": 2}, "cannot run at most 2 servers: the smallest number is 3"),
        ({"target_requests": 0}, "cannot scale at 0 requests"),
        ({"route": "shop/"}, "cannot serve at the route 'shop/': expected / or a path such as /shop"),
        ({"surge": 101}, "cannot replace servers with a surge of 101 %: expected 0 to 100"),
    ],
)
def test_impossible_numbers_are_rejected(settings, message):
    with pytest.raises(DeploymentError, match=message):
        describe_serving("n", ["/models"], (), **settings)


def test_wrong_flags_of_the_servers_are_rejected_before_ray_sees_them():
    with pytest.raises(OptionError, match="--http-portt"):
        describe_serving("n", ["/models"], ["--http-portt=1"])
    with pytest.raises(DeploymentError, match="no models are named"):
        describe_serving("n", (), ())


@pytest.mark.parametrize("mode", ["demand", "explicit", "none"])
def test_servers_that_would_not_load_revisions_are_rejected(mode):
    advice = "servers load revisions by polling; remove the flag, and for models on demand set their parameter 'demand'"
    with pytest.raises(DeploymentError, match=f"with --model-control-mode={mode}: {advice}"):
        describe_serving("n", ["/models"], [f"--model-control-mode={mode}"])
    assert describe_serving("n", ["/models"], ["--model-control-mode=poll"]).name == "n"


def test_a_new_revision_and_new_limits_change_nothing_that_replaces_servers():
    """Serve replaces replicas when the import path, the arguments or the policy of an application change."""

    def fixed(**settings):
        (application,) = serve_config(describe_serving("n", ["/models"], (), **settings))["applications"]
        policy = application["deployments"][1]["autoscaling_config"]["policy"]
        return application["import_path"], application["args"], policy

    assert fixed() == fixed(revision="2", min_replicas=2, max_replicas=8)


def test_another_release_replaces_the_servers_with_new_ones_first(monkeypatch):
    def application():
        return serve_config(describe_serving("n", ["/models"], ()))["applications"][0]

    before = application()
    monkeypatch.setattr("naiad_operations.deploy.ray_service.__version__", "99")

    assert application()["args"] != before["args"]
    assert before["deployments"][1]["max_surge_percent"] == 25


def test_a_server_may_drain_before_ray_kills_it():
    serving = describe_serving("n", ["/models"], ["--drain-seconds=20", "--exit-timeout-secs=40"])

    assert serve_config(serving)["applications"][0]["deployments"][1]["graceful_shutdown_timeout_s"] > 60


def test_the_manifest_is_a_ray_service_of_valid_pods(capsys):
    flags = ["--model-repository=oci://registry.example/shop:1", "--min=2", "--max=8", "--gpus=1", "--revision=7"]

    assert ray(["yaml", "--image=r/i:1", *flags]) == 0

    said = capsys.readouterr()
    assert said.err == ""
    assert '\n  serveConfigV2: |\n    {\n      "applications": [\n' in said.out  # to be read by people
    service = yaml.safe_load(said.out)
    jsonschema.validate(service, SCHEMA)
    cluster = service["spec"]["rayClusterConfig"]
    (workers,) = cluster["workerGroupSpecs"]
    # Each pod has room for one server: two more for the surge of a quarter.
    assert (workers["minReplicas"], workers["maxReplicas"]) == (2, 10)
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["value"] for each in head["env"]} == HEAD_ENVIRONMENT
    assert workers["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    for group in (cluster["headGroupSpec"], workers):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, "1.31", strict=True)
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert "--model-repository=oci://registry.example/shop:1" in application["args"]["flags"]
    server = application["deployments"][1]
    assert server["user_config"] == {"revision": "7"}
    assert server["autoscaling_config"]["max_replicas"] == 8
    assert server["ray_actor_options"]["num_gpus"] == 1


def test_the_manifest_names_the_version_of_ray_that_is_given_or_installed(capsys, monkeypatch):
    def version(*flags):
        assert ray(["yaml", "--image=i", "--model-repository=s3://b/m", *flags]) == 0
        return yaml.safe_load(capsys.readouterr().out)["spec"]["rayClusterConfig"]["rayVersion"]

    monkeypatch.setattr("naiad_operations.cli.ray.metadata.version", {"ray": "2.99.1"}.__getitem__)
    assert version() == "2.99.1"
    assert version("--ray-version=2.61.0") == "2.61.0"
    monkeypatch.setattr("naiad_operations.cli.ray.metadata.version", _not_installed)
    assert version() == RAY_VERSION


def _not_installed(name):
    raise metadata.PackageNotFoundError(name)


def test_folders_are_mounted_from_a_claim_or_must_be_in_the_image(capsys):
    command = ["yaml", "--image=i", "--model-repository=/srv/models", "--backend-directory=/srv/backends"]
    assert ray(command) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"no pod mounts {folder}: the image must contain it; else name a URI, or a claim with --models-claim=NAME"
        for folder in ("/srv/models", "/srv/backends")
    ]
    jsonschema.validate(yaml.safe_load(said.out), SCHEMA)

    assert ray([*command, "--models-claim=shop"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    service = yaml.safe_load(said.out)
    jsonschema.validate(service, SCHEMA)
    cluster = service["spec"]["rayClusterConfig"]
    spec = cluster["workerGroupSpecs"][0]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    kubernetes_validate.validate(pod, "1.31", strict=True)
    (container,) = spec["containers"]
    assert [each["mountPath"] for each in container["volumeMounts"]] == ["/srv/models", "/srv/backends"]
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == "shop"
    assert "volumes" not in cluster["headGroupSpec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["yaml", "--image=i", "--model-repository=s3://b/m", "--name=Naiad 1"],
            1,
            "cannot use --name=Naiad 1: the name",
        ),
        (["yaml", "--image=i", "--model-repository=s3://b/m", "--name=1st"], 1, "the first is a letter"),
        (
            ["yaml", "--image=i", "--model-repository=s3://b/m", f"--name={48 * 'n'}"],
            1,
            "has 1 to 47 lowercase letters",
        ),
        (
            ["yaml", "--image=i", "--model-repository=s3://b/m", "--memory=8 GB"],
            1,
            "cannot use --memory=8 GB: expected a quantity of Kubernetes, such as 8Gi or 8G",
        ),
        (
            ["yaml", "--image=i", "--model-repository=s3://b/m", "--ray-version=new"],
            1,
            "cannot use --ray-version=new: expected a version of Ray, such as 2.60.0",
        ),
        (
            ["yaml", "--image=i", "--model-repository=m", "--models-claim=c"],
            1,
            "cannot mount a claim at m: expected an absolute path of the container",
        ),
        (["yaml", "--model-repository=m"], 1, "no image is named; add --image=IMAGE, with Ray and naiad"),
        (
            ["yaml", "--image=i", "--model-repository=s3://b/m", "--wait-seconds=5"],
            2,
            "cannot use --wait-seconds with yaml: it is a flag of up; remove it",
        ),
        (["up", "--model-repository=m", "--memory=8Gi"], 2, "with up: it is a flag of yaml; remove it"),
        (["down"], 2, "cannot serve on Ray: expected one of up, yaml, got down"),
        (["up", "--model-repository=m", "--address=http://127.0.0.1:9"], 1, "start Ray (`ray start --head`)"),
        (["up", "--model-repository=m", "--address=ray"], 1, "cannot use --address=ray: expected a URL"),
    ],
)
def test_a_wrong_command_says_what_to_do(capsys, arguments, code, message):
    assert ray(arguments) == code
    assert message in capsys.readouterr().err


class FakeDashboard(ThreadingHTTPServer):
    """Serve's REST API: keeps what is deployed, and runs it at once or fails it."""

    def __init__(self, status, token=""):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.token = token
        self.config = {"applications": [{"name": "other"}]}

    @property
    def state(self):
        applications = {
            each["name"]: {
                "status": self.status,
                "message": "no node has 1 GPU" if self.status == "DEPLOY_FAILED" else "",
                "deployments": {},
                "deployed_app_config": each,
            }
            for each in self.config["applications"]
        }
        return {"applications": applications, "http_options": {"port": 8123}}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self._reply(b"", 401)
            return
        self._reply(json.dumps(self.server.state).encode())

    def do_PUT(self):
        self.server.config = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._reply(b"")

    def _reply(self, body, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def _no_token(monkeypatch, tmp_path):
    """The machine's own token does not matter."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def dashboard(request):
    with FakeDashboard(*request.param.split()) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("dashboard", ["RUNNING"], indirect=True)
def test_up_deploys_beside_other_applications_and_names_the_list_of_servers(dashboard, capsys):
    assert ray(["up", "--model-repository=m", f"--address=http://127.0.0.1:{dashboard.server_port}"]) == 0

    assert capsys.readouterr().out == "naiad runs; its servers: http://127.0.0.1:8123/replicas\n"
    other, ours = dashboard.config["applications"]
    assert (other["name"], ours["name"]) == ("other", "naiad")
    assert f"--model-repository={Path('m').absolute()}" in ours["args"]["flags"]


@pytest.mark.parametrize("dashboard", ["RUNNING"], indirect=True)
def test_the_commands_of_the_page_do_what_the_page_says(dashboard, capsys, monkeypatch, tmp_path):
    """Without Ray: its dashboard is a fake one. `test_cluster.py` has the same on a cluster."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "how-to" / "serve-with-ray.md").read_text(encoding="utf-8")
    typed = []
    for step in steps(page):
        words = shlex.split(step.commands)
        if words[:2] != ["naiad", "ray"]:
            continue
        address = [f"--address=http://127.0.0.1:{dashboard.server_port}"] if words[2] == "up" else []
        assert ray([*words[2:], *address]) == 0
        printed = capsys.readouterr().out.replace(":8123/", ":8000/")
        assert step.printed in (None, printed)
        typed.append(words[2])
        if words[2] == "up":
            (found,) = (
                each["user_config"]
                for each in dashboard.config["applications"][-1]["deployments"]
                if "user_config" in each
            )
            assert found["revision"] == ("2" if "--revision=2" in words else "")
    assert typed == ["up", "up", "yaml"]
    (manifest,) = yaml.safe_load_all((tmp_path / "naiad.yaml").read_text())
    assert manifest["kind"] == "RayService"


@pytest.mark.parametrize("dashboard", ["RUNNING"], indirect=True)
def test_a_second_application_has_a_route_of_its_own(dashboard, capsys):
    address = f"--address=http://127.0.0.1:{dashboard.server_port}"
    assert ray(["up", "--model-repository=m", address, "--name=shop", "--route=/shop"]) == 0

    assert capsys.readouterr().out == "shop runs; its servers: http://127.0.0.1:8123/shop/replicas\n"
    assert dashboard.config["applications"][-1]["route_prefix"] == "/shop"


@pytest.mark.parametrize("dashboard", ["DEPLOY_FAILED"], indirect=True)
def test_up_fails_with_the_reason_of_ray(dashboard, capsys):
    assert ray(["up", "--model-repository=m", f"--address=http://127.0.0.1:{dashboard.server_port}"]) == 1

    assert capsys.readouterr().err == "cannot run 'naiad' on Ray: DEPLOY_FAILED: no node has 1 GPU\n"


@pytest.mark.parametrize("dashboard", ["RUNNING secret"], indirect=True)
def test_up_sends_the_token_of_the_cluster(dashboard, capsys, monkeypatch, tmp_path):
    command = ["up", "--model-repository=m", f"--address=http://127.0.0.1:{dashboard.server_port}"]
    assert ray(command) == 1
    assert "401: the cluster requires a token; set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH" in capsys.readouterr().err

    path = tmp_path / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("secret\n")
    assert ray(command) == 0
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    assert ray(command) == 1
    assert "none is missing" in capsys.readouterr().err
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert ray(command) == 1
    assert "requires another token" in capsys.readouterr().err


class FakeDirectory(ThreadingHTTPServer):
    """The list of servers."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _ListHandler)
        self.listed = []
        self.asked = 0


class _ListHandler(_Handler):
    def do_GET(self):
        self.server.asked += 1
        self._reply(json.dumps(self.server.listed).encode(), 200 if self.path == "/replicas" else 404)


@pytest.fixture
def directory():
    with FakeDirectory() as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


def test_a_client_chooses_among_ready_servers_and_keeps_the_last_list(directory, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("naiad_operations.ray.server_list.time", SimpleNamespace(monotonic=lambda: clock.now))
    servers = ServerList(f"http://127.0.0.1:{directory.server_port}/")
    with pytest.raises(DeploymentError, match=r"/replicas lists none that is ready and has the port 'http'; try again"):
        servers.choose()

    clock.now = 1.0
    directory.listed = [
        {"replica": name, "ready": name != "loading", "addresses": {"http": f"http://{name}"}}
        for name in ("a", "b", "loading")
    ]
    assert {servers.choose() for _ in range(64)} == {"http://a", "http://b"}
    assert servers.choose(["http://a"]) == "http://b"
    assert servers.choose(["http://a", "http://b"]) in {"http://a", "http://b"}  # they may be back
    assert directory.asked == 2

    directory.shutdown()
    directory.server_close()
    clock.now = 2.0
    assert servers.choose(["http://a"]) == "http://b"


def test_a_client_is_told_why_it_knows_no_server(directory):
    url = f"http://127.0.0.1:{directory.server_port}"
    directory.listed = [{"replica": "a", "ready": True, "addresses": {"http": "http://a"}}]
    with pytest.raises(DeploymentError, match="none that is ready and has the port 'openai'"):
        ServerList(url, "openai").choose()
    with pytest.raises(DeploymentError, match=r"it cannot be read: HTTP Error 404"):
        ServerList(f"{url}/other").choose()
    with pytest.raises(DeploymentError, match=r"cannot list servers of '10.0.0.5:8000': expected a URL"):
        ServerList("10.0.0.5:8000")


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def test_a_supervised_server_reports_reloads_and_ends_with_its_parent(tmp_path):
    """The parent is a process of its own, which the test kills as a machine's kernel would."""
    models = tmp_path / "models"
    shutil.copytree(ROOT / "examples/add_sub/models", models)
    flags = describe_serving("n", [models], [*LOOPBACK, "--openai-port=0"]).flags
    parent = textwrap.dedent(f"""
        import json, sys
        from naiad_operations.supervised_server import SupervisedServer
        server = SupervisedServer({flags!r})
        print(json.dumps([server.pid, dict(server.ports), dict(server.report())]), flush=True)
        for line in sys.stdin:
            print(json.dumps(server.poll()), flush=True)
    """)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        pid, ports, first = json.loads(process.stdout.readline())
        assert first == {"ready": True, "models": {}, "polls": 0, "problems": []}
        assert set(ports) == {"http", "grpc", "metrics", "openai"}
        assert get(ports["http"], "/v2/health/ready")[0] == 200
        assert get(ports["metrics"], "/metrics")[0] == 200

        shutil.copytree(models / "add_sub/1", models / "add_sub/2")
        (models / "broken").mkdir()
        (models / "broken/config.pbtxt").write_text('name: "other"')
        process.stdin.write("poll\n")
        process.stdin.flush()
        (problem,) = json.loads(process.stdout.readline())
        assert problem.startswith("broken: ")
        assert json.loads(get(ports["http"], "/v2/models/add_sub")[1])["versions"] == ["2"]

        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        process.send_signal(signal.SIGKILL)
        until(
            lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family),
            "the end of the server and its guests",
            timeout=15,
        )
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", ports["http"]), timeout=5):
        pass


def test_a_server_that_does_not_start_fails_with_its_status(tmp_path):
    with pytest.raises(DeploymentError, match="the server exited with status 1; its log, in that of this replica"):
        SupervisedServer([f"--model-repository={tmp_path / 'missing'}", *LOOPBACK])
