"""Pulled repositories in a store: found, removed with what only they have, and what crashes leave of them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import pytest
from environments.store.made import DIGESTS

from naiad.core.errors import RegistryError
from naiad.environments.progress import LogReporter
from naiad.environments.store import pulled
from naiad.environments.store.eviction import choose_removals, describe, read_parts, remove_entries
from naiad.environments.store.file_locks import exclusive_lock, shared_lock
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.pulled import (
    artifact_leases,
    complete_reference,
    copies_folder,
    find_pulled,
    lease_artifact,
    pull_lock,
    pulled_leftovers,
    read_pulled,
    remove_pulled,
    remove_pulled_leftovers,
    remove_unused_copies,
    unused_copies,
)
from naiad.environments.store.store import Store

A, B, C = DIGESTS


def pull(store: Path, digest: str, *layers: str, reference: str = "") -> None:
    """What a pull of a repository leaves."""
    root = store / "artifacts"
    for layer in layers:
        (root / "layers" / layer).mkdir(parents=True, exist_ok=True)
        (root / "layers" / layer / "model.py").write_bytes(b"12345")
    (root / "repositories" / digest / "m").mkdir(parents=True)
    (root / "manifests").mkdir(exist_ok=True)
    described = {"layers": [{"digest": f"sha256:{layer}"} for layer in (*layers, *layers)]}
    (root / "manifests" / f"{digest}.json").write_text(json.dumps(described))
    lease_artifact(store, f"sha256:{digest}").release()
    artifact_leases(store).record_model(digest, "m", reference or f"oci://host.io/shop@sha256:{digest}")


def left(store: Path) -> dict[str, list[str]]:
    return {
        path.name: sorted(each.name for each in path.iterdir())
        for path in (store / "artifacts").iterdir()
        if path.name in {"layers", "repositories", "manifests", "staging", "downloads"}
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two repositories that share a layer."""
    pull(tmp_path, A, "one", "shared")
    pull(tmp_path, B, "two", "shared")
    return tmp_path


def test_repositories_are_read_with_the_size_of_their_layers_and_their_last_use(store):
    root = store / "artifacts"
    (root / "manifests" / "notes.json").write_text("{}")
    (root / "manifests" / f"{C}.txt").write_text("{}")
    lock = root / "uses" / A / "lock"
    os.utime(lock, (2e9, 2e9))
    (root / "uses" / B / "lock").unlink()
    os.utime(root / "manifests" / f"{B}.json", (1e9, 1e9))
    first, second = read_pulled(store)
    assert (first.digest, first.size, first.last_used, first.in_use) == (A, 10, 2e9, False)
    assert first.folder == root / "repositories" / A
    assert first.folders == (first.folder, root / "layers" / "one", root / "layers" / "shared")
    assert [use.model for use in first.models] == ["m"]
    assert (second.last_used, second.archive) == (1e9, f"oci://host.io/shop@sha256:{B}")
    artifact_leases(store).forget_models(B)
    assert read_pulled(store)[0].archive == "?"
    assert read_pulled(store / "none") == []


def test_a_repository_is_removed_with_the_layers_that_no_other_has(store):
    lease = lease_artifact(store, A)
    assert read_pulled(store)[0].in_use
    assert not remove_pulled(store, A)
    assert left(store)["layers"] == ["one", "shared", "two"]
    lease.release()
    with shared_lock(pull_lock(store)):
        assert remove_pulled(store, A)
        assert left(store)["layers"] == ["one", "shared", "two"], "a pull may be about to use them"
        assert pulled_leftovers(store) == []
    assert pulled_leftovers(store) == [store / "artifacts" / "layers" / "one"]
    remove_pulled_leftovers(store)
    assert left(store) == {
        "layers": ["shared", "two"], "repositories": [B], "manifests": [f"{B}.json"], "staging": []
    }  # fmt: skip
    assert artifact_leases(store).models(A) == []
    assert remove_pulled(store, B)
    assert left(store) == {"layers": [], "repositories": [], "manifests": [], "staging": []}


