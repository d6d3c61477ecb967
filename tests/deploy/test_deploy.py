"""`naiad deploy`: what it writes is what systemd, Kubernetes and KServe take, with the server's own ports and flags."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from naiad.bundle.manifest import MANIFEST_NAME, BundleManifest
from naiad.cli.deploy import deploy
from naiad.deploy.yaml import documents

HERE = Path(__file__).parent
KUBERNETES = "1.31"


@pytest.fixture
def written(capsys):
    """A function that gives what a command line writes."""

    def run(*arguments):
        code = deploy(arguments)
        said = capsys.readouterr()
        assert (code, said.err) == (0, "")
        return said.out

    return run


@pytest.fixture
def refused(capsys):
    """A function that gives the error of a command line."""

    def run(*arguments):
        assert deploy(arguments) == 1
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

    assert [one["kind"] for one in made] == ["Deployment", "Service"]
    for one in made:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    deployment, service = made
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {port["name"] for port in container["ports"]}
    assert container["args"][0] == "--model-repository=/srv/models"


def test_a_pod_is_nobodys_root_and_writes_to_its_store_alone(written):
    text = written("kubernetes", "--image=i", "--model-repository=/m", "--models-claim=c", "--exit-timeout-secs=50")
    spec = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]
    (container,) = spec["containers"]

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["terminationGracePeriodSeconds"] == 60
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


def test_the_unit_says_paths_in_full_and_what_may_be_used(written):
    unit = written(
        "systemd", "--model-repository=models", "--model-repository=s3://bucket/models", "--http-port=80", "--memory=8G",
        "--cpus=1.5", "--env-store=/elsewhere", "--exit-timeout-secs=20", "--id=100% $HOME",
    )  # fmt: skip

    assert f"    --model-repository={Path.cwd() / 'models'} \\\n    --model-repository=s3://bucket/models \\\n" in unit
    assert '"--id=100%% $$HOME"' in unit
    assert "--env-store" not in unit
    for line in (
        "Environment=NAIAD_STORE=%S/naiad", "StateDirectory=naiad", "DynamicUser=yes", "ProtectSystem=strict",
        "TimeoutStopSec=30", "MemoryMax=8G", "CPUQuota=150%", "AmbientCapabilities=CAP_NET_BIND_SERVICE",
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

    assert f"ExecStart={tmp_path}/run \\\n    --log-verbose=1\n" in unit
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["ports"][0]["containerPort"] == 8123
    assert "args" not in container


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nomad",), "expected one of systemd, kubernetes, kserve"),
        ((), "expected one of systemd, kubernetes, kserve"),
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
        (("kserve", "--image=i", "--cpus=1,5"), "cannot use --cpus=1,5: expected a number of processors"),
    ],
)
def test_what_could_not_be_started_or_watched_is_refused(refused, arguments, message):
    assert message in refused(*arguments)


def test_a_wrong_flag_is_told_after_the_flags_of_this_command(refused):
    said = refused("systemd", "--model-repository=/m", "--memry=8G")
    assert "--memory <string>" in said
    assert said.endswith("unknown flag; did you mean --memory?\n")


def test_a_file_is_not_replaced_unless_told(written, refused, tmp_path):
    arguments = ("systemd", "--model-repository=/m", f"--output={tmp_path / 'u'}")

    assert written(*arguments) == ""
    before = (tmp_path / "u").read_text()
    assert "it exists; choose another file, or add --force" in refused(*arguments)
    written(*arguments, "--force", "--name=other")
    assert (tmp_path / "u").read_text() != before


@pytest.mark.parametrize(
    "value",
    [
        {
            "a": "yes",
            "b": "no",
            "c": "1",
            "d": "1e3",
            "e": "",
            "f": "null",
            "g": "0x1",
            "h": "~",
            "i": "=",
            "j": "1:20",
        },
        {"a": [{"b": [1, 2], "c": {"d": []}}, "x: y # z", [["q"]]], "e": {}, "f": None, "g": True, "h": 0.5},
        {"quotes \" and '": "back\\slash\nline\ttab \u00e9 \u2028", "- x": "- y", "on": "off"},
    ],
)
def test_what_is_written_reads_as_it_was(value):
    assert list(yaml.safe_load_all(documents([value, value]))) == [value, value]
