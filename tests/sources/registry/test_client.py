"""The client of registries, against one on a loopback port: transfers, authorization, faults, and what errors say."""

from __future__ import annotations

import base64
import errno
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.registry import Fault, Registry

from naiad.core.errors import Code, RegistryError
from naiad.sources.registry import client as client_module
from naiad.sources.registry.authorization import Authorization
from naiad.sources.registry.client import RegistryClient, open_registry, sha256_of
from naiad.sources.registry.credentials import RegistryCredentials
from naiad.sources.registry.references import parse_reference
from naiad.sources.registry.transport import RegistryTransport

DATA = bytes(range(256)) * 4096  # a mebibyte
DIGEST = sha256_of(DATA)
MANIFEST = json.dumps({"config": {"digest": DIGEST}, "layers": []}).encode()
TYPE = "application/vnd.oci.image.manifest.v1+json"
ANN = RegistryCredentials(user="ann", password="secret", origin="config.json")


@pytest.fixture
def registry():
    with Registry() as running:
        yield running


def open_client(registry, name="shop", credentials=None, pauses=(0.0, 0.0)):
    reference = parse_reference(registry.uri(name, "1"))
    return RegistryClient(reference, RegistryTransport(reference, credentials, pauses))


def ignore(_count: int) -> None:
    """Progress nobody looks at."""


def give(registry, data=DATA, name="shop"):
    registry.blobs.setdefault(name, {})[sha256_of(data)] = data


# -- sending


def test_a_small_blob_is_sent_by_post_and_put(registry):
    client = open_client(registry)
    moved: list[int] = []

    assert not client.has_blob(DIGEST)
    client.send_blob(DATA, DIGEST, moved.append)

    assert client.has_blob(DIGEST)
    assert registry.blobs["shop"][DIGEST] == DATA
    assert sum(moved) == len(DATA)
    assert not registry.requests("PATCH")


def test_a_long_blob_is_sent_in_chunks(registry, monkeypatch, tmp_path):
    monkeypatch.setattr(client_module, "CHUNK", 300_000)
    path = tmp_path / "blob"
    path.write_bytes(DATA)

    open_client(registry).send_blob(path, DIGEST, ignore)

    assert registry.blobs["shop"][DIGEST] == DATA
    assert [asked.size for asked in registry.requests("PATCH")] == [300_000, 300_000, 300_000, len(DATA) - 900_000]


def test_a_chunk_that_breaks_is_resumed_where_the_registry_says(registry, monkeypatch):
    monkeypatch.setattr(client_module, "CHUNK", 300_000)
    registry.faults.append(Fault("PATCH", "uploads", cut=1000))
    registry.faults.append(Fault("PATCH", "uploads", status=503))

    open_client(registry).send_blob(DATA, DIGEST, ignore)

    assert registry.blobs["shop"][DIGEST] == DATA
    # The state of the upload was asked for after each fault.
    assert len(registry.requests("GET", "uploads")) == 2


def test_a_registry_mounts_a_blob_of_another_repository(registry):
    give(registry, name="team/other")

    client = open_client(registry)

    assert client.mount_blob(DIGEST, ["team/unknown", "team/other"])
    assert registry.blobs["shop"][DIGEST] == DATA


def test_an_upload_that_a_registry_begins_in_place_of_a_mount_is_cancelled(registry):
    give(registry, name="other")
    registry.mounts = False

    assert not open_client(registry).mount_blob(DIGEST, ["other"])
    assert not registry.uploads


def test_a_manifest_is_stored_and_read_by_tag_and_digest(registry):
    give(registry)
    client = open_client(registry)

    client.put_manifest("1", MANIFEST, TYPE)

    assert client.read_manifest("1") == (sha256_of(MANIFEST), MANIFEST)
    assert client.read_manifest(sha256_of(MANIFEST))[1] == MANIFEST
    assert client.tags() == ["1"]


def test_a_manifest_without_its_blobs_is_rejected_with_the_registry_s_words(registry):
    with pytest.raises(
        RegistryError, match=r"rejects PUT .*/manifests/1: 404 .*MANIFEST_BLOB_UNKNOWN: said by the registry"
    ):
        open_client(registry).put_manifest("1", MANIFEST, TYPE)


# -- receiving


def test_a_blob_is_downloaded_and_verified(registry, tmp_path):
    give(registry)
    moved: list[int] = []

    open_client(registry).download_blob(DIGEST, len(DATA), tmp_path / "x" / "part", "layer", moved.append)

    assert (tmp_path / "x" / "part").read_bytes() == DATA
    assert sum(moved) == len(DATA)