def test_a_repository_that_cannot_be_removed_stays_with_its_manifest(store, monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(Path, "rename", fail)
    assert not remove_pulled(store, A)
    assert caplog.messages == [f"cannot remove the pulled repository {A} from {store}: no"]
    assert (f"{A}.json" in left(store)["manifests"], [use.model for use in artifact_leases(store).models(A)]) == (
        True,
        ["m"],
    )


def test_repositories_are_evicted_like_environments(store, caplog):
    lease = lease_artifact(store, B)
    chosen = choose_removals(read_parts(store), now=0.0, keep_bytes=0)
    assert [describe(removal.entry) for removal in chosen] == [f"the repository oci://host.io/shop@sha256:{A}"]
    removed = remove_entries(Store(store, LogReporter()), EntryLeases(store), chosen)
    assert [removal.entry.digest for removal in removed] == [A]
    assert [one.digest for one in read_pulled(store)] == [B]
    lease.release()


def test_what_crashes_and_abandoned_downloads_leave_is_garbage(store):
    root = store / "artifacts"
    for name in ("layers/lost", "repositories/lost", "staging/half", "downloads"):
        (root / name).mkdir(parents=True)
    for name, age in (("old", 86_401), ("new", 86_000)):
        (root / "downloads" / name).write_text("x")
        os.utime(root / "downloads" / name, (time.time() - age,) * 2)
    (root / "manifests" / f"{C}.json").write_text("{")  # half written: its layers are unknown
    expected = ["layers/lost", "repositories/lost", "staging/half", "downloads/old"]
    assert pulled_leftovers(store) == [root / name for name in expected]
    remove_pulled_leftovers(store)
    assert pulled_leftovers(store) == []
    assert (left(store)["layers"], left(store)["downloads"], left(store)["staging"]) == (
        ["one", "shared", "two"],
        ["new"],
        [],
    )
    remove_pulled_leftovers(store / "none")
    assert pulled_leftovers(store / "none") == []
    assert not (store / "none").exists()


def test_copies_of_files_are_removed_when_their_server_has_ended(store):
    copies = copies_folder(store)
    assert copies == store / "artifacts" / "copies"
    for name in ("used", "unused"):
        (copies / name).mkdir()
        (copies / name / "model.py").write_text("x")
    with exclusive_lock(copies / "used.lock"):
        assert unused_copies(copies) == [copies / "unused"]
        assert pulled_leftovers(store) == [copies / "unused"]
        assert (copies / "unused").exists(), "it was only looked for"
        remove_pulled_leftovers(store)
        assert [path.name for path in copies.iterdir() if path.is_dir()] == ["used"]
    remove_unused_copies(copies)
    assert not (copies / "used").exists()


def test_copies_are_temporary_where_the_store_cannot_be_written(store, monkeypatch):
    made, registered = [], []
    make = tempfile.mkdtemp
    monkeypatch.setattr(pulled.tempfile, "mkdtemp", lambda **more: made.append(make(**more)) or made[-1])
    monkeypatch.setattr(pulled.atexit, "register", lambda *what, **more: registered.append((what, more)))
    monkeypatch.setattr(pulled.os, "access", lambda *_: False)
    folder = copies_folder(store / "other")
    assert [str(folder)] == made
    assert folder.stat().st_mode & 0o777 == 0o755
    [((remove, path), more)] = registered
    remove(path, **more)
    assert not folder.exists()


def test_a_repository_is_found_by_its_reference_or_the_start_of_its_digest(store):
    reference = f"oci://host.io/shop@sha256:{A}"
    for text in (A, A[:7], f"sha256:{A[:9]}", reference):
        assert find_pulled(store, text).digest == A
    assert find_pulled(store, "c" * 7) is find_pulled(store, A[:6]) is None
    pull(store, "a" * 63 + "b")
    with pytest.raises(RegistryError, match=r"'aaaaaaa' is ambiguous: 2 pulled repositories match, a{12}, a{12}; give"):
        find_pulled(store, "a" * 7)


def test_a_short_digest_is_completed_for_the_same_repository_alone(store):
    pull(store, C, reference="oci://other.io/shop:1")
    for text, complete in [
        (f"oci://host.io/shop@sha256:{A[:7]}", f"oci://host.io/shop@sha256:{A}"),
        (f"oci://host.io/books@sha256:{A[:7]}", None),
        (f"oci://host.io/shop@sha256:{C[:7]}", None),
        ("oci://host.io/shop:1", None),
        (f"oci://host.io/shop@sha256:{'d' * 7}", None),
        (f"oci://host.io/shop@sha256:{A}", None),
        (f"@sha256:{A[:7]}", None),
    ]:
        assert complete_reference(store, text) == (complete or text), text
