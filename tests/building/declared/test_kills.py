"""A process that is killed at any step of locking, building or linking leaves nothing that a later one mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from building.declared.killing import Killer, killer
from environments import makers
from environments.wheels import offer_wheels, only_wheels, script

from naiad.config.server.env_build import EnvBuild
from naiad.core.errors import ExecutionEnvironmentError, StaleLockError
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad.environments.store.store import Store
from naiad.environments.store.verification import verify_entries

pytestmark = pytest.mark.builds

DECLARED = "naiad_building.declared"
STORE = "naiad.environments.store"
Step = tuple[str, str, int]
NEVER: Step = ("os.getppid", "after", 0)
STEPS = [
    (f"{DECLARED}.resolving.run_uv", "before", 1),
    (f"{DECLARED}.resolving.run_uv", "after", 1),
    (f"{DECLARED}.venv._create", "before", 1),
    (f"{DECLARED}.venv._create", "after", 1),
    (f"{DECLARED}.venv.install", "after", 1),
    (f"{DECLARED}.venv.relocate_scripts", "after", 1),
    (f"{DECLARED}.venv.compile_environment", "after", 1),
    (f"{STORE}.finishing.probe_with_libraries", "before", 1),
    (f"{STORE}.finishing.record_files", "after", 1),
    (f"{STORE}.finishing.write_record", "before", 1),
]
SHARING_STEPS = [
    (f"{STORE}.finishing._link", "before", 3),
    (f"{STORE}.finishing.os.link", "after", 3),
    (f"{STORE}.finishing.os.replace", "after", 3),
    (f"{STORE}.finishing.share_files", "after", 2),
]
LOCK_STEPS = [
    (f"{DECLARED}.resolving.run_uv", "after", 1),
    (f"{DECLARED}.locking._write", "before", 1),
    (f"{DECLARED}.locking._place", "before", 1),
]
ADDITION_STEPS = [
    (f"{DECLARED}.resolving.run_uv", "before", 1),
    (f"{DECLARED}.resolving.run_uv", "after", 1),
    (f"{DECLARED}.locking._write", "before", 1),
    (f"{DECLARED}.locking._place", "before", 1),
]


def at_steps(steps: list[Step], *, always: Step) -> pytest.MarkDecorator:
    """Kill at each of *steps*; in `make test` only at the one at which most is done and nothing is complete."""
    assert always in steps
    marked = [pytest.param(step, marks=() if step == always else pytest.mark.endurance) for step in steps]
    return pytest.mark.parametrize("step", marked, ids=["-".join(map(str, step)) for step in steps])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = offer_wheels(tmp_path_factory.mktemp("wheels"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        only_wheels(folder, monkeypatch)
        yield folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Killer]:
    with killer(tmp_path_factory.mktemp("tmp")) as running:
        yield running


@at_steps(STEPS, always=(f"{STORE}.finishing.write_record", "before", 1))
def test_a_killed_build_leaves_no_half_environment(tmp_path: Path, killed: Killer, step: Step) -> None:
    file, store = script(tmp_path / "b", "adder", "counter", "numpy"), tmp_path / "store"

    assert killed.prepare(step, store, file)

    require_recovery(store, file)


@at_steps(SHARING_STEPS, always=(f"{STORE}.finishing.os.link", "after", 3))
def test_a_killed_build_that_shares_files_leaves_no_half_environment(
    tmp_path: Path, killed: Killer, step: Step
) -> None:
    files = [script(tmp_path / "a", "adder", "numpy"), script(tmp_path / "b", "adder", "counter", "numpy")]

    assert killed.prepare(step, tmp_path / "store", *files)

    require_recovery(tmp_path / "store", *files)


def require_recovery(store: Path, *files: Path) -> None:
    """Whatever a store calls complete is whole, and the next server completes the rest and leaves nothing else."""
    assert all(result.is_intact for result in verify_entries(store, ()))
    manager = EnvironmentManager(store, reporter=LogReporter(), policy=StorePolicy(build=EnvBuild.ALLOWED))
    ready = [manager.prepare(file) for file in files]
    assert makers.run(ready[-1].python, "-c", "import counter, adder; print(adder.VERSION)").strip() == "2.0"
    assert all(result.is_intact for result in verify_entries(store, ()))
    assert Store(store, LogReporter()).find_leftovers() == []
    assert not list((store / "staging").iterdir())
    assert not list(store.rglob("*.naiad-shared"))
    assert not list((store / "resolved").glob(".*"))


@at_steps(LOCK_STEPS, always=(f"{DECLARED}.locking._place", "before", 1))
def test_a_killed_lock_leaves_the_old_one(tmp_path: Path, killed: Killer, step: Step) -> None:
    file = script(tmp_path / "m", "adder==1.0", "numpy")
    assert not killed.command(NEVER, "lock", file)
    before = file.with_name("model.py.lock").read_text()
    script(tmp_path / "m", "adder==2.0", "numpy")

    assert killed.command(step, "lock", file)

    assert file.with_name("model.py.lock").read_text() == before
    assert not killed.command(NEVER, "lock", file)
    assert "2.0" in file.with_name("model.py.lock").read_text()


@at_steps(ADDITION_STEPS, always=(f"{DECLARED}.locking._place", "before", 1))
def test_a_killed_addition_leaves_the_script_and_its_lock(tmp_path: Path, killed: Killer, step: Step) -> None:
    file = script(tmp_path / "m", "adder==1.0", "numpy")
    assert not killed.command(NEVER, "lock", file)
    before = file.read_text(), file.with_name("model.py.lock").read_text()

    assert killed.command(step, "add", file, "counter")

    assert (file.read_text(), file.with_name("model.py.lock").read_text()) == before
    manager = EnvironmentManager(tmp_path / "store", reporter=LogReporter(), policy=StorePolicy())
    manager.prepare(file)
    assert not killed.command(NEVER, "add", file, "counter")
    assert "counter" in file.read_text()
    assert "counter" in file.with_name("model.py.lock").read_text()


def test_an_addition_that_is_killed_between_its_two_files_is_refused_until_it_is_repeated(
    tmp_path: Path, killed: Killer
) -> None:
    file = script(tmp_path / "m", "adder==1.0", "numpy")
    assert not killed.command(NEVER, "lock", file)

    assert killed.command((f"{DECLARED}.locking._place", "after", 1), "add", file, "counter")

    manager = EnvironmentManager(tmp_path / "store", reporter=LogReporter(), policy=StorePolicy())
    with pytest.raises(StaleLockError, match=r"does not require 'counter'.*update it with `naiad lock"):
        manager.prepare(file)
    assert not killed.command(NEVER, "add", file, "counter")
    manager.prepare(file)


@pytest.mark.endurance
def test_an_installer_that_outlives_a_killed_server_does_not_touch_the_next_build(
    tmp_path: Path, killed: Killer
) -> None:
    file = script(tmp_path / "m", "adder", "numpy")
    store = tmp_path / "store"
    assert killed.prepare((f"{DECLARED}.venv.install", "before", 1), store, file)
    (left,) = (store / "staging").iterdir()

    manager = EnvironmentManager(store, reporter=LogReporter(), policy=StorePolicy(build=EnvBuild.ALLOWED))
    ready = manager.prepare(file)

    # What the killed one's installer would still write to is another folder.
    assert not ready.prefix.is_relative_to(left)
    (left / "env").mkdir(parents=True, exist_ok=True)
    assert all(result.is_intact for result in verify_entries(store, ()))


def test_a_store_that_builds_nothing_never_serves_half_an_environment(tmp_path: Path, killed: Killer) -> None:
    file = script(tmp_path / "m", "adder", "numpy")
    store = tmp_path / "store"
    assert killed.prepare((f"{STORE}.finishing.write_record", "before", 1), store, file)

    with pytest.raises(ExecutionEnvironmentError, match="is not in the store"):
        EnvironmentManager(store, reporter=LogReporter(), policy=StorePolicy(build=EnvBuild.NEVER)).prepare(file)
    assert list((store / "resolved").iterdir())
