"""Credentials as `docker login` and `podman login` store them."""

from __future__ import annotations

import base64
import json
import os
import sys

import pytest

from naiad.core.errors import RegistryError
from naiad.sources.registry.credentials import find_credentials
from naiad.sources.registry.references import parse_reference

SHOP = parse_reference("oci://registry.example:5000/team/shop:1")


def encoded(user, password):
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def write(folder, content):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    return {"DOCKER_CONFIG": str(folder)}


def test_without_a_file_access_is_anonymous(tmp_path):
    assert find_credentials(SHOP, {"HOME": str(tmp_path)}) is None
    assert find_credentials(SHOP, {}) is None


@pytest.mark.parametrize(
    "key",
    [
        "registry.example:5000",
        "https://registry.example:5000",
        "https://registry.example:5000/v2/",
        "registry.example:5000/team",
    ],
)
def test_the_key_of_a_registry_may_have_docker_s_old_and_podman_s_new_forms(tmp_path, key):
    environ = write(tmp_path, {"auths": {key: encoded("ann", "se:cret"), "other.example": encoded("bob", "x")}})

    found = find_credentials(SHOP, environ)

    assert (found.user, found.password) == ("ann", "se:cret")
    assert "se:cret" not in repr(found)


def test_the_longest_matching_key_wins(tmp_path):
    auths = {
        "registry.example:5000": encoded("all", "1"),
        "registry.example:5000/team/shop": encoded("shop", "2"),
        "registry.example:5000/team": encoded("team", "3"),
        "registry.example:5000/team/sho": encoded("prefix", "4"),
    }

    assert find_credentials(SHOP, write(tmp_path, {"auths": auths})).user == "shop"


def test_an_identity_token_replaces_the_password(tmp_path):
    found = find_credentials(SHOP, write(tmp_path, {"auths": {SHOP.registry: {"identitytoken": "refresh"}}}))

    assert (found.identity_token, found.user) == ("refresh", "")


def test_the_files_are_read_in_order(tmp_path):
    docker = write(tmp_path / "docker", {"auths": {"else.example": encoded("x", "y")}})
    podman = tmp_path / "run" / "containers"
    podman.mkdir(parents=True)
    (podman / "auth.json").write_text(json.dumps({"auths": {SHOP.registry: encoded("pod", "man")}}))

    assert find_credentials(SHOP, {**docker, "XDG_RUNTIME_DIR": str(tmp_path / "run")}).user == "pod"


def helper(folder, name, answer, code=0):
    program = folder / f"docker-credential-{name}"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1:] == ['get']\n"
        f"assert sys.stdin.read() == {SHOP.registry!r}\nprint({answer!r})\nsys.exit({code})\n"
    )
    program.chmod(0o755)


def test_a_credential_helper_is_asked(tmp_path, monkeypatch):
    helper(tmp_path, "vault", json.dumps({"Username": "ann", "Secret": "secret"}))
    helper(tmp_path, "tokens", json.dumps({"Username": "<token>", "Secret": "refresh"}))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    own = find_credentials(SHOP, write(tmp_path / "a", {"credHelpers": {SHOP.registry: "vault"}}))
    every = find_credentials(SHOP, write(tmp_path / "b", {"credsStore": "tokens"}))

    assert (own.user, own.password) == ("ann", "secret")
    assert every.identity_token == "refresh"


def test_a_helper_without_an_entry_leaves_the_file(tmp_path, monkeypatch):
    helper(tmp_path, "empty", "credentials not found in native keychain", code=1)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    content = {"credsStore": "empty", "auths": {SHOP.registry: encoded("ann", "secret")}}

    assert find_credentials(SHOP, write(tmp_path / "a", content)).user == "ann"


def test_a_missing_helper_and_a_malformed_file_are_errors_that_name_them(tmp_path):
    with pytest.raises(
        RegistryError, match=r"cannot ask docker-credential-nowhere for the credentials of registry.example"
    ):
        find_credentials(SHOP, write(tmp_path / "a", {"credsStore": "nowhere"}))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text("{")
    with pytest.raises(RegistryError, match=r"cannot read the credentials in .*b/config.json.*docker login"):
        find_credentials(SHOP, {"DOCKER_CONFIG": str(tmp_path / "b")})
