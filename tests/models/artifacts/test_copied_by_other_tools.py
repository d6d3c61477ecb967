"""Pushed repositories that other programs copy between real registries and layouts: skopeo, umoci, oras."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from models.artifacts.repositories import contents
from support.server import HOST, free_ports
from support.system_packages import needs
from support.waiting import until

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def real_registry(folder: Path) -> Iterator[str]:
    """Debian's docker-registry; its host and port."""
    folder.mkdir()
    (port,) = free_ports(1)
    storage = f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}"
    (folder / "config.yml").write_text(
        f'version: 0.1\n{storage}\nhttp: {{addr: "{HOST}:{port}"}}\nlog: {{level: error}}\n'
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log)
    try:
        until(lambda: answers(port), "the registry")
        yield f"{HOST}:{port}"
    finally:
        process.terminate()
        process.wait(10)


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def manifest(host: str, name: str) -> tuple[str, bytes]:
    """The digest and the content of a tag's manifest."""
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", f"/v2/{name}/manifests/1", headers={"Accept": MANIFEST})
        reply = connection.getresponse()
        return str(reply.getheader("Docker-Content-Digest")), reply.read()
    finally:
        connection.close()


def skopeo(*command: str) -> None:
    run("skopeo", "copy", "--insecure-policy", "--src-tls-verify=false", "--dest-tls-verify=false", *command)


@pytest.mark.server
@needs("docker-registry", "skopeo")
def test_skopeo_copies_a_repository_between_registries_and_layouts_as_it_is(naiad, models, tmp_path):
    with real_registry(tmp_path / "first") as first, real_registry(tmp_path / "second") as second:
        naiad.push(f"oci://{first}/shop:1", models)
        pushed = manifest(first, "shop")

        skopeo(f"docker://{first}/shop:1", f"docker://{second}/direct:1")
        skopeo(f"docker://{first}/shop:1", f"oci:{tmp_path / 'layout'}:1")
        skopeo(f"oci:{tmp_path / 'layout'}:1", f"docker://{second}/through-a-layout:1")

        assert manifest(second, "direct") == pushed
        assert manifest(second, "through-a-layout") == pushed
        naiad.succeed("pull", f"oci://{second}/through-a-layout:1", f"--output={tmp_path / 'out'}")
        assert contents(tmp_path / "out")["plain/config.pbtxt"] == (models / "plain" / "config.pbtxt").read_bytes()


@pytest.mark.server
@needs("docker-registry", "skopeo", "umoci")
def test_umoci_unpacks_a_repository(naiad, models, tmp_path):
    with real_registry(tmp_path / "first") as first:
        naiad.push(f"oci://{first}/shop:1", models)
        skopeo(f"docker://{first}/shop:1", f"oci:{tmp_path / 'layout'}:1")

    run("umoci", "unpack", "--rootless", "--image", f"{tmp_path / 'layout'}:1", tmp_path / "bundle")

    unpacked = tmp_path / "bundle" / "rootfs" / "models"
    assert (unpacked / "plain" / "config.pbtxt").read_bytes() == (models / "plain" / "config.pbtxt").read_bytes()
    assert len(list(unpacked.glob(".naiad/environments/*/*"))) == 1


@pytest.mark.server
@needs("docker-registry")
@pytest.mark.skipif(shutil.which("oras") is None, reason="there is no oras, which Debian has not had before version 13")
def test_oras_copies_a_repository(naiad, models, tmp_path):
    with real_registry(tmp_path / "first") as first, real_registry(tmp_path / "second") as second:
        naiad.push(f"oci://{first}/shop:1", models)

        run("oras", "cp", "--from-plain-http", "--to-plain-http", f"{first}/shop:1", f"{second}/shop:1")

        assert manifest(second, "shop") == manifest(first, "shop")


def test_a_repository_whose_manifest_was_written_again_is_refused_with_the_cause(registry, naiad, models):
    naiad.push(registry.uri("shop", "1"), models)
    written = registry.manifest("shop", "1")
    del written["artifactType"]
    del written["layers"][0]["annotations"]
    registry.put("copied", "1", written)

    printed = naiad.fail("pull", registry.uri("copied", "1"))

    assert "as a model repository: it was one, and the program that copied it has written another manifest" in printed
    assert "copy the original with `skopeo copy --preserve-digests` or `oras cp`" in printed
