"""A push or pull that is killed at any step leaves nothing half, and the next one goes on.

Of steps of one kind, such as the changes of the times of files in layers, the first, the middle and the last one are tried.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from models.artifacts.repositories import digests, make_repository
from support.registry import Registry, sha256

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]
at_one_or_any_step = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.endurance)], ids=["one", "any"]
)

DRIVER = Path(__file__).with_name("killed.py")


class Killer:
    """Runs commands that kill themselves at a step below a folder."""

    def __init__(self, folder: Path) -> None:
        environ = {**os.environ, "HOME": str(folder), "PYTHONPATH": ""}
        for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "NAIAD_STORE"):
            environ.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self._folder = folder
        self._log = folder / "killed.log"

    def run(self, step: int, *arguments: str | Path) -> bool:
        """Run a command; whether it was killed at the step, else it must succeed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"step": step, "arguments": list(map(str, arguments))}) + "\n")
        self._process.stdin.flush()
        done = json.loads(self._process.stdout.readline())
        assert done["killed"] or done["code"] == 0, self._log.read_text()
        return bool(done["killed"])

    def steps(self, *, every: bool) -> list[int]:
        """The numbers of the steps to try, after a run that was not killed: one of them, or all."""
        kinds = json.loads((self._folder / "steps.json").read_text())
        numbers: dict[str, list[int]] = {}
        for number, kind in enumerate(kinds, 1):
            numbers.setdefault(kind, []).append(number)
        chosen = sorted({each[place] for each in numbers.values() for place in (0, len(each) // 2, -1)})
        assert len(chosen) > 20
        return chosen if every else [chosen[len(chosen) // 2]]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@pytest.fixture
def killer(tmp_path):
    running = Killer(tmp_path)
    yield running
    running.close()


@pytest.fixture
def project(tmp_path):
    models = make_repository(tmp_path / "project")
    return models, f"--backend-directory={models.parent / 'backends'}"


def layers(store: Path) -> dict[str, dict[str, str]]:
    """Digests of the files of each unpacked layer."""
    return {folder.name: digests(folder) for folder in sorted((store / "artifacts" / "layers").glob("*"))}


def parts(repository: Path) -> dict[str, dict[str, str]]:
    """Digests of the files of each part of a repository: models, backends, environments and others."""
    found = [*repository.glob("[!.]*"), *repository.glob(".naiad/*/*")]
    return {
        path.relative_to(repository).as_posix(): digests(path) if path.is_dir() else {"": sha256(path.read_bytes())}
        for path in found
    }


@at_one_or_any_step
def test_a_pull_that_is_killed_at_any_step_leaves_complete_parts_only(killer, project, tmp_path, every):
    models, flag = project
    with Registry() as registry:
        uri = registry.uri("shop", "1")
        assert not killer.run(0, "push", uri, models, flag, f"--env-store={tmp_path / 'pusher'}")
        whole_store, whole = tmp_path / "whole-store", tmp_path / "whole"
        assert not killer.run(0, "pull", uri, f"--output={whole}", f"--env-store={whole_store}")
        all_layers, all_parts = layers(whole_store), parts(whole)
        digest = registry.tags["shop"]["1"].removeprefix("sha256:")

        steps = killer.steps(every=every)
        for step in steps:
            store, output = tmp_path / f"store-{step}", tmp_path / f"out-{step}"
            is_killed = killer.run(step, "pull", uri, f"--output={output}", f"--env-store={store}")
            # Threads race to create folders, so that runs differ by a few steps.
            assert is_killed or step > steps[-1] - 10
            found = layers(store)
            assert found == {name: all_layers[name] for name in found}
            placed = parts(store / "artifacts" / "repositories" / digest)
            assert placed == {name: all_parts[name] for name in placed}
            assert not output.exists() or parts(output) == all_parts
            # The next pull goes on, and removes what the killed one left.
            if not output.exists():
                assert not killer.run(0, "pull", uri, f"--output={output}", f"--env-store={store}")
            assert parts(output) == all_parts
            assert not list((store / "artifacts" / "downloads").glob("*"))
            assert not list(tmp_path.glob(".out-*.naiad-pull"))
            for folder in (store, output):
                shutil.rmtree(folder)


@at_one_or_any_step
def test_a_push_that_is_killed_at_any_step_leaves_no_half_repository(killer, project, tmp_path, every):
    models, flag = project
    store = tmp_path / "store"
    with Registry() as registry:
        assert not killer.run(0, "push", registry.uri("shop", "1"), models, flag, f"--env-store={store}")
    steps = killer.steps(every=every)
    shutil.rmtree(store)
    for step in steps:
        with Registry() as registry:
            uri = registry.uri("shop", "1")
            assert killer.run(step, "push", uri, models, flag, f"--env-store={store}")
            for tag in registry.tags.get("shop", {}):
                manifest = registry.manifest("shop", tag)
                blobs = registry.blobs["shop"]
                for entry in (manifest["config"], *manifest["layers"]):
                    assert sha256(blobs[entry["digest"]]) == entry["digest"]
            registry.wait_until_idle()
            kept = dict(registry.blobs.get("shop", {}))
            registry.asked.clear()
            assert not killer.run(0, "push", uri, models, flag, f"--env-store={store}")
            assert registry.tags["shop"]["1"]
            # What had arrived was not sent again, and the killed push's layers are gone.
            assert len(registry.requests("PUT", "uploads")) == len(registry.blobs["shop"]) - len(kept)
            assert not list((store / "artifacts" / "pushes").iterdir())
            shutil.rmtree(store)
