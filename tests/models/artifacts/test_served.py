"""A server whose model repository is in a registry: models are pulled when they load, and a moved tag reloads them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from environments import makers, served
from models.artifacts.repositories import ASK, CODE, add_model, layers_of, make_repository, replace_layer
from support.modelcar import mounted_elsewhere
from support.registry import Registry
from support.server import ServerProcess

from naiad.cli.main import main
from naiad.environments.store.pulled import read_pulled


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A registry with `shop:1`, whose models need no environment but one; and the folder of the project."""
    folder = tmp_path_factory.mktemp("project")
    models = make_repository(folder)
    shutil.rmtree(models / "packed")
    with Registry() as registry:
        push(registry, folder, "1")
        yield registry, folder


def push(registry, folder, tag, *flags):
    run = subprocess.run(
        [sys.executable, "-m", "naiad", "push", registry.uri("shop", tag), str(folder / "models"),
         f"--backend-directory={folder / 'backends'}", f"--env-store={folder / 'store'}", *flags],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1].removeprefix("pushed ")


def serve(location, work, *flags):
    return ServerProcess(None, f"--model-repository={location}", *flags, work=work)


def said(server, model):
    reply = server.post(f"/v2/models/{model}/infer", ASK)
    assert reply.status == 200, reply.body
    return reply.json()["outputs"][0]["data"][0]


def test_a_server_serves_what_a_tag_names_and_logs_its_digest(place, tmp_path):
    registry, _ = place

    with serve(registry.uri("shop", "1"), tmp_path, f"--env-store={tmp_path / 'store'}") as server:
        assert said(server, "plain") == "plain"
        assert said(server, "shared") == "loud"
        assert f"has the digest {registry.tags['shop']['1']}" in server.log
        # `naiad env gc` keeps what a server serves from.
        assert [one.in_use for one in read_pulled(tmp_path / "store")] == [True]
    assert [one.in_use for one in read_pulled(tmp_path / "store")] == [False]


def test_explicit_mode_pulls_the_loaded_model_only(place, tmp_path):
    registry, _ = place
    registry.asked.clear()
    flags = [f"--env-store={tmp_path / 'store'}", "--model-control-mode=explicit", "--load-model=plain"]

    with serve(registry.uri("shop", "1"), tmp_path, *flags) as server:
        assert len(registry.requests("GET", "/blobs/")) == 1
        assert server.post("/v2/repository/models/shared/load").status == 200
        assert said(server, "shared") == "loud"
        assert len(registry.requests("GET", "/blobs/")) == 3


def test_poll_mode_reloads_the_models_that_a_moved_tag_changes(place, tmp_path):
    registry, folder = place
    models = tmp_path / "mine" / "models"
    shutil.copytree(folder, tmp_path / "mine")
    push(registry, tmp_path / "mine", "prod")
    flags = [f"--env-store={tmp_path / 'store'}", "--model-control-mode=poll", "--repository-poll-secs=1"]

    with serve(registry.uri("shop", "prod"), tmp_path, *flags) as server:
        assert said(server, "plain") == "plain"
        before = len(server.children())
        # Of the same length as before: only the digest tells them apart.
        (models / "plain" / "1" / "model.py").write_text(CODE % "PLAIN")
        push(registry, tmp_path / "mine", "prod")
        server.wait_for(lambda: said(server, "plain") == "PLAIN", "the pushed model")
        assert said(server, "shared") == "loud"
        assert "model repositories changed" in server.log
        assert before


def test_a_changed_layer_is_not_served_where_signatures_are_required(place, tmp_path):
    registry, folder = place
    assert main(["env", "keygen", str(tmp_path / "key.pem"), "--name=build"]) == 0
    trusted = subprocess.run(
        [sys.executable, "-m", "naiad", "env", "keygen", str(tmp_path / "other.pem"), "--name=build"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (tmp_path / "keys.toml").write_text(trusted.stdout)
    pinned = push(registry, folder, "signed", f"--key={tmp_path / 'other.pem'}")
    flags = [f"--env-store={tmp_path / 'store'}", "--require-signature", f"--env-trust={tmp_path / 'keys.toml'}"]

    with serve(pinned, tmp_path, *flags) as server:
        assert said(server, "plain") == "plain"
        assert "is signed by 'build'" in server.log

    replace_layer(
        registry, "shop", "signed", "model/plain", [(makers.member("models/plain/1/model.py"), b"evil")], tmp_path
    )
    (tmp_path / "again").mkdir()
    server = serve(registry.uri("shop", "signed"), tmp_path / "again", *flags)
    server.start()
    assert server.wait_exit() == 1
    assert "is refused: model 'plain' was changed: signed as sha256:" in server.log
    assert layers_of(registry, "shop", "signed")


def test_an_environment_travels_with_its_model(place, tmp_path, serving):
    registry, _ = place
    archive, minor = serving
    models = tmp_path / "project" / "models"
    served.add_model(models, "packed", EXECUTION_ENV_PATH=str(archive))
    add_model(models, "plain", "plain")
    (tmp_path / "project" / "backends").mkdir()
    push(registry, tmp_path / "project", "env", "--log-verbose=0")
    shutil.rmtree(tmp_path / "project")

    flags = [f"--env-store={tmp_path / 'store'}"]
    with serve(registry.uri("shop", "env"), tmp_path, *flags) as server:
        prefix, version, _, leak = served.told(server, "packed")
        assert version == minor
        assert prefix.startswith(str(tmp_path / "store"))
        assert leak == "clean"

    # As KServe's modelcars mount a repository.
    pull = ["pull", registry.uri("shop", "env"), f"--output={tmp_path / 'image'}", *flags]
    subprocess.run([sys.executable, "-m", "naiad", *pull], capture_output=True, check=True, timeout=100)
    (tmp_path / "again").mkdir()
    with mounted_elsewhere(tmp_path / "image", tmp_path / "models") as mounted:
        (tmp_path / "image").rename(tmp_path / "moved")
        with serve(mounted, tmp_path / "again", *flags) as server:
            assert served.told(server, "packed")[1] == minor
