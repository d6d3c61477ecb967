"""Entries of a store share equal files by hard links, and nothing of it shows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from environments.wheels import offer_wheels, only_wheels, script, write_wheel

from naiad.config.server.env_build import EnvBuild
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad.environments.store.verification import verify_entries

pytestmark = pytest.mark.builds

SIZE = 400_000


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnvironmentManager:
    wheels = offer_wheels(tmp_path / "wheels")
    write_wheel(wheels, "big", "1", {f"big/part{number}.py": f"# {number}\n" * (SIZE // 4) for number in range(3)})
    only_wheels(wheels, monkeypatch)
    return EnvironmentManager(tmp_path / "store", reporter=LogReporter(), policy=StorePolicy(build=EnvBuild.ALLOWED))


def on_disk(folder: Path) -> int:
    return int(subprocess.run(["du", "-sk", folder], capture_output=True, check=True).stdout.split()[0])


def test_three_environments_with_most_files_in_common_take_little_more_than_one(
    tmp_path: Path, manager: EnvironmentManager
) -> None:
    first = manager.prepare(script(tmp_path / "a", "big", "numpy", "adder==1.0"))
    alone = on_disk(tmp_path / "store")

    others = [
        manager.prepare(script(tmp_path / "b", "big", "numpy", "adder==2.0")),
        manager.prepare(script(tmp_path / "c", "big", "numpy", "counter", "adder==1.0")),
    ]

    assert on_disk(tmp_path / "store") <= alone * 1.3
    part = "lib/python*/site-packages/big/part0.py"
    inodes = {next(one.prefix.glob(part)).stat().st_ino for one in (first, *others)}
    assert len(inodes) == 1
    bytecode = {
        next(one.prefix.glob("lib/python*/site-packages/big/__pycache__/part0.*.pyc")).stat().st_ino
        for one in (first, *others)
    }
    assert len(bytecode) == 1
    assert all(result.is_intact for result in verify_entries(tmp_path / "store", ()))


def test_a_model_that_appends_to_a_file_of_its_environment_changes_no_other(
    tmp_path: Path, manager: EnvironmentManager
) -> None:
    first = manager.prepare(script(tmp_path / "a", "big", "adder", "numpy"))
    second = manager.prepare(script(tmp_path / "b", "big", "counter", "numpy"))
    paths = [next(one.prefix.glob("lib/python*/site-packages/big/part0.py")) for one in (first, second)]
    assert paths[0].samefile(paths[1])

    with pytest.raises(PermissionError):
        as_another_user(lambda: paths[0].open("a"), tmp_path)

    assert paths[1].read_text() == "# 0\n" * (SIZE // 4)
    for ready in (first, second):
        files = [path for path in ready.prefix.rglob("*") if path.is_file() and not path.is_symlink()]
        assert len(files) > 10
        assert [path for path in files if path.stat().st_mode & 0o222] == []


def as_another_user(action: Callable[[], object], folder: Path) -> None:
    """Run an action as the owner of the store: permissions do not bind root, so that it needs to be another user."""
    if os.geteuid() != 0:
        action()
        return
    nobody = 65534
    for path in (folder, *folder.rglob("*")):
        os.chown(path, nobody, nobody, follow_symlinks=False)
    closed = {parent: parent.stat().st_mode for parent in folder.parents if not parent.stat().st_mode & 0o001}
    for parent, mode in closed.items():
        parent.chmod(mode | 0o001)
    os.seteuid(nobody)
    try:
        action()
    finally:
        os.seteuid(0)
        for parent, mode in closed.items():
            parent.chmod(mode)