def test_a_download_that_breaks_is_resumed(registry, tmp_path):
    give(registry)
    registry.faults += [
        Fault("GET", "blobs", cut=500_000),
        Fault("GET", "blobs", status=503),
        Fault("GET", "blobs", cut=100_000),
    ]

    open_client(registry).download_blob(DIGEST, len(DATA), tmp_path / "part", "layer", ignore)

    assert (tmp_path / "part").read_bytes() == DATA


def test_a_download_is_resumed_where_a_killed_process_stopped(registry, tmp_path):
    give(registry)
    (tmp_path / "part").write_bytes(DATA[:900_000])
    ranges: list[str] = []

    client = open_client(registry)
    client.download_blob(DIGEST, len(DATA), tmp_path / "part", "layer", lambda count: ranges.append(str(count)))

    assert (tmp_path / "part").read_bytes() == DATA
    assert ranges[0] == "900000"


def test_damaged_bytes_of_an_earlier_download_are_downloaded_again(registry, tmp_path):
    give(registry)
    (tmp_path / "part").write_bytes(b"\0" * 900_000)

    open_client(registry).download_blob(DIGEST, len(DATA), tmp_path / "part", "layer", ignore)

    assert (tmp_path / "part").read_bytes() == DATA


def test_an_earlier_download_that_is_too_long_is_dropped(registry, tmp_path):
    give(registry)
    (tmp_path / "part").write_bytes(DATA + b"more")

    open_client(registry).download_blob(DIGEST, len(DATA), tmp_path / "part", "layer", ignore)

    assert (tmp_path / "part").read_bytes() == DATA


@pytest.mark.parametrize("wrong", [DATA[:-1] + b"x", DATA + b"x"])
def test_a_blob_that_does_not_match_its_digest_is_rejected_and_removed(registry, tmp_path, wrong):
    registry.blobs["shop"] = {DIGEST: wrong}

    with pytest.raises(
        RegistryError, match=r"layer 'x' of oci://.*/shop:1 does not match its digest: the manifest has"
    ):
        open_client(registry).download_blob(DIGEST, len(DATA), tmp_path / "part", "layer 'x'", ignore)

    if len(wrong) == len(DATA):
        assert not (tmp_path / "part").exists()


def test_a_manifest_that_does_not_match_its_digest_is_rejected(registry):
    wanted = sha256_of(MANIFEST)
    registry.manifests["shop"] = {wanted: (TYPE, MANIFEST + b" ")}

    with pytest.raises(
        RegistryError, match=f"does not match its digest: {wanted} was asked for, and the registry sent sha256:"
    ):
        open_client(registry).read_manifest(wanted)


def test_credentials_do_not_follow_a_redirect_to_another_host(registry, tmp_path):
    registry.login, registry.redirects = ("ann", "secret"), True
    give(registry)

    open_client(registry, credentials=ANN).download_blob(DIGEST, len(DATA), tmp_path / "part", "layer", ignore)

    assert (tmp_path / "part").read_bytes() == DATA
    redirected = registry.requests("GET", "^/storage/")
    assert redirected
    assert all(not asked.authorization for asked in redirected)


# -- authorization


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
def test_a_login_is_used_when_the_registry_asks_for_it(registry, scheme):
    registry.login, registry.scheme = ("ann", "secret"), scheme
    client = open_client(registry, credentials=ANN)

    client.send_blob(DATA, DIGEST, ignore)
    client.put_manifest("1", MANIFEST, TYPE)

    assert client.read_manifest("1")[1] == MANIFEST
    assert client.has_blob(DIGEST)


def test_a_token_is_requested_once_for_each_scope(registry):
    registry.login = ("ann", "secret")
    client = open_client(registry, credentials=ANN)

    for _ in range(3):
        client.has_blob(DIGEST)
    client.send_blob(DATA, DIGEST, ignore)
    client.has_blob(DIGEST)

    assert len(registry.requests("GET", "^/token")) == 2


def test_a_token_that_expired_is_renewed(registry):
    registry.login = ("ann", "secret")
    client = open_client(registry, credentials=ANN)
    client.has_blob(DIGEST)
    registry.tokens.clear()

    assert not client.has_blob(DIGEST)


def test_an_identity_token_is_exchanged(registry):
    registry.login = ("ann", "secret")
    credentials = RegistryCredentials(identity_token=registry.identity_token, origin="config.json")

    assert not open_client(registry, credentials=credentials).has_blob(DIGEST)
    assert registry.requests("POST", "^/token")


