"""`naiad deploy dockerfile` and `compose`: what they write is what Docker takes, and its commands do what they are for."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.late_import import LateModule
from support.server import ServerProcess

from naiad_operations.cli.deploy import deploy

jsonschema = LateModule("jsonschema")

SCHEMA = Path(__file__).parent / "compose.schema.json"
SAMPLES = Path(__file__).parents[2] / "samples" / "models"
INSTRUCTIONS = re.compile(r"^([A-Z]+) ((?:.*\\\n)*.*)$", re.MULTILINE)
RELEASE = "--package=naiad==1.0"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a model, which is the current one."""
    (tmp_path / "work" / "models").mkdir(parents=True)
    shutil.copytree(SAMPLES / "identity", tmp_path / "work" / "models" / "identity")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def written(capsys):
    """A function that gives what a command line writes."""

    def run(*arguments):
        code = deploy(arguments)
        said = capsys.readouterr()
        assert (code, said.err) == (0, "")
        return said.out

    return run


def instructions(text):
    """The instructions of a Dockerfile, with what follows each, in their order."""
    return [(name, rest.replace("\\\n", "")) for name, rest in INSTRUCTIONS.findall(text)]


def of(text, name):
    return [rest for found, rest in instructions(text) if found == name]


def composed(text):
    document = yaml.safe_load(text)
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(document)] == []
    (service,) = document["services"].values()
    return document, service


# -- dockerfile -------------------------------------------------------------------------------------------------------


