"""A process that is killed while it solves, unpacks, links or compiles conda packages leaves nothing half."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from building.channel import make_channel
from building.declared.killing import Killer, killer
from environments import makers
from environments.wheels import offer_wheels, only_wheels

from naiad.cli.main import main
from naiad.config.server.env_build import EnvBuild
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.environments.store.package_cache import conda_packages
from naiad.environments.store.store import Store
from naiad.environments.store.verification import verify_entries
from naiad.models.artifacts.garbage import collect_garbage

pytestmark = pytest.mark.builds

pytest.importorskip("yaml", reason="PyYAML, of the extra 'conda', is not installed")
pytest.importorskip("rattler", reason="py-rattler, of the extra 'conda', is not installed")

MINOR = makers.other_minor()
CONDA = "naiad_building.declared.conda"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_channel(tmp_path_factory.mktemp("channel") / "channel", MINOR)


@pytest.fixture(scope="module")
def sizes(channel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The files of an environment whose build nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return sizes_of(prepare(folder / "store", declare(folder, channel)))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("killed")
        only_wheels(offer_wheels(folder / "wheels"), monkeypatch)
        monkeypatch.setenv("NAIAD_STORE", str(folder / "store"))  # of commands
        (folder / "tmp").mkdir()
        with killer(folder / "tmp") as running:
            yield running


def declare(folder: Path, channel: Path, *more: str) -> Path:
    file = folder / "environment.yml"
    listed = "".join(f"- {line}\n" for line in ("python", "numpy", *more))
    file.write_text(f"channels: [{channel}]\ndependencies:\n{listed}")
    return file


def prepare(store: Path, file: Path) -> ReadyEnvironment:
    return EnvironmentManager(store, reporter=LogReporter(), policy=StorePolicy(build=EnvBuild.ALLOWED)).prepare(file)


def sizes_of(ready: ReadyEnvironment) -> dict[str, int]:
    """Sizes of the files that do not name the prefix."""
    folder = ready.prefix / "lib"
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()}


def recover(store: Path, file: Path) -> ReadyEnvironment:
    """Build an environment after a kill; it is whole, and nothing else is left in the store."""
    assert all(result.is_intact for result in verify_entries(store, ()))
    ready = prepare(store, file)
    assert makers.run(ready.python, "-c", "import numpy; print(numpy.__version__)").strip() == "0.0.stand-in"
    (result,) = verify_entries(store, ())
    assert result.is_intact
    assert Store(store, LogReporter()).find_leftovers() == []
    assert not list(store.rglob("*.naiad-shared"))
    assert not list((store / "staging").iterdir())
    kept = {path.name for path in conda_packages(store).iterdir() if path.is_dir()}
    assert kept == {f"python-{MINOR}.0-0", "numpy-0.1-0"}
    assert collect_garbage(store).leftovers == 0
    return ready


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("solve_packages", marks=pytest.mark.endurance),
        pytest.param("install_packages", marks=pytest.mark.endurance),
        pytest.param("compile_with_fixed_times", marks=pytest.mark.endurance),
    ],
)
def test_a_build_that_is_killed_after_a_step_leaves_no_half_environment(
    tmp_path: Path, channel: Path, killed: Killer, sizes: dict[str, int], place: str
) -> None:
    file, store = declare(tmp_path, channel), tmp_path / "store"

    assert killed.prepare((f"{CONDA}.{place}", "after", 1), store, file)

    assert sizes_of(recover(store, file)) == sizes


# A file of many: others follow when it is there.
@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("conda-packages/*python-*/lib/python*/*.py", marks=pytest.mark.endurance, id="unpacking"),
        pytest.param("staging/*/env/lib/python*/*.py", id="linking"),
    ],
)
def test_a_build_that_is_killed_amid_files_leaves_no_half_package(
    tmp_path: Path, channel: Path, killed: Killer, sizes: dict[str, int], pattern: str
) -> None:
    file, store = declare(tmp_path, channel), tmp_path / "store"

    assert killed.prepare_until(pattern, store, file)

    assert sizes_of(recover(store, file)) == sizes


@pytest.mark.endurance
def test_a_build_that_is_killed_after_its_wheels_are_installed_is_built_again(tmp_path: Path, killed: Killer) -> None:
    file = declare(tmp_path, make_channel(tmp_path / "channel", MINOR, whole=True), "pip: [adder]")
    store = tmp_path / "store"
    assert main(["lock", str(file)]) == 0

    assert killed.prepare((f"{CONDA}.install", "after", 1), store, file)

    ready = recover(store, file)
    assert makers.run(ready.python, "-c", "import adder; print(adder.VERSION)").strip() == "2.0"


def test_a_killed_lock_of_conda_packages_leaves_the_old_one(tmp_path: Path, channel: Path, killed: Killer) -> None:
    file = declare(tmp_path, channel)
    assert main(["lock", str(file)]) == 0
    lock = file.with_name("pixi.lock")
    before = lock.read_text()
    declare(tmp_path, channel, "teller")

    assert killed.command((f"{CONDA}._add_digests", "after", 1), "lock", file)

    assert lock.read_text() == before
    assert main(["lock", str(file)]) == 0
    assert "teller-1.0-0" in lock.read_text()