TOKEN_SERVERS = [
    ("registry.example:5000", "https://registry.example/token", ()),
    ("registry.example", "https://auth.registry.example/token", ()),
    ("registry.gitlab.com", "https://gitlab.com/jwt/auth", ()),
    ("docker.io", "https://auth.docker.io/token", ()),
    ("index.docker.io", "https://auth.docker.io/token", ()),
    ("registry-1.docker.io", "https://auth.docker.io/token", ()),
    ("127.0.0.1:5000", "http://127.0.0.1:5001/token", ()),
    ("registry.example", "https://tokens.other:8443/", ("tokens.other:8443",)),
]
FOREIGN_SERVERS = [
    ("registry.example", "https://evil.test/token", "'evil.test' is not a host of the registry, and gets no password"),
    ("registry.example", "https://example.evil.test/", "'example.evil.test' is not a host of the registry"),
    ("registry.example", "https://registry.example@evil.test/", "'evil.test' is not a host of the registry"),
    ("a.azurecr.io", "https://b.azurecr.io/token", "set NAIAD_REGISTRY_TOKEN_SERVERS=b.azurecr.io"),
    ("notexample.com", "https://example.com/token", "'example.com' is not a host of the registry"),
    ("registry.example", "http://registry.example/token", "it is not encrypted, and gets no password; use https"),
    ("registry.example", "http://127.0.0.1/token", "'127.0.0.1' is not a host of the registry"),
    ("registry.example", "https:///token", "'' is not a host of the registry"),
]  # fmt: skip


def ask_for_token(registry, realm, credentials, allowed=()):
    """The requests for tokens that a challenge leads to."""
    asked = []

    def answer(request):
        asked.append(request)
        return io.BytesIO(b'{"token": "t"}')

    Authorization(registry, "shop", credentials, answer, allowed).answer(f'Bearer realm="{realm}"', "")
    return asked


@pytest.mark.parametrize(("registry", "realm", "allowed"), TOKEN_SERVERS)
def test_a_password_is_sent_to_servers_of_tokens_of_the_registry(registry, realm, allowed):
    (request,) = ask_for_token(registry, realm, ANN, allowed)

    assert request.unredirected_hdrs["Authorization"] == ANN.basic


@pytest.mark.parametrize(("registry", "realm", "problem"), FOREIGN_SERVERS)
@pytest.mark.parametrize("credentials", [ANN, RegistryCredentials(identity_token="again", origin="config.json")])
def test_no_password_is_sent_to_a_foreign_server_of_tokens(registry, realm, problem, credentials):
    with pytest.raises(RegistryError) as failed:
        ask_for_token(registry, realm, credentials)

    start = f"cannot get a token for 'shop' of the registry {registry} from {realm}: "
    assert failed.value.message.startswith(start)
    assert problem in failed.value.message


def test_an_anonymous_client_has_no_password_to_lose():
    (request,) = ask_for_token("registry.example", "https://evil.test/token", None)

    assert "Authorization" not in request.unredirected_hdrs


