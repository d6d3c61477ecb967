"""A lock that was written for other packages than its declaration requires now is refused, whoever wrote it."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from environments.wheels import offer_wheels, only_wheels, script, write_wheel

from naiad.core.errors import ExecutionEnvironmentError, StaleLockError
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad_building.declared.locking import LockRequest, lock_declaration
from naiad_building.lockfiles import open_foreign_lock
from naiad_building.uv_program import InstallOptions, find_uv

pytestmark = pytest.mark.builds

PROJECT = '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = [{}]\n{}'


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = offer_wheels(tmp_path_factory.mktemp("wheels"))
    metadata = "Provides-Extra: more\nRequires-Dist: counter; extra == 'more'\n"
    return write_wheel(folder, "pack", "1", {"pack.py": ""}, metadata=metadata).parent


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that all tests here share: most of them need one of five environments, and none looks into it."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(autouse=True)
def _these_wheels_alone(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_wheels(wheels, monkeypatch)


def lock(file: Path) -> Path:
    cache = file.parent / "cache"
    return lock_declaration(LockRequest(file=file, cache=cache, options=InstallOptions())).lock


def prepare(store: Path, file: Path) -> None:
    EnvironmentManager(store, reporter=LogReporter(), policy=StorePolicy()).prepare(file)


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(StaleLockError) as caught:
        action()
    return caught.value.message


def write(folder: Path, kind: str, *requirements: str, settings: str = "") -> Path:
    """A declaration of each kind; `included` has its requirements in another file."""
    folder.mkdir(exist_ok=True)
    if kind == "model.py":
        return script(folder, *requirements)
    lines = "".join(f"{one}\n" for one in requirements)
    name = "pyproject.toml" if kind in {"pyproject.toml", "uv.lock"} else "requirements.txt"
    if kind == "included":
        (folder / "base.txt").write_text(f"# more\n{lines}")
        lines = "-r base.txt\n"
    listed = ", ".join(f'"{one}"' for one in requirements)
    (folder / name).write_text(PROJECT.format(listed, settings) if name == "pyproject.toml" else lines)
    return folder / name


KINDS = ("model.py", "pyproject.toml", "requirements.txt", "included")
CHANGES = (
    ("pack", "pack[more]", "requires 'pack[more]': it was written for 'pack'"),
    ("pack[more]", "pack", "requires 'pack': it was written for 'pack[more]'"),
    ("counter", "numpy<9", "does not require 'counter': it was written for 'counter'"),
    ("counter", "adder", "requires 'adder': it was written without it"),
)
CASES = [
    *[(kind, *CHANGES[0]) for kind in KINDS],
    *[(KINDS[0], *change) for change in CHANGES[1:]],
    *[pytest.param(kind, *each, marks=pytest.mark.endurance) for kind in KINDS[1:] for each in CHANGES[1:]],
]


@pytest.mark.parametrize(("kind", "before", "after", "reason"), CASES)
def test_a_lock_for_other_packages_is_refused(
    tmp_path: Path, store: Path, kind: str, before: str, after: str, reason: str
) -> None:
    file = write(tmp_path / "m", kind, before, "numpy")
    path = lock(file)
    prepare(store, file)
    write(tmp_path / "m", kind, after, "numpy")

    message = refusal(lambda: prepare(store, file))

    assert message == f"{path} does not match {file}, which {reason}; update it with `naiad lock {file}`"
    path = lock(file)
    prepare(store, file)
    packages = {pin.name for pin in open_foreign_lock(path).pins(platform.python_version())}
    assert ("counter" in packages) == (after == "pack[more]")


def test_the_lock_of_a_project_that_uv_wrote_is_compared_too(tmp_path: Path, store: Path, wheels: Path) -> None:
    file = write(tmp_path / "m", "uv.lock", "pack", "numpy")
    uv_lock(file, wheels)
    prepare(store, file)
    write(tmp_path / "m", "uv.lock", "pack[more]", "numpy")

    assert "which requires 'pack[more]': it was written for 'pack'" in refusal(lambda: prepare(store, file))


def uv_lock(file: Path, wheels: Path) -> None:
    command = [
        find_uv(),
        "lock",
        "--no-config",
        "--quiet",
        "--no-index",
        f"--find-links={wheels}",
        "--project",
        file.parent,
    ]
    subprocess.run(command, check=True)


def test_a_version_range_that_the_locked_version_satisfies_changes_nothing(tmp_path: Path, store: Path) -> None:
    file = write(tmp_path / "m", "model.py", "adder", "numpy; python_version >= '3.8'", "counter; python_version < '3'")
    lock(file)

    write(tmp_path / "m", "model.py", "adder>=1.5", "numpy")

    prepare(store, file)


@pytest.mark.parametrize("kind", ["requirements.txt", "pyproject.toml"])
def test_a_constraint_that_the_locked_version_violates_makes_a_lock_stale(
    tmp_path: Path, store: Path, kind: str
) -> None:
    def constrain(version: str) -> Path:
        if kind == "pyproject.toml":
            return write(
                tmp_path / "m",
                kind,
                "counter",
                "numpy",
                settings=f'[tool.uv]\nconstraint-dependencies = ["adder=={version}", "pack<1"]\n',
            )
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / "limits.txt").write_text(f"adder=={version}\npack<1\n")
        return write(tmp_path / "m", kind, "counter", "numpy", "-c limits.txt")

    file = constrain("2.0")
    path = lock(file)
    prepare(store, file)
    constrain("1.0")

    assert refusal(lambda: prepare(store, file)) == (
        f"{path} does not match {file}, which requires 'adder==1.0': it has adder 2.0; update it with `naiad lock {file}`"
    )
    lock(file)
    prepare(store, file)


def test_an_override_wins_over_a_requirement(tmp_path: Path, store: Path, wheels: Path) -> None:
    settings = '[tool.uv]\noverride-dependencies = ["adder==1.0"]\n'
    file = write(tmp_path / "m", "pyproject.toml", "adder==2.0", "numpy", settings=settings)
    uv_lock(file, wheels)

    prepare(store, file)

    (tmp_path / "m" / "uv.lock").unlink()
    assert '"1.0"' in lock(file).read_text()
    prepare(store, file)


def test_a_lock_that_does_not_say_what_it_was_written_for_is_compared_by_its_packages(
    tmp_path: Path, store: Path
) -> None:
    file = write(tmp_path / "m", "requirements.txt", "pack[more]", "numpy")
    path = lock(file)
    path.write_text(path.read_text().partition("[tool.naiad]")[0])
    write(tmp_path / "m", "requirements.txt", "pack", "numpy")

    prepare(store, file)

    write(tmp_path / "m", "requirements.txt", "pack>1", "numpy")
    assert "it has pack 1" in refusal(lambda: prepare(store, file))


def test_an_included_file_that_is_missing_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "m", "included", "adder", "numpy")
    (tmp_path / "m" / "base.txt").unlink()

    with pytest.raises(ExecutionEnvironmentError, match=r"cannot read .*requirements\.txt: .*base\.txt"):
        lock(file)
