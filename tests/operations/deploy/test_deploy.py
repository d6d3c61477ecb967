"""`naiad deploy`: what it writes is what systemd, Docker, Kubernetes and KServe take, with the server's own ports and flags."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.late_import import LateModule

from naiad_operations.bundle.manifest import MANIFEST_NAME, BundleManifest
from naiad_operations.cli.deploy import OWN_FLAGS, USED_FLAGS, deploy
from naiad_operations.deploy import templates

jsonschema = LateModule("jsonschema")
kubernetes_validate = LateModule("kubernetes_validate")

HERE = Path(__file__).parent
KUBERNETES = "1.31"


@pytest.fixture
def written(capsys, monkeypatch):
    """A function that gives what a command line writes, in a folder that no private /tmp hides: a checkout may be there."""
    monkeypatch.chdir("/")

    def run(*arguments):
        code = deploy(arguments)
        said = capsys.readouterr()
        assert (code, said.err) == (0, "")
        return said.out

    return run


@pytest.fixture
def refused(capsys):
    """A function that gives the error of a command line."""

    def run(*arguments, code=1):
        assert deploy(arguments) == code
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    return run


def schema(name):
    return json.loads((HERE / f"{name}.schema.json").read_text())


def check_pod(spec):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--gpus=2", "--cpus=500m", "--memory=16Gi", "--replicas=3", "--uid=1001", "--store-claim=s"),
        ("--allow-grpc=false", "--allow-metrics=false", "--exit-timeout-secs=90"),
        ("--models-claim=m", "--backend-directory=/srv/backends", "--http-header-forward-pattern=x: 'y' # \"z\""),
        ("--openai-port=9100", "--name=shop-1"),
    ],
)
def test_the_deployment_and_the_service_are_kubernetes_own(written, flags):
    made = list(yaml.safe_load_all(written("kubernetes", "--image=r/i:1", "--model-repository=/srv/models", *flags)))

    assert [one["kind"] for one in made] == ["Deployment", "Service", "PodDisruptionBudget"]
    for one in made:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    deployment, service, budget = made
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert budget["spec"]["maxUnavailable"] == 1
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {port["name"] for port in container["ports"]}
    assert container["args"][0] == "--model-repository=/srv/models"


def test_a_pod_does_not_run_as_root_and_writes_to_its_store_alone(written):
    text = written("kubernetes", "--image=i", "--model-repository=/m", "--models-claim=c", "--exit-timeout-secs=50")
    spec = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]
    (container,) = spec["containers"]

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["terminationGracePeriodSeconds"] == 75
    assert container["args"][-1] == "--drain-seconds=15"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]} == {
        "/var/lib/naiad": False, "/tmp": False, "/m": True,
    }  # fmt: skip
    assert container["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "http"}
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_a_drain_of_the_flags_is_left_as_it_is(written):
    text = written("kubernetes", "--image=i", "--model-repository=/m", "--drain-seconds=0")
    spec = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]

    assert spec["terminationGracePeriodSeconds"] == 40
    assert [each for each in spec["containers"][0]["args"] if "drain" in each] == ["--drain-seconds=0"]


def test_probes_use_tls_where_the_server_does(written, tmp_path):
    for name in ("c.pem", "k.pem"):
        (tmp_path / name).touch()
    text = written(
        "kubernetes", "--image=i", "--model-repository=/m", "--http-use-ssl=true",
        f"--http-server-cert={tmp_path / 'c.pem'}", f"--http-server-key={tmp_path / 'k.pem'}",
    )  # fmt: skip

    (container,) = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


@pytest.mark.parametrize(
    "flags", [(), ("--cluster", "--gpus=1", "--uid=1001", "--allow-metrics=false"), ("--allow-grpc=false",)]
)
def test_the_serving_runtime_is_kserves_own(written, flags):
    made = list(yaml.safe_load_all(written("kserve", "--image=i", "--storage-uri=s3://bucket/models", *flags)))

    runtime, service = made
    jsonschema.validate(runtime, schema("runtime"))
    jsonschema.validate(service, schema("service"))
    check_pod({"containers": runtime["spec"]["containers"], "volumes": runtime["spec"]["volumes"]})
    assert runtime["kind"] == ("ClusterServingRuntime" if "--cluster" in flags else "ServingRuntime")
    assert service["spec"]["predictor"]["model"]["runtime"] == runtime["metadata"]["name"]
    (container,) = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container"
    assert container["args"][:3] == ["--model-repository=/mnt/models", "--http-port=8080", "--grpc-port=9000"]
    assert [port["containerPort"] for port in container["ports"]] == [8080]
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def made_for_kubernetes(written, *flags):
    """The objects by kind; each is valid in Kubernetes, or in the definition of its own resource."""
    text = written("kubernetes", "--image=i", "--model-repository=/m", *flags)
    objects = {each["kind"]: each for each in yaml.safe_load_all(text)}
    for kind, each in objects.items():
        if each["apiVersion"].startswith(("monitoring.coreos.com/", "keda.sh/")):
            jsonschema.validate(each, schema(kind.lower()))
        else:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
    return objects


def selects(selector, pod):
    return selector["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_a_new_release_replaces_pods_without_a_gap(written):
    spec = made_for_kubernetes(written, "--replicas=3")["Deployment"]["spec"]

    assert spec["replicas"] == 3
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    # It is not given up before a start is.
    (container,) = spec["template"]["spec"]["containers"]
    probe = container["startupProbe"]
    assert spec["progressDeadlineSeconds"] > probe["periodSeconds"] * probe["failureThreshold"]
    # Readiness fails, and the endpoints forget the pod, before the drain ends.
    ready = container["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] <= 15
    assert "--drain-seconds=15" in container["args"]


def test_the_last_gpu_is_given_back_before_the_next_pod_starts(written):
    spec = made_for_kubernetes(written, "--gpus=1", "--no-surge")["Deployment"]["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_pods_are_spread_over_zones_and_nodes(written):
    template = made_for_kubernetes(written)["Deployment"]["spec"]["template"]

    constraints = template["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in constraints] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert all(selects(each["labelSelector"], template) for each in constraints)
    # One node is enough to run all of them.
    assert {each["whenUnsatisfiable"] for each in constraints} == {"ScheduleAnyway"}


def test_an_autoscaler_reads_queue_time_and_pending_requests(written):
    flags = ("--replicas=2", "--max-replicas=6", "--target-queue-ms=20", "--target-pending=4", "--name=shop")
    made = made_for_kubernetes(written, *flags)

    scaler = made["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "shop"}
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 6)
    wanted = {each["pods"]["metric"]["name"]: each["pods"]["target"]["averageValue"] for each in scaler["metrics"]}
    assert wanted == {"naiad_queue_milliseconds": "20", "naiad_pending_requests": "4"}
    # The series that it reads are written from the pods that the monitor finds.
    rules = {rule["record"]: rule["expr"] for rule in made["PrometheusRule"]["spec"]["groups"][0]["rules"]}
    assert rules.keys() == wanted.keys()
    assert all('app_kubernetes_io_instance="shop"' in expression for expression in rules.values())
    monitor = made["PodMonitor"]["spec"]
    template = made["Deployment"]["spec"]["template"]
    assert selects(monitor["selector"], template)
    assert monitor["podTargetLabels"] == ["app.kubernetes.io/instance"]
    assert "replicas" not in made["Deployment"]["spec"]
    # Not scraped twice.
    assert template["metadata"]["annotations"] == {}


def test_the_metrics_that_autoscalers_read_are_the_servers(written):
    made = made_for_kubernetes(written, "--max-replicas=2")
    text = "".join(rule["expr"] for rule in made["PrometheusRule"]["spec"]["groups"][0]["rules"])
    page = (HERE.parents[2] / "docs/reference/metrics.md").read_text()

    assert set(re.findall(r"nv_\w+", text)) == {
        "nv_inference_queue_duration_us", "nv_inference_request_success", "nv_inference_pending_request_count",
    }  # fmt: skip
    assert "nv_inference_{request,queue," in page
    assert "nv_inference_pending_request_count" in page


@pytest.mark.parametrize("flags", [("--pod-monitor",), ("--max-replicas=2",)])
def test_alerts_cover_models_that_refuse_requests_and_models_that_do_not_serve(written, flags):
    made = made_for_kubernetes(written, *flags, "--name=shop")
    group = made["PrometheusRule"]["spec"]["groups"][-1]
    alerts = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    own = 'app_kubernetes_io_instance="shop"'
    assert alerts == {
        "NaiadRequestsRefusedAsFatal": "sum by (namespace, pod, model) "
        f'(increase(naiad_requests_refused_total{{{own}, reason="fatal"}}[5m])) > 0',
        "NaiadModelNotReady": f"min by (namespace, pod, model) (naiad_model_ready{{{own}}}) == 0",
    }
    page = (HERE.parents[2] / "docs/reference/metrics.md").read_text()
    assert "`naiad_requests_refused_total`" in page
    assert "`naiad_model_ready`" in page


def test_keda_queries_prometheus_itself(written):
    url = "http://prometheus.monitoring.svc:9090"
    made = made_for_kubernetes(written, "--max-replicas=6", "--keda", f"--prometheus-url={url}", "--namespace=shops")

    assert "HorizontalPodAutoscaler" not in made
    assert [group["name"] for group in made["PrometheusRule"]["spec"]["groups"]] == ["naiad-alerts"]
    spec = made["ScaledObject"]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 6)
    queue, pending = spec["triggers"]
    assert {each["metadata"]["serverAddress"] for each in (queue, pending)} == {url}
    # A mean does not depend on the number of pods; a sum is divided by it.
    assert (queue["metricType"], queue["metadata"]["threshold"]) == ("Value", "50")
    assert (pending["metricType"], pending["metadata"]["threshold"]) == ("AverageValue", "8")
    # A server with this name in another namespace is not counted.
    selected = '{namespace="shops", app_kubernetes_io_instance="naiad"}'
    assert pending["metadata"]["query"] == f"sum(nv_inference_pending_request_count{selected})"
    assert queue["metadata"]["query"].count(selected) == 2
    assert "PodMonitor" in made


def test_a_namespace_is_that_of_all_objects_and_of_the_queries(written):
    made = made_for_kubernetes(written, "--namespace=shops", "--max-replicas=2", "--network-policy")
    assert {each["metadata"]["namespace"] for each in made.values()} == {"shops"}
    groups = made["PrometheusRule"]["spec"]["groups"]
    assert all('namespace="shops"' in rule["expr"] for group in groups for rule in group["rules"])

    kserve = ("kserve", "--image=i", "--storage-uri=s3://b/m", "--namespace=shops")
    runtime, service = yaml.safe_load_all(written(*kserve, "--cluster"))
    assert "namespace" not in runtime["metadata"]  # a cluster's objects have none
    assert service["metadata"]["namespace"] == "shops"
    runtime, _ = yaml.safe_load_all(written(*kserve))
    assert runtime["metadata"]["namespace"] == "shops"
    jsonschema.validate(runtime, schema("runtime"))


def test_a_policy_lets_clients_in_and_prometheus_to_the_metrics(written):
    made = made_for_kubernetes(written, "--allow-namespace=web", "--allow-namespace=jobs")

    spec = made["NetworkPolicy"]["spec"]
    assert selects(spec["podSelector"], made["Deployment"]["spec"]["template"])
    clients, monitoring = spec["ingress"]
    assert [each["port"] for each in clients["ports"]] == ["http", "grpc"]
    own, *others = clients["from"]
    assert own == {"podSelector": {}}
    assert [each["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for each in others] == [
        "web",
        "jobs",
    ]
    assert [each["port"] for each in monitoring["ports"]] == ["metrics"]
    assert "NetworkPolicy" in made_for_kubernetes(written, "--network-policy")
    assert "NetworkPolicy" not in made_for_kubernetes(written)


def service_of(written, *flags):
    text = written("kserve", "--image=i", "--storage-uri=oci://registry.example/shop:1", *flags)
    *_, service = yaml.safe_load_all(text)
    jsonschema.validate(service, schema("service"))
    return service


def test_knative_splits_requests_between_revisions(written):
    service = service_of(written, "--canary-percent=10", "--replicas=2", "--max-replicas=5")

    assert service["spec"]["predictor"]["canaryTrafficPercent"] == 10
    assert service["spec"]["predictor"]["model"]["storageUri"] == "oci://registry.example/shop:1"
    assert [service["spec"]["predictor"][key] for key in ("minReplicas", "maxReplicas")] == [2, 5]
    # Knative rejects what belongs to pods.
    assert not service["spec"]["predictor"].keys() & {"terminationGracePeriodSeconds", "topologySpreadConstraints"}


def test_deployments_of_kserve_drain_and_spread(written):
    service = service_of(written, "--standard", "--exit-timeout-secs=60")

    predictor = service["spec"]["predictor"]
    check_pod({"containers": [{"name": "c"}], **{k: predictor[k] for k in predictor if k.startswith(("term", "topo"))}})
    assert service["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "RawDeployment"
    assert predictor["terminationGracePeriodSeconds"] == 85


def test_kserve_scales_with_keda_by_pending_requests(written):
    service = service_of(
        written,
        "--max-replicas=5",
        "--keda",
        "--prometheus-url=http://prometheus:9090",
        "--name=shop",
        "--namespace=shops",
        "--metrics-port=8765",
    )

    annotations = service["metadata"]["annotations"]
    assert annotations["serving.kserve.io/autoscalerClass"] == "keda"
    assert annotations["serving.kserve.io/deploymentMode"] == "RawDeployment"
    (metric,) = service["spec"]["predictor"]["autoScaling"]["metrics"]
    assert metric["external"]["metric"]["query"] == (
        'sum(nv_inference_pending_request_count{namespace="shops", pod=~"shop-models-predictor-.*"})'
    )
    # KServe passes the annotations on to the pods, where Prometheus looks for them. Its own setting names a port of
    # Knative's proxy, which these pods do not have.
    scraped = {key.rpartition("/")[2]: annotations[key] for key in annotations if key.startswith("prometheus.io/")}
    assert scraped == {"scrape": "true", "port": "8765", "path": "/metrics"}
    assert annotations["serving.kserve.io/enable-prometheus-scraping"] == "false"


def verified_by_systemd(unit, tmp_path, name="naiad"):
    path = tmp_path / f"{name}.service"
    path.write_text(unit)
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize(
    "flags", [(), ("--memory=8G", "--cpus=1.5", "--gpus=1"), ("--http-port=80", "--metrics-address=a b$c%d\"e'f")]
)
def test_systemd_finds_nothing_wrong_with_the_unit(written, tmp_path, flags):
    unit = written("systemd", "--model-repository=models", *flags)

    found = verified_by_systemd(unit, tmp_path)

    # Of units of the machine it may have something to say, too.
    assert [line for line in found.stderr.splitlines() if "naiad" in line] == []
    spoilt = verified_by_systemd(unit.replace("KillMode=mixed", "KillMode=kindly"), tmp_path)
    assert any("naiad" in line for line in spoilt.stderr.splitlines())


def test_the_unit_has_absolute_paths_and_limits(written):
    unit = written(
        "systemd", "--model-repository=models", "--model-repository=s3://bucket/models", "--http-port=80", "--memory=8G",
        "--cpus=1.5", "--env-store=/elsewhere", "--exit-timeout-secs=20", "--id=100% $HOME",
    )  # fmt: skip

    assert f"    --model-repository={Path.cwd() / 'models'} \\\n    --model-repository=s3://bucket/models \\\n" in unit
    assert '"--id=100%% $$HOME"' in unit
    assert "--env-store" not in unit
    for line in (
        "Environment=NAIAD_STORE=%S/naiad", "StateDirectory=naiad", "DynamicUser=yes", "OOMPolicy=continue", "ProtectSystem=strict",
        "TimeoutStopSec=45", "MemoryMax=8G", "CPUQuota=150%", "AmbientCapabilities=CAP_NET_BIND_SERVICE",
    ):  # fmt: skip
        assert line in unit.splitlines()


def test_a_bundle_is_started_by_its_own_program_with_its_own_flags(written, tmp_path):
    flags = ("--model-repository={bundle}/models", "--http-port=8123")
    said = BundleManifest(
        name="b", naiad="1", python="3", platform="p", glibc="", flags=flags, models={}, environments={}, files={}
    )
    (tmp_path / MANIFEST_NAME).write_bytes(said.as_bytes())

    unit = written("systemd", f"--unpacked-bundle={tmp_path}", "--log-verbose=1")
    deployment = next(yaml.safe_load_all(written("kubernetes", "--image=i", f"--unpacked-bundle={tmp_path}")))

    assert f"ExecStart={tmp_path}/run \\\n    --log-verbose=1 \\\n    --drain-seconds=15\n" in unit
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["ports"][0]["containerPort"] == 8123
    assert container["args"] == ["--drain-seconds=15"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nomad",), "expected one of systemd, compose, dockerfile, kubernetes, kserve"),
        (
            ("kubernets",),
            "expected one of systemd, compose, dockerfile, kubernetes, kserve, got kubernets; did you mean kubernetes?",
        ),
        ((), "expected one of systemd, compose, dockerfile, kubernetes, kserve"),
        (("kubernetes", "--model-repository=/m"), "no image is named; add --image=IMAGE"),
        (
            ("systemd", "--model-repository=/m", "--name=Naiad 1"),
            "cannot use --name=Naiad 1: a name has 1 to 63 lowercase letters",
        ),
        (
            ("systemd", "--model-repository=/m", "--allow-http=false"),
            "cannot deploy with --allow-http=false: the health probes use HTTP",
        ),
        (
            ("kubernetes", "--image=i", "--model-repository=/m", "--grpc-port=0"),
            "cannot deploy with --grpc-port=0: 0 means an arbitrary port",
        ),
        (("systemd", "--unpacked-bundle=nowhere"), "nowhere: "),
        (("compose", "--model-repository=/m", "--cpus=many"), "cannot use --cpus=many: expected a number"),
        (("compose", "--model-repository=/m", "--cpus=0"), "cannot use --cpus=0: expected a number"),
        (
            ("compose", "--model-repository=/m", "--memory=8Gi"),
            "cannot use --memory=8Gi: expected a quantity of Docker",
        ),
        (("dockerfile", "--model-repository=/m"), "cannot copy /m into an image: it is outside of "),
        (("dockerfile", "--model-repository=../m"), "the build context; run the command in a folder that contains it"),
        (("dockerfile", "--model-repository=m", "--package=../x.whl"), "cannot copy ../x.whl into an image"),
        (("systemd", "--model-repository=/m", "--cpus=many"), "cannot use --cpus=many: expected a number"),
        (("systemd", "--model-repository=/m", "--cpus=0"), "cannot use --cpus=0: expected a number"),
        (
            ("systemd", "--model-repository=/m", "--memory=8Gi"),
            "cannot use --memory=8Gi: expected a quantity of systemd",
        ),
        (
            ("kubernetes", "--image=i", "--model-repository=/m", "--memory=8 GB"),
            "cannot use --memory=8 GB: expected a quantity of Kubernetes",
        ),
        (
            ("kubernetes", "--image=i", "--model-repository=/m", "--replicas=3", "--max-replicas=2"),
            "cannot use --max-replicas=2: it is less than --replicas=3",
        ),
        (
            ("kubernetes", "--image=i", "--model-repository=/m", "--max-replicas=2", "--allow-metrics=false"),
            "cannot monitor the pods with --allow-metrics=false: enable metrics",
        ),
        (
            ("kubernetes", "--image=i", "--model-repository=/m", "--max-replicas=2", "--keda"),
            "cannot use --keda: the address of Prometheus is missing; add --prometheus-url=URL",
        ),
        (
            ("kubernetes", "--image=i", "--model-repository=/m", "--keda", "--prometheus-url=http://p:9090"),
            "cannot use --keda: the largest number of pods is missing; add --max-replicas=N",
        ),
        (
            (
                "kubernetes",
                "--image=i",
                "--model-repository=/m",
                "--prometheus-url=p:9090",
                "--max-replicas=1",
                "--keda",
            ),
            "cannot use --prometheus-url=p:9090: expected a URL",
        ),
        (
            (
                *("kserve", "--image=i", "--storage-uri=s3://b/m", "--max-replicas=2", "--keda"),
                *("--prometheus-url=http://p", "--namespace=n", "--allow-metrics=false"),
            ),
            "cannot use --keda with --allow-metrics=false: it scales by metrics; enable them",
        ),
        (
            (
                *("kubernetes", "--image=i", "--model-repository=/m", "--max-replicas=2", "--keda"),
                "--prometheus-url=http://p",
            ),
            "cannot use --keda: the namespace is missing, and its queries would count the requests of servers",
        ),
        (
            ("kubernetes", "--image=i", "--model-repository=/m", "--namespace=Shop 1"),
            "cannot use --namespace=Shop 1: a namespace has 1 to 63 lowercase letters",
        ),
        (
            ("kubernetes", "--image=i", "--model-repository=models", "--models-claim=c"),
            "cannot mount a claim at models: expected an absolute path of the container",
        ),
        (
            ("kserve", "--image=i", "--storage-uri=s3://b/m", "--canary-percent=5", "--standard"),
            "cannot use --canary-percent with --standard or --keda: only Knative splits requests",
        ),
        (("kserve", "--image=i", "--cpus=1,5"), "cannot use --cpus=1,5: expected a number of processors"),
    ],
)
def test_flags_of_a_deployment_that_could_not_work_are_refused(refused, arguments, message):
    assert message in refused(*arguments, code=2 if "expected one of" in message else 1)


@pytest.mark.parametrize(
    ("target", "flags", "message"),
    [
        (
            "kserve",
            ["--network-policy"],
            "cannot use --network-policy with kserve: it is a flag of kubernetes; remove it",
        ),
        ("kserve", ["--allow-namespace=web"], "with kserve: it is a flag of kubernetes"),
        ("kserve", ["--pod-monitor"], "with kserve: it is a flag of kubernetes"),
        ("kserve", ["--no-surge"], "with kserve: it is a flag of kubernetes"),
        ("kserve", ["--models-claim=c"], "with kserve: it is a flag of kubernetes"),
        ("kserve", ["--target-queue-ms=9"], "with kserve: it is a flag of kubernetes"),
        ("kserve", ["--canary-percent=5"], "with kserve: it has no effect without --storage-uri; add that flag"),
        ("kserve", ["--storage-uri=x://y", "--target-pending=9"], "it has no effect without --keda"),
        ("kubernetes", ["--canary-percent=5"], "cannot use --canary-percent with kubernetes: it is a flag of kserve"),
        ("kubernetes", ["--standard"], "with kubernetes: it is a flag of kserve"),
        ("kubernetes", ["--cluster"], "with kubernetes: it is a flag of kserve"),
        ("kubernetes", ["--storage-uri=x://y"], "with kubernetes: it is a flag of kserve"),
        ("kubernetes", ["--prometheus-url=http://p"], "with kubernetes: it has no effect without --keda; add that"),
        ("kubernetes", ["--target-pending=2"], "with kubernetes: it has no effect without --max-replicas"),
        (
            "dockerfile",
            ["--memory=8G"],
            "with dockerfile: it is a flag of systemd and compose and kubernetes and kserve",
        ),
        ("compose", ["--apt=libgomp1"], "cannot use --apt with compose: it is a flag of dockerfile; remove it"),
        ("systemd", ["--network-policy"], "with systemd: it is a flag of kubernetes; remove it"),
        ("systemd", ["--max-replicas=3"], "with systemd: it is a flag of kubernetes and kserve; remove it"),
        ("systemd", ["--keda"], "with systemd: it is a flag of kubernetes and kserve"),
    ],
)
def test_flags_without_effect_are_rejected(refused, target, flags, message):
    image = [] if target in {"systemd", "dockerfile"} else ["--image=i"]
    assert message in refused(target, "--model-repository=/m", *image, *flags, code=2)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--gpus=abc", "naiad deploy: --gpus=abc: not an integer\ngive an integer of at least 0\n"),
        ("--replicas=-3", "naiad deploy: --replicas=-3: out of range\ngive a number of at least 0\n"),
    ],
)
def test_a_wrong_number_is_rejected(refused, flag, said):
    assert refused("kubernetes", "--model-repository=/m", "--image=i", flag, code=2) == said


def test_each_flag_is_of_a_target():
    assert {flag.name for flag in OWN_FLAGS} == frozenset().union(*USED_FLAGS.values())


def test_a_wrong_flag_is_reported_with_the_nearest_one(refused):
    said = refused("systemd", "--model-repository=/m", "--memry=8G", code=2)
    assert said.splitlines() == ["naiad deploy: unrecognized option '--memry=8G'", "did you mean --memory?"]


def test_a_file_is_not_replaced_unless_forced(written, refused, tmp_path):
    arguments = ("systemd", "--model-repository=/m", f"--output={tmp_path / 'u'}")

    assert written(*arguments) == ""
    before = (tmp_path / "u").read_text()
    assert "it exists; choose another file, or add --force" in refused(*arguments)
    written(*arguments, "--force", "--name=other")
    assert (tmp_path / "u").read_text() != before


TEXTS = [
    "yes",
    "1",
    "1e3",
    "",
    "null",
    "~",
    "1:20",
    "x: y # z",
    "- x",
    "quotes \" and '",
    "a\\b\nc\td \u00e9 \u2028 ${text}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_values_of_a_template_are_read_back_unchanged(text, tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "_FOLDER", tmp_path)
    (tmp_path / "t").write_text("a:\n  - b: ${text}\n    c: ${texts}\n    d: ${object}\n    left: ${none}\ne: x${n}\n")
    written = templates.render("t", text=text, texts=[text, text], object={"k": text}, none=None, n=1)
    assert yaml.safe_load(written) == {"a": [{"b": text, "c": [text, text], "d": {"k": text}}], "e": "x1"}


def test_lines_of_a_template_are_indented_or_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "_FOLDER", tmp_path)
    (tmp_path / "t").write_text("a: |\n  ${lines}\n  ${none}\n")
    assert templates.render("t", lines="one\n\n  two", none=None) == "a: |\n  one\n\n    two\n"


@pytest.mark.parametrize("target", USED_FLAGS)
def test_the_help_of_a_target_has_the_flags_that_it_reads(target, capsys):
    assert deploy([target, "--help"]) == 0
    shown = set(re.findall(r"^  --([\w-]+)", capsys.readouterr().out, re.MULTILINE))
    assert shown == {*USED_FLAGS[target], "help"}


def test_the_help_without_a_target_has_the_flags_of_all(capsys):
    assert deploy(["--help"]) == 0
    shown = set(re.findall(r"^  --([\w-]+)", capsys.readouterr().out, re.MULTILINE))
    assert shown == {*(flag.name for flag in OWN_FLAGS), "help"}
