"""Repositories that were pulled are removed when nothing uses them, and what stays is shown with the reason."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from models.artifacts.repositories import CODE

from naiad.environments.progress import LogReporter
from naiad.environments.store.pulled import lease_artifact, read_pulled
from naiad.models.artifacts.policy import ArtifactPolicy
from naiad.models.artifacts.repository import ArtifactRepository

DAY = 86_400


@pytest.fixture
def pulled(registry, naiad, models):
    """A store with `shop:1` and `shop:2`, which differ in one model; returns their digests."""
    digests = []
    for tag in ("1", "2"):
        naiad.push(registry.uri("shop", tag), models)
        naiad.succeed("pull", registry.uri("shop", tag))
        digests.append(registry.tags["shop"][tag].removeprefix("sha256:"))
        (models / "plain" / "1" / "model.py").write_text(CODE % "other")
    return digests


def age(store, digest, days):
    lock = store / "artifacts" / "uses" / digest / "lock"
    os.utime(lock, (time.time() - days * DAY,) * 2)


def layers(store):
    return {path.name for path in (store / "artifacts" / "layers").iterdir()}


def test_an_unused_repository_goes_with_the_layers_that_only_it_has(registry, naiad, pulled):
    first, second = pulled
    age(naiad.store, first, 40)
    shown = naiad.succeed("env", "list")
    assert registry.uri("shop", "1") in shown
    assert "packed, plain, shared" in shown
    assert "2 pulled repositories, " in shown
    before = layers(naiad.store)
    size = json.loads(naiad.succeed("env", "list", "--json"))["total"]
    # Both repositories have the same environment; it counts once.
    assert size < 1.5 * max(one.size for one in read_pulled(naiad.store))

    dry = naiad.succeed("env", "gc", "--older-than=30d", "--dry-run")
    assert layers(naiad.store) == before
    found = naiad.succeed("env", "gc", "--older-than=30d")

    assert "would remove 0 environments, 1 pulled repository and 0 leftovers" in dry
    assert "removed 0 environments, 1 pulled repository and 0 leftovers" in found
    assert [one.digest for one in read_pulled(naiad.store)] == [second]
    assert len(before) - len(layers(naiad.store)) == 1  # the model that differs
    assert not (naiad.store / "artifacts" / "repositories" / first).exists()
    assert not list((naiad.store / "artifacts" / "staging").iterdir())
    naiad.succeed("pull", registry.uri("shop", "1"))  # it can be pulled again
    assert naiad.succeed("env", "gc", "--keep-bytes=0").splitlines()[-1].endswith("; 0 stay")
    assert not layers(naiad.store)


def test_a_server_with_a_limit_removes_unused_repositories_after_a_pull(registry, naiad, models, pulled, caplog):
    caplog.set_level("INFO", "naiad")
    first, second = pulled
    age(naiad.store, first, 40)
    age(naiad.store, second, 20)
    (models / "plain" / "1" / "model.py").write_text(CODE % "third")
    naiad.push(registry.uri("shop", "3"), models)
    third = registry.tags["shop"]["3"].removeprefix("sha256:")
    size = json.loads(naiad.succeed("env", "list", "--json"))["total"]

    def serve(max_bytes, model):
        policy = ArtifactPolicy(store=naiad.store, max_bytes=max_bytes)
        repository = ArtifactRepository(registry.uri("shop", "3"), policy, LogReporter())
        try:
            repository.fetch(model)
            return {one.digest for one in read_pulled(naiad.store)}
        finally:
            repository.close()

    assert serve(0, "shared") == {first, second, third}
    # The repository that was used least recently has a model that no other one has.
    assert serve(size, "plain") == {second, third}
    assert "removed the repository oci://" in caplog.text
    assert "least recently used of more than" in caplog.text
    assert serve(1, "packed") == {third}
    assert "more than the 0 MB of --env-store-max-bytes: all of it is in use" in caplog.text


def test_a_repository_in_use_is_kept(registry, naiad, pulled):
    first, second = pulled
    lease = lease_artifact(naiad.store, f"sha256:{first}")
    age(naiad.store, first, 40)

    shown = naiad.succeed("env", "gc", "--keep-bytes=0")

    assert [one.digest for one in read_pulled(naiad.store)] == [first]
    (line,) = [line for line in shown.splitlines() if "stays" in line and first[:7] in line]
    assert "a running server uses it, last for packed, plain, shared" in line
    assert "now" in naiad.succeed("env", "list")
    lease.release()
    assert second not in naiad.succeed("env", "gc", "--keep-bytes=0")
    assert read_pulled(naiad.store) == []


def test_remains_of_killed_pulls_are_garbage(registry, naiad, pulled):
    root = naiad.store / "artifacts"
    shutil.copytree(root / "repositories" / pulled[0], root / "repositories" / ("0" * 64))
    (root / "layers" / ("1" * 64)).mkdir()
    (root / "staging" / "layer-x").mkdir(parents=True)
    for name, days in (("old.part", 2), ("new.part", 0)):
        path = root / "downloads" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 10)
        os.utime(path, (time.time() - days * DAY,) * 2)

    assert " and 4 leftovers, " in naiad.succeed("env", "gc")

    assert sorted(path.name for path in (root / "downloads").iterdir()) == ["new.part"]
    assert {one.digest for one in read_pulled(naiad.store)} == set(pulled)


def test_the_first_digits_of_a_digest_name_a_pulled_repository(registry, naiad, pulled):
    first, second = pulled
    place = registry.uri("shop", "1").rpartition(":")[0]
    found = json.loads(naiad.succeed("pull", f"{place}@sha256:{first[:7]}", "--json"))
    assert found["reference"].endswith(f"@sha256:{first}")
    assert f"{place}@sha256:{second}: not signed" in naiad.run("verify", f"{place}@sha256:{second[:12]}")[1]
    for unknown in (f"{place}@sha256:0000000", f"{place}/other@sha256:{first[:7]}"):
        assert "is not a digest: write sha256: and all 64 hexadecimal digits" in naiad.fail("pull", unknown)

    removed = json.loads(naiad.succeed("env", "remove", second[:7], "--json"))

    assert [each["digest"] for each in removed["environments"]] == [second]
    assert [one.digest for one in read_pulled(naiad.store)] == [first]
    lease = lease_artifact(naiad.store, first)
    code, _, err = naiad.run("env", "remove", f"sha256:{first}")
    lease.release()
    assert (code, "a running server uses it" in err) == (1, True)
