"""A repository in a registry: its layers, what is sent and received again, and that it comes back as it was."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from environments import makers
from google.protobuf import text_format
from models.artifacts.repositories import (
    CODE,
    Commands,
    add_model,
    contents,
    layers_of,
    make_repository,
    mount,
    replace_layer,
)
from support.registry import Fault, Registry

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import RegistryError
from naiad.environments.progress import LogReporter
from naiad.models.artifacts.store import ArtifactStore
from naiad.sources.registry.client import RegistryClient
from naiad.sources.registry.references import parse_reference

PLAIN = {"plain/config.pbtxt", "plain/1/model.py"}


def test_each_part_has_a_layer_of_its_own(registry, naiad, models):
    pinned = naiad.push(registry.uri("shop", "1"), models)

    assert pinned == f"{registry.uri('shop', '1')}@{registry.tags['shop']['1']}"
    layers = layers_of(registry, "shop")
    environment = next(part for part in layers if part.startswith("environment/"))
    assert re.fullmatch(r"environment/[0-9a-f]{12}-science", environment)
    assert list(layers) == [
        environment, "backend/loud", "model/packed", "model/plain", "model/shared", "sbom/sbom.cdx.json",
    ]  # fmt: skip
    assert json.loads(layers["model/packed"]["annotations"]["naiad.uses"]) == [environment]
    assert json.loads(layers["model/shared"]["annotations"]["naiad.uses"]) == ["backend/loud"]
    assert "naiad.uses" not in layers["model/plain"]["annotations"]
    assert layers[environment]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert layers["model/plain"]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert registry.manifest("shop", "1")["artifactType"] == "application/vnd.naiad.repository.v1"


def test_a_repository_comes_back_as_it_was(registry, naiad, models, tmp_path):
    naiad.push(registry.uri("shop", "1"), models)

    naiad.succeed("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")

    found = contents(tmp_path / "out")
    assert {path for path in found if path.startswith("plain/")} == PLAIN
    assert found["plain/config.pbtxt"] == (models / "plain" / "config.pbtxt").read_bytes()
    assert found["shared/1/settings.txt"] == b"shared"
    assert found[".naiad/backends/loud/model.py"].decode() == CODE % "loud"
    archive = models.parent / "environments" / "science.tar.zst"
    (environment,) = [path for path in found if path.endswith("science.tar.zst")]
    assert found[environment] == archive.read_bytes()
    config = text_format.Parse(found["packed/config.pbtxt"], pb.ModelConfig())
    named = config.parameters["EXECUTION_ENV_PATH"].string_value
    assert named == f"$$TRITON_MODEL_DIRECTORY/../{environment}"
    # The copy is the user's own.
    assert all(os.access(path, os.W_OK) for path in (tmp_path / "out").rglob("*"))


def test_blobs_of_the_registry_are_not_sent_again(registry, naiad, models):
    naiad.push(registry.uri("shop", "1"), models)
    registry.asked.clear()

    out = naiad.succeed("push", registry.uri("shop", "2"), models, f"--backend-directory={models.parent / 'backends'}")

    assert out.count("already there") == 6
    assert not registry.requests("POST")
    assert registry.received < 3000  # the manifest
    assert registry.tags["shop"]["1"] == registry.tags["shop"]["2"]


def test_a_changed_model_moves_kilobytes(registry, naiad, models, tmp_path):
    naiad.push(registry.uri("shop", "1"), models)
    naiad.succeed("pull", registry.uri("shop", "1"))
    (models / "packed" / "1" / "model.py").write_text(CODE % "changed")
    registry.asked.clear()

    naiad.push(registry.uri("shop", "1"), models)
    sent = registry.received
    out = naiad.succeed("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")

    assert sent < 6000
    assert "3 layers" not in out
    assert len(registry.requests("GET", "/blobs/sha256")) == 1
    assert b"changed" in (tmp_path / "out" / "packed" / "1" / "model.py").read_bytes()


def test_layers_depend_on_the_content_alone(registry, naiad, models, tmp_path, capsys):
    first = naiad.push(registry.uri("shop", "1"), models)
    elsewhere = tmp_path / "another" / "place"
    shutil.copytree(models.parent, elsewhere)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)

    again = Commands(tmp_path / "other-store", capsys).push(registry.uri("shop", "1"), elsewhere / "models")

    assert again == first


def test_a_pulled_repository_is_pushed_with_the_same_digest(registry, naiad, models, tmp_path):
    first = naiad.push(registry.uri("shop", "1"), models)
    naiad.succeed("pull", first, f"--output={tmp_path / 'out'}")

    out = naiad.succeed("push", registry.uri("shop", "1"), tmp_path / "out")

    assert out.splitlines()[-1] == f"pushed {first}"


def test_a_large_file_has_a_layer_of_its_own(registry, naiad, models, tmp_path, monkeypatch):
    monkeypatch.setattr("naiad_operations.bundle.repository_image._LARGE_FILE", 10_000)
    (models / "plain" / "1" / "weights.bin").write_bytes(b"w" * 10_000)

    naiad.push(registry.uri("shop", "1"), models)
    naiad.succeed("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")

    layers = layers_of(registry, "shop")
    assert {"model/plain", "model/plain/1/weights.bin"} <= set(layers)
    assert (tmp_path / "out" / "plain" / "1" / "weights.bin").read_bytes() == b"w" * 10_000
    assert (tmp_path / "out" / "plain" / "1" / "model.py").exists()


def test_a_blob_of_another_repository_is_copied_within_the_registry(registry, naiad, models):
    naiad.push(registry.uri("team/shop", "1"), models)
    registry.asked.clear()

    out = naiad.succeed(
        "push", registry.uri("team/other", "1"), models, f"--backend-directory={models.parent / 'backends'}"
    )

    assert out.count("copied within the registry") == 6
    assert registry.received < 6000


def test_one_model_is_pulled_with_what_it_needs(registry, naiad, models, tmp_path):
    naiad.push(registry.uri("shop", "1"), models)

    naiad.succeed("pull", registry.uri("shop", "1"), "--model=shared", f"--output={tmp_path / 'out'}")

    assert set(contents(tmp_path / "out")) == {
        "shared/config.pbtxt", "shared/1/settings.txt", ".naiad/backends/loud/model.py",
    }  # fmt: skip
    assert naiad.fail("pull", registry.uri("shop", "1"), "--model=nothing").endswith(
        "has no such model; its models are packed, plain, shared"
    )


def test_a_pinned_repository_that_was_pulled_needs_no_registry(naiad, models):
    with Registry() as registry:
        pinned = naiad.push(registry.uri("shop", "1"), models)
        naiad.succeed("pull", pinned)

    out = naiad.succeed("explain", "shared", f"--model-repository={pinned}")

    assert ".naiad/backends/loud/model.py (found)" in out
    assert "cannot reach the registry" in naiad.fail("pull", registry.uri("shop", "1"))


def test_files_in_the_store_are_read_only_and_shared(registry, naiad, models):
    naiad.push(registry.uri("shop", "1"), models)
    naiad.succeed("pull", registry.uri("shop", "1"))
    (models / "plain" / "1" / "model.py").write_text(CODE % "new")
    naiad.push(registry.uri("shop", "2"), models)
    naiad.succeed("pull", registry.uri("shop", "2"))

    first, second = (naiad.store / "artifacts" / "repositories" / registry.tags["shop"][tag][7:] for tag in "12")
    unchanged = "shared/1/settings.txt"
    assert (first / unchanged).stat().st_ino == (second / unchanged).stat().st_ino
    assert not (first / unchanged).stat().st_mode & 0o222
    assert (first / "plain/1/model.py").stat().st_mtime_ns != (second / "plain/1/model.py").stat().st_mtime_ns


def test_pulled_files_that_another_user_keeps_for_itself_are_said_without_the_network(tmp_path, monkeypatch):
    folder = tmp_path / "artifacts" / "manifests"
    folder.mkdir(parents=True)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and may(path, mode))
    store = ArtifactStore(tmp_path, LogReporter())
    reference = parse_reference(f"oci://127.0.0.1:1/shop@sha256:{'a' * 64}")
    client = cast("RegistryClient", SimpleNamespace(reference=reference))

    with pytest.raises(RegistryError) as caught:
        store.artifact(client)

    assert caught.value.message.startswith(
        f"cannot pull {reference}: cannot use the store of environments at {tmp_path}: {folder} belongs to user "
    )


# -- what container engines see


def test_a_container_engine_sees_the_repository_in_the_folder_models(registry, naiad, models, tmp_path):
    naiad.push(registry.uri("shop", "1"), models)

    image = mount(registry, "shop", "1", tmp_path / "root")
    naiad.succeed("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")

    assert contents(tmp_path / "root" / "models") == contents(tmp_path / "out")
    assert image["os"] == "linux"
    assert image["architecture"] in {"amd64", "arm64"}
    # KServe mounts it as /mnt/models.
    (tmp_path / "mnt").symlink_to(tmp_path / "root" / "models")
    assert "loud/model.py (found)" in naiad.succeed("explain", "shared", f"--model-repository={tmp_path / 'mnt'}")
    assert "science.tar.zst" in naiad.succeed("explain", "packed", f"--model-repository={tmp_path / 'mnt'}")


def test_a_base_image_precedes_the_repository(registry, naiad, models, tmp_path):
    base = make_layout(tmp_path / "base")

    naiad.push(registry.uri("shop", "1"), models, f"--base={base}")
    image = mount(registry, "shop", "1", tmp_path / "root")
    naiad.succeed("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")

    assert (tmp_path / "root" / "bin" / "sh").read_text() == "a shell"
    assert (tmp_path / "root" / "models" / "plain" / "config.pbtxt").exists()
    assert image["config"]["Env"] == ["PATH=/bin"]
    assert not (tmp_path / "out" / "bin").exists()


def make_layout(folder):
    """An OCI image layout of one layer with a file `bin/sh`."""
    from support.registry import sha256

    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def add(data):
        (blobs / sha256(data)[7:]).write_bytes(data)
        return {"digest": sha256(data), "size": len(data)}

    layer = makers.write_tar(
        folder / "layer.tar", [(makers.member("bin/sh", mode=0o755), b"a shell")], "w"
    ).read_bytes()
    config = {"config": {"Env": ["PATH=/bin"]}, "rootfs": {"type": "layers", "diff_ids": [sha256(layer)]}}
    manifest = {
        "config": add(json.dumps(config).encode()),
        "layers": [{**add(layer), "mediaType": "application/vnd.oci.image.layer.v1.tar"}],
    }
    (folder / "index.json").write_text(json.dumps({"manifests": [add(json.dumps(manifest).encode())]}))
    return folder


# -- errors: one sentence each


def test_an_existing_folder_is_not_overwritten(registry, naiad, models, tmp_path):
    naiad.push(registry.uri("shop", "1"), models)
    (tmp_path / "out").mkdir()

    assert "it exists; choose another folder" in naiad.fail(
        "pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}"
    )


def test_missing_credentials_and_unknown_tags_are_told_by_the_commands(registry, naiad, models):
    naiad.push(registry.uri("shop", "1"), models)

    assert naiad.fail("pull", registry.uri("shop", "2")).endswith("has no tag '2' of 'shop'; its tags are 1")
    registry.login = ("ann", "secret")
    assert f"log in with `docker login {registry.host}`" in naiad.fail("pull", registry.uri("shop", "1"))
    pushed = ("push", registry.uri("shop", "1"), models, f"--backend-directory={models.parent / 'backends'}")
    assert f"log in with `docker login {registry.host}`" in naiad.fail(*pushed)


def test_a_login_in_docker_s_file_is_used(registry, naiad, models, tmp_path, monkeypatch):
    registry.login = ("ann", "secret")
    (tmp_path / "docker").mkdir()
    auths = {registry.host: {"auth": "YW5uOnNlY3JldA=="}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))

    naiad.push(registry.uri("shop", "1"), models)
    naiad.succeed("pull", registry.uri("shop", "1"))


def test_a_layer_that_was_altered_in_the_registry_is_named_and_leaves_nothing(registry, naiad, models, tmp_path):
    naiad.push(registry.uri("shop", "1"), models)
    digest = layers_of(registry, "shop")["model/plain"]["digest"]
    data = registry.blobs["shop"][digest]
    registry.blobs["shop"][digest] = data[:-1] + bytes([data[-1] ^ 1])

    error = naiad.fail("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")

    assert f"model 'plain' of {registry.uri('shop', '1')} does not match its digest" in error
    assert not (tmp_path / "out").exists()
    assert not (naiad.store / "artifacts" / "layers" / digest[7:]).exists()


@pytest.mark.parametrize(
    ("member", "cause"),
    [
        (makers.member("../outside"), "leads out of the archive"),
        (makers.member("/outside"), "is an absolute path"),
        (makers.member("models/plain/../../../outside"), "leads out of the archive"),
        (makers.member("models/plain/link", tarfile.SYMTYPE, "/etc/passwd"), "is a symbolic link to the absolute path"),
        (
            makers.member("models/plain/link", tarfile.SYMTYPE, "../../../x"),
            "is a symbolic link that leaves the archive",
        ),
        # Inside of the layer, but outside of the repository.
        (
            makers.member("models/plain/link", tarfile.SYMTYPE, "../../other"),
            "is a symbolic link, and `naiad push` writes none",
        ),
        (makers.member("models/plain/pipe", tarfile.FIFOTYPE), "is a named pipe"),
        (makers.member("models/plain/device", tarfile.CHRTYPE), "is a device node"),
    ],
)
def test_an_unsafe_layer_is_refused_by_its_name(registry, naiad, models, tmp_path, member, cause):
    naiad.push(registry.uri("shop", "1"), models)
    good = makers.member("models/plain/config.pbtxt")
    replace_layer(registry, "shop", "1", "model/plain", [(good, b""), (member, b"")], tmp_path)

    error = naiad.fail("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")

    assert "model 'plain' of oci://" in error
    assert cause in error
    assert not (tmp_path / "out").exists()
    assert not list((naiad.store / "artifacts" / "repositories").glob("*/plain"))
    assert not list(tmp_path.rglob("outside"))


def test_a_layer_brings_nothing_but_its_own_part(registry, naiad, models, tmp_path):
    """A layer of one model cannot replace the files of another."""
    naiad.push(registry.uri("shop", "1"), models)
    files = [(makers.member(f"models/{name}/1/model.py"), b"replaced") for name in ("plain", "packed")]
    replace_layer(registry, "shop", "1", "model/plain", files, tmp_path)

    naiad.succeed("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")

    assert (tmp_path / "out" / "plain" / "1" / "model.py").read_bytes() == b"replaced"
    assert (tmp_path / "out" / "packed" / "1" / "model.py").read_text() == CODE % "packed"


def test_a_layer_without_its_part_is_refused(registry, naiad, models, tmp_path):
    naiad.push(registry.uri("shop", "1"), models)
    replace_layer(registry, "shop", "1", "model/plain", [(makers.member("models/other/x"), b"")], tmp_path)

    assert "the layer has no models/plain; push the repository again" in naiad.fail("pull", registry.uri("shop", "1"))


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".hidden", ""])
def test_a_layer_whose_name_is_a_path_is_refused(registry, naiad, models, name):
    naiad.push(registry.uri("shop", "1"), models)
    manifest = registry.manifest("shop", "1")
    manifest["layers"][3]["annotations"]["naiad.name"] = name
    registry.put("shop", "1", manifest)

    assert f'is malformed (ValueError("{name!r} is not the name of a model"))' in naiad.fail(
        "pull", registry.uri("shop", "1")
    )


def test_other_artifacts_are_not_taken_for_repositories(registry, naiad):
    image = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}
    registry.put("image", "1", image)

    error = naiad.fail("pull", registry.uri("image", "1"))

    assert "as a model repository: its type is application/vnd.oci.image.manifest.v1+json" in error


def test_a_push_that_fails_moves_no_tag(registry, naiad, models):
    registry.faults.append(Fault("PUT", "blobs/uploads", status=503, times=100))

    assert "cannot reach the registry" in naiad.fail(
        "push", registry.uri("shop", "1"), models, f"--backend-directory={models.parent / 'backends'}"
    )

    assert "shop" not in registry.tags
    assert not list((naiad.store / "artifacts" / "pushes").iterdir())
    registry.faults.clear()
    naiad.push(registry.uri("shop", "1"), models)


def test_a_model_that_would_not_load_is_not_pushed(registry, naiad, tmp_path):
    models = make_repository(tmp_path / "broken")
    add_model(models, "lost", "x", environment="/nowhere.tar.gz")

    assert "/nowhere.tar.gz" in naiad.fail(
        "push", registry.uri("shop", "1"), models, f"--backend-directory={models.parent / 'backends'}"
    )
    assert "shop" not in registry.tags


def test_a_full_disk_is_told_and_leaves_nothing(registry, naiad, models, monkeypatch):
    from types import SimpleNamespace

    naiad.push(registry.uri("shop", "1"), models)
    monkeypatch.setattr("naiad.sources.registry.client.shutil.disk_usage", lambda _: SimpleNamespace(free=100))

    assert "no space to download" in naiad.fail("pull", registry.uri("shop", "1"))

    monkeypatch.undo()


def test_a_push_needs_a_tag_and_one_repository(registry, naiad, models):
    digest = "sha256:" + "0" * 64
    assert "a digest is the result of a push; name a tag" in naiad.fail(
        "push", f"{registry.uri('shop')}@{digest}", models
    )
    code, _, err = naiad.run("push", registry.uri("shop", "1"))
    assert code == 2
    assert "give a reference and a model repository" in err


@pytest.mark.server
@pytest.mark.parametrize("secret", ["user:hunter2", "hunter2", "user:hun/ter2@hunter2"])
def test_a_password_in_a_reference_is_refused_and_never_repeated(naiad, models, tmp_path, secret):
    location = f"oci://{secret}@127.0.0.1:1/shop:1"
    for arguments in (
        ("push", location, models),
        ("pull", location),
        ("verify", location),
        ("explain", "plain", f"--model-repository={location}"),
    ):
        assert naiad.fail(*arguments) == (
            "cannot use 'oci://127.0.0.1:1/shop:1' with a user or a password in it: log in with `docker login` or "
            "`podman login` instead, and write the reference without them"
        )
    _, out, err = naiad.run("env", "prefetch", location)
    served = subprocess.run(
        [sys.executable, "-m", "naiad", "serve", f"--model-repository={location}", "--log-verbose=1"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "started with --model-repository=oci://127.0.0.1:1/shop:1" in served.stdout + served.stderr
    assert "ter2" not in out + err + served.stdout + served.stderr


@pytest.mark.parametrize("depth", [300, 3000])
def test_a_member_that_is_too_deep_is_refused(registry, naiad, models, tmp_path, depth):
    naiad.push(registry.uri("shop", "1"), models)
    deep = "models/plain/" + "d/" * depth + "model.py"
    replace_layer(registry, "shop", "1", "model/plain", [(makers.member(deep), b"pass")], tmp_path)

    error = naiad.fail("pull", registry.uri("shop", "1"))

    assert "is refused: its member 'models/plain/d/d/d" in error
    assert "is more than 256 folders deep" in error
    assert len(error) < 1000


@pytest.mark.parametrize("size", [-5, True, "7", 1.5, None])
def test_a_layer_of_an_impossible_size_is_malformed(registry, naiad, models, size):
    naiad.push(registry.uri("shop", "1"), models)
    manifest = registry.manifest("shop", "1")
    manifest["layers"][0]["size"] = size
    registry.put("shop", "1", manifest)

    error = naiad.fail("pull", registry.uri("shop", "1"))

    assert "cannot read the manifest of oci://" in error
    assert f"{size!r} is not the size of a layer" in error