def test_an_image_has_models_and_environments_and_runs_without_rights(folder, written):
    text = written("dockerfile", "--model-repository=models", "--http-port=8080", "--log-verbose=1", RELEASE)

    assert of(text, "FROM") == [f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"]
    assert of(text, "COPY") == ['["models", "/srv/models"]']
    assert of(text, "RUN")[-1] == "naiad env prefetch --model-repository=/srv/models"
    assert of(text, "USER") == ["65532:0"]
    assert of(text, "EXPOSE") == ["8080 8001 8002"]
    (start,) = of(text, "ENTRYPOINT")
    assert json.loads(start) == [
        "naiad",
        "serve",
        "--model-repository=/srv/models",
        "--http-port=8080",
        "--log-verbose=1",
    ]
    names = [name for name, _ in instructions(text)]
    assert names.index("COPY") < names.index("USER") < len(names) - 1 - names[::-1].index("RUN")
    assert "docker run --rm -p 8080:8080 -p 8001:8001 -p 8002:8002 naiad\n" in text


def test_a_wheel_is_copied_and_installed_with_its_extras(folder, written):
    text = written(
        "dockerfile", "--model-repository=models", "--package=dist/naiad-1-py3-none-any.whl[s3]", "--apt=libgomp1"
    )

    assert of(text, "COPY")[0] == '["dist/naiad-1-py3-none-any.whl", "/tmp/naiad-1-py3-none-any.whl"]'
    apt, pip, *_ = of(text, "RUN")
    assert "install -y --no-install-recommends libgomp1" in apt
    assert pip.endswith("'/tmp/naiad-1-py3-none-any.whl[s3]'")


def test_a_version_that_is_no_release_has_a_note(folder, capsys, monkeypatch):
    monkeypatch.setattr("naiad.__version__", "1.2.dev0")
    assert deploy(["dockerfile", "--model-repository=models"]) == 0
    said = capsys.readouterr()
    assert "naiad==1.2.dev0" in said.out
    assert said.err.startswith("note: naiad 1.2.dev0 is not a release, so pip does not find it; make a wheel")
    monkeypatch.setattr("naiad.__version__", "1.2")
    assert deploy(["dockerfile", "--model-repository=models", "--openai-port=9000"]) == 0
    said = capsys.readouterr()
    assert "'naiad[chat]==1.2'" in said.out
    assert said.err == ""


@pytest.mark.parametrize("target", ["dockerfile", "compose"])
def test_a_page_that_only_the_container_reaches_has_a_note(folder, capsys, monkeypatch, target):
    monkeypatch.setattr("naiad.__version__", "1.2")
    assert deploy([target, "--model-repository=models", "--ui=true"]) == 0
    note = "note: in a container the page at /ui is served to programs of the container alone; add --ui-password=FILE, or --ui"
    assert capsys.readouterr().err.startswith(note)
    assert deploy([target, "--model-repository=models", "--ui=true", "--ui-address=0.0.0.0"]) == 0
    assert capsys.readouterr().err == ""


def test_a_repository_elsewhere_is_read_at_the_start_with_its_driver(folder, capsys, monkeypatch):
    monkeypatch.setattr("naiad.__version__", "1.2")
    assert deploy(["dockerfile", "--model-repository=s3://bucket/models"]) == 0
    text = capsys.readouterr().out
    assert of(text, "COPY") == []
    assert "'naiad[s3]==1.2'" in text
    assert "env prefetch" not in text
    assert "its environments are unpacked when the server starts" in text


def test_folders_of_one_name_have_places_of_their_own_and_flags_follow(folder, written):
    (folder / "more" / "models").mkdir(parents=True)
    (folder / "backends").mkdir()
    text = written(
        "dockerfile",
        "--model-repository=models",
        "--model-repository=more/models",
        "--backend-directory=backends",
        RELEASE,
    )
    assert of(text, "COPY") == [
        '["models", "/srv/models"]',
        '["more/models", "/srv/models-2"]',
        '["backends", "/srv/backends"]',
    ]
    flags = "--model-repository=/srv/models --model-repository=/srv/models-2 --backend-directory=/srv/backends"
    assert of(text, "RUN")[-1] == f"naiad env prefetch {flags}"
    assert json.loads(of(text, "ENTRYPOINT")[0])[2:] == flags.split()


@pytest.fixture
def keys(folder):
    for name in ("c.pem", "k.pem"):
        (folder / name).touch()
    return ["--http-use-ssl=true", "--http-server-cert=c.pem", "--http-server-key=k.pem"]


def test_keys_are_mounted_and_never_copied(folder, written, keys):
    text = written("dockerfile", "--model-repository=models", *keys, RELEASE)
    assert of(text, "COPY") == ['["models", "/srv/models"]']
    assert "-v ./c.pem:/run/secrets/c.pem:ro -v ./k.pem:/run/secrets/k.pem:ro naiad\n" in text
    assert "--http-server-key=/run/secrets/k.pem" in json.loads(of(text, "ENTRYPOINT")[0])
    _, service = composed(written("compose", "--model-repository=models", *keys))
    assert [each["target"] for each in service["volumes"]] == ["/run/secrets/c.pem", "/run/secrets/k.pem"]
    assert "https://" in service["healthcheck"]["test"][-1]


def commands_of(text, folder, store):
    """The steps of a Dockerfile as a shell runs them here: without a package index, and with its places in a folder."""
    for name, rest in instructions(text):
        if name == "COPY":
            source, target = json.loads(rest)
            yield f"mkdir -p {folder}/srv && cp -r {shlex.quote(source)} {folder}{target}"
        elif name == "RUN" and rest.startswith("naiad "):
            yield rest.replace("=/srv/", f"={folder}/srv/").replace(
                "naiad", str(Path(sys.executable).with_name("naiad")), 1
            )


def test_the_steps_of_an_image_make_a_server_whose_health_check_tells_when_it_is_ready(folder, tmp_path, written):
    """No Docker daemon is needed: each step is run here, and the server is started with the entry point's flags."""
    text = written("dockerfile", "--model-repository=models", RELEASE)
    image = tmp_path / "image"
    environ = {**os.environ, "NAIAD_STORE": str(image / "store"), "HOME": str(tmp_path)}
    for command in commands_of(text, image, image / "store"):
        done = subprocess.run(["bash", "-e", "-c", command], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
    program, verb, *flags = json.loads(of(text, "ENTRYPOINT")[0])
    assert (program, verb) == ("naiad", "serve")
    own = [flag.replace("=/srv/", f"={image}/srv/") for flag in flags]
    (health,) = of(text, "HEALTHCHECK")
    command = json.loads(health.partition(" CMD ")[2])
    command[0] = sys.executable
    server = ServerProcess(
        None,
        *own,
        work=tmp_path,
        command=[Path(sys.executable).with_name("naiad"), "serve"],
        environ={"NAIAD_STORE": str(image / "store")},
    )
    asked = [part.replace(":8000/", f":{server.http_port}/") for part in command]
    assert subprocess.run(asked, capture_output=True, check=False).returncode == 1
    with server:
        assert subprocess.run(asked, capture_output=True, check=False).returncode == 0
        assert server.get("/v2/models/identity/ready").status == 200


# -- compose ----------------------------------------------------------------------------------------------------------


def test_a_service_of_an_image_has_the_models_of_this_folder_and_a_volume_for_the_store(folder, written):
    document, service = composed(
        written("compose", "--image=r/naiad:1", "--model-repository=models", "--name=shop", "--exit-timeout-secs=50")
    )
    assert list(document["services"]) == ["shop"]
    assert service["image"] == "r/naiad:1"
    assert service["command"] == ["--model-repository=/srv/models", "--exit-timeout-secs=50"]
    models, store = service["volumes"]
    assert models == {"type": "bind", "source": "./models", "target": "/srv/models", "read_only": True}
    assert (store["target"], service["environment"]["NAIAD_STORE"]) == ("/var/lib/naiad", "/var/lib/naiad")
    assert document["volumes"] == {"store": {}}
    assert service["ports"] == ["8000:8000", "8001:8001", "8002:8002"]
    assert service["stop_grace_period"] == "60s"


def test_a_service_without_an_image_builds_the_dockerfile_which_has_flags_and_models(folder, written):
    document, service = composed(written("compose", "--model-repository=models", "--http-port=8080"))
    assert service["build"] == {"context": ".", "dockerfile": "Dockerfile"}
    assert "command" not in service
    assert "volumes" not in service  # the store is in the image, and only read
    assert service["ports"][0] == "8080:8080"
    assert ":8080/v2/health/ready" in service["healthcheck"]["test"][-1]
    assert list(document)[:2] == ["name", "services"]


def test_a_service_whose_repository_is_elsewhere_keeps_its_store_in_a_volume(folder, written):
    document, service = composed(written("compose", "--model-repository=s3://bucket/models"))
    assert [each["target"] for each in service["volumes"]] == ["/var/lib/naiad"]
    assert document["volumes"] == {"store": {}}


def test_a_service_has_no_rights_and_its_limits(folder, written):
    _, service = composed(
        written(
            "compose", "--image=i", "--model-repository=models", "--memory=8G", "--cpus=1.5", "--gpus=2", "--uid=1001"
        )
    )
    assert service["user"] == "1001:0"
    assert (service["read_only"], service["cap_drop"], service["tmpfs"]) == (True, ["ALL"], ["/tmp"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["deploy"]["resources"] == {
        "limits": {"cpus": "1.5", "memory": "8G"},
        "reservations": {"devices": [{"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}]},
    }


def test_paths_are_relative_to_the_file_that_is_written(folder, written):
    (folder / "deploy").mkdir()
    written("compose", "--image=i", "--model-repository=models", "--output=deploy/naiad.yaml")
    text = (folder / "deploy" / "naiad.yaml").read_text()
    _, service = composed(text)
    assert service["volumes"][0]["source"] == "../models"
    assert "docker compose --file deploy/naiad.yaml up --detach --wait" in text
    written("compose", "--model-repository=models", "--output=deploy/compose.yaml")
    assert composed((folder / "deploy" / "compose.yaml").read_text())[1]["build"]["context"] == ".."


def test_a_file_that_builds_says_which_command_writes_the_dockerfile(written):
    command = "naiad deploy dockerfile --output=Dockerfile"
    assert command in written("compose", "--model-repository=models")
    assert command not in written("compose", "--image=i", "--model-repository=models")


def test_files_say_what_the_service_does_not_see(folder, written, capsys):
    assert "Its /tmp is its own" in written("compose", "--model-repository=models")
    models = folder / "models"
    assert deploy(["systemd", f"--model-repository={models}"]) == 0
    said = capsys.readouterr()
    assert "models, environments and keys in those of the machine are hidden" in said.out
    hidden = next((place for place in ("/var/tmp", "/tmp") if models.is_relative_to(place)), None)
    expected = f"note: --model-repository={models} is below {hidden}, which PrivateTmp=yes hides from the service; move it elsewhere\n"
    assert said.err == (expected if hidden else "")
    assert deploy(["systemd", "--model-repository=/tmp/models", "--ui=true", "--log-file=/srv/tmp/log"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "note: --model-repository=/tmp/models is below /tmp, which PrivateTmp=yes hides from the service; move it elsewhere"
    ]


def test_every_file_that_a_flag_names_has_an_absolute_path_in_a_unit(folder, capsys):
    (folder / "password").write_text("secret\n")
    assert deploy(["systemd", "--model-repository=models", "--ui=true", "--ui-password=password"]) == 0
    assert f"--ui-password={folder / 'password'}" in capsys.readouterr().out