def test_the_operator_names_a_server_of_tokens_by_a_variable(registry, tmp_path):
    registry.login = ("ann", "secret")
    config = {"auths": {registry.host: {"auth": base64.b64encode(b"ann:secret").decode()}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    port = registry.host.rpartition(":")[2]
    challenge = f'Bearer realm="http://localhost:{port}/token",service="tests",scope="repository:shop:pull"'
    reference, environ = parse_reference(registry.uri("shop", "1")), {"DOCKER_CONFIG": str(tmp_path)}

    def has_blob(**more):
        registry.faults.append(Fault("HEAD", "", status=401, headers={"WWW-Authenticate": challenge}))
        return open_registry(reference, environ | more).has_blob(DIGEST)

    with pytest.raises(RegistryError, match=rf"set NAIAD_REGISTRY_TOKEN_SERVERS=localhost:{port}"):
        has_blob()
    assert not registry.requests("GET", "^/token")
    assert not has_blob(NAIAD_REGISTRY_TOKEN_SERVERS=f"other, LOCALHOST:{port}")


@pytest.mark.parametrize("login", [None, ("ann", "secret")])
def test_a_storage_that_a_download_is_redirected_to_cannot_ask_for_the_password(registry, tmp_path, login):
    registry.login, registry.redirects = login, True
    give(registry)
    challenge = f'Bearer realm="http://{registry.host}/token?stolen=1",scope="repository:shop:pull"'
    registry.faults.append(Fault("GET", "^/storage/", status=401, headers={"WWW-Authenticate": challenge}, times=9))
    client = open_client(registry, credentials=ANN)

    with pytest.raises(RegistryError, match=r"which refuses it \(401\); ask the registry's owner"):
        client.download_blob(DIGEST, len(DATA), tmp_path / "part", "layer", ignore)

    assert not registry.requests("GET", "stolen")


def test_anonymous_clients_pull_from_public_repositories_and_may_not_push(registry):
    registry.login, registry.is_public = ("ann", "secret"), True
    give(registry)
    client = open_client(registry)

    assert client.has_blob(DIGEST)
    with pytest.raises(
        RegistryError, match=r"refuses access to 'shop' \(401\): no credentials for it are in Docker's config"
    ):
        client.send_blob(DATA, DIGEST, ignore)


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
def test_wrong_and_missing_credentials_are_errors_that_say_how_to_log_in(registry, scheme):
    registry.login, registry.scheme = ("ann", "other"), scheme

    for credentials, cause in (
        (None, "no credentials for it are in Docker's config.json"),
        (ANN, "of config.json do not permit"),
    ):
        with pytest.raises(RegistryError) as raised:
            open_client(registry, credentials=credentials).has_blob(DIGEST)
        assert cause in raised.value.message
        assert f"log in with `docker login {registry.host}`" in raised.value.message
        assert "secret" not in raised.value.message


def test_an_unknown_way_to_authenticate_is_named(registry):
    registry.faults.append(Fault("HEAD", "blobs", status=401, headers={"WWW-Authenticate": "Negotiate"}))

    with pytest.raises(
        RegistryError, match=r"asks for an unknown authentication \(Negotiate\); naiad supports basic and bearer"
    ):
        open_client(registry).has_blob(DIGEST)


# -- faults and errors


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_temporary_errors_are_tried_again(registry, status):
    give(registry)
    registry.faults.append(Fault("HEAD", "blobs", status=status, times=2))

    assert open_client(registry).has_blob(DIGEST)


def test_a_registry_names_the_pause_before_the_next_attempt(registry, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr("naiad.sources.registry.transport.time.sleep", slept.append)
    registry.faults.append(Fault("HEAD", "blobs", status=429, headers={"Retry-After": "7"}))
    registry.faults.append(Fault("HEAD", "blobs", status=503, times=2))

    open_client(registry, pauses=(0.5, 1.0, 2.0)).has_blob(DIGEST)

    assert slept == [7.0, 1.0, 2.0]


def test_a_registry_that_cannot_be_reached_is_named():
    with Registry() as registry:
        client = open_client(registry)

    with pytest.raises(RegistryError) as raised:
        client.has_blob(DIGEST)

    assert raised.value.code is Code.UNAVAILABLE
    assert raised.value.message.startswith(f"cannot reach the registry {registry.host}: ")
    assert "Connection refused; gave up after 3 attempts: check its name" in raised.value.message


def test_an_unknown_tag_is_reported_with_the_known_ones(registry):
    give(registry)
    client = open_client(registry)
    client.put_manifest("1", MANIFEST, TYPE)
    client.put_manifest("2", MANIFEST, TYPE)

    with pytest.raises(RegistryError, match=r"has no tag '3' of 'shop'; its tags are 1, 2$") as raised:
        client.read_manifest("3")

    assert raised.value.code is Code.NOT_FOUND
    with pytest.raises(RegistryError, match=r"has no manifest 'sha256:0+' of 'nothing'; it lists no tags$"):
        open_client(registry, "nothing").read_manifest("sha256:" + "0" * 64)


def test_a_blob_that_the_registry_lost_is_named(registry, tmp_path):
    with pytest.raises(RegistryError, match=r"cannot find layer 'x' of oci://.*: the registry .* has no blob sha256:"):
        open_client(registry).download_blob(DIGEST, 10, tmp_path / "part", "layer 'x'", ignore)


def test_too_little_space_is_reported_before_a_download(registry, tmp_path, monkeypatch):
    give(registry)
    monkeypatch.setattr(client_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))

    with pytest.raises(
        RegistryError, match=r"no space to download layer 'x' of .*: 1\.0 MB are needed, 0\.0 MB are free on"
    ):
        open_client(registry).download_blob(DIGEST, len(DATA), tmp_path / "part", "layer 'x'", ignore)

    assert not registry.requests("GET", "blobs")


def test_a_disk_that_fills_up_during_a_download_is_reported_and_the_bytes_stay(registry, tmp_path, monkeypatch):
    give(registry)
    stream = RegistryClient.stream_blob

    def fill(self, digest, size, what, start=0):
        for number, piece in enumerate(stream(self, digest, size, what, start)):
            if number == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            yield piece

    monkeypatch.setattr(RegistryClient, "stream_blob", fill)

    with pytest.raises(
        RegistryError, match=r"no space to download layer 'x' of .*; make room there, or choose another folder"
    ):
        open_client(registry).download_blob(DIGEST, len(DATA), tmp_path / "part", "layer 'x'", ignore)

    kept = (tmp_path / "part").read_bytes()
    assert kept
    assert DATA.startswith(kept)
    assert shutil.disk_usage(Path(tmp_path)).free
