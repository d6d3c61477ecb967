"""Environments that a file declares: locked, built once into the store, and refused with the reason."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import makers
from environments.wheels import offer_wheels, only_wheels, script, write_wheel
from packaging.specifiers import SpecifierSet

from naiad.config.server.env_build import EnvBuild
from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad_building.declared.declaration import read_declaration
from naiad_building.declared.locking import (
    Edit,
    LockedDeclaration,
    LockRequest,
    adding,
    check_lock,
    fetch_locked_wheels,
    lock_declaration,
)
from naiad_building.lockfiles import open_foreign_lock
from naiad_building.uv_program import InstallOptions

pytestmark = pytest.mark.builds

OWN = ".".join(map(str, sys.version_info[:3]))
MINOR = ".".join(map(str, sys.version_info[:2]))


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is all that installers can reach."""
    folder = offer_wheels(tmp_path / "wheels")
    only_wheels(folder, monkeypatch)
    return folder


def lock(file: Path, edit: Edit | None = None, **options: object) -> LockedDeclaration:
    given = {"options": InstallOptions(), "cache": file.parent / "cache", **options}
    request = LockRequest(file=file, **given)  # type: ignore[arg-type] - as given
    return lock_declaration(request, edit)


def managed(tmp_path: Path, build: EnvBuild = EnvBuild.LOCKED, **policy: object) -> EnvironmentManager:
    rules = StorePolicy(build=build, **policy)  # type: ignore[arg-type] - as given
    return EnvironmentManager(tmp_path / "store", reporter=LogReporter(), policy=rules)


def imported(python: Path, module: str = "adder") -> str:
    return makers.run(python, "-c", f"import {module}; print({module}.VERSION)").strip()


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(ExecutionEnvironmentError) as caught:
        action()
    return caught.value.message


def test_a_locked_script_gets_its_environment_and_its_next_start_installs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = script(tmp_path / "m", "counter", "numpy")
    locked = lock(file)

    ready = managed(tmp_path).prepare(file, label="m")

    assert locked.lock.name == "model.py.lock"
    assert [(pin.name, pin.version) for pin in locked.pins] == [("adder", "2.0"), ("counter", "1.0"), ("numpy", "0.1")]
    assert imported(ready.python) == "2.0"
    assert ready.numpy_version == "0.1"
    assert ready.python.is_relative_to(tmp_path / "store")
    monkeypatch.setattr(subprocess, "Popen", None)
    again = managed(tmp_path, EnvBuild.NEVER).prepare(file, label="m")
    assert again.python == ready.python


def test_scripts_of_an_environment_run_where_it_is(tmp_path: Path, wheels: Path) -> None:
    files = {"tool.py": "import sys\ndef main(): print(sys.prefix)\n"}
    entry_points = "[console_scripts]\ntool = tool:main\n"
    write_wheel(wheels, "tool", "1", {**files, "tool-1.dist-info/entry_points.txt": entry_points})
    file = script(tmp_path / "m", "tool", "numpy")
    lock(file)

    ready = managed(tmp_path).prepare(file)

    done = subprocess.run([ready.prefix / "bin" / "tool"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(ready.prefix)


def test_models_with_the_same_lock_share_one_environment(tmp_path: Path) -> None:
    first, second = script(tmp_path / "a", "adder", "numpy"), script(tmp_path / "b", "adder>=1", "numpy")
    lock(first)
    lock(second)
    manager = managed(tmp_path)

    assert manager.prepare(first, label="a").prefix == manager.prepare(second, label="b").prefix


@pytest.mark.skipif(makers.other_minor() == ".".join(OWN.split(".")[:2]), reason="this machine has one Python")
def test_a_python_is_used_that_the_lock_has_files_for(
    tmp_path: Path, wheels: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, other = ".".join(OWN.split(".")[:2]), makers.other_minor()
    file = tmp_path / "m" / "requirements.txt"
    file.parent.mkdir()
    file.write_text("adder==1.0\nnumpy\n")
    locked = lock(file).lock
    tag = f"cp{other.replace('.', '')}"
    (made,) = wheels.glob("adder-1.0-*.whl")
    made = made.rename(made.with_name(f"adder-1.0-{tag}-none-any.whl"))
    locked.write_text(locked.read_text().replace("adder-1.0-py3-none-any.whl", made.name))

    with caplog.at_level(logging.INFO):
        ready = managed(tmp_path).prepare(file, label="m")

    assert makers.run(ready.python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip() == other
    assert f"its lock has no file of adder for {own}" in caplog.text


def test_a_changed_lock_is_another_environment_and_the_old_one_stays(tmp_path: Path) -> None:
    file = script(tmp_path / "m", "adder==1.0", "numpy")
    lock(file)
    manager = managed(tmp_path)
    old = manager.prepare(file)
    script(tmp_path / "m", "adder==2.0", "numpy")
    lock(file)

    new = manager.prepare(file)

    assert (imported(old.python), imported(new.python)) == ("1.0", "2.0")


def test_a_server_with_a_limit_removes_unused_environments_after_a_build(tmp_path: Path) -> None:
    files = [script(tmp_path / name, f"adder=={name}.0", "numpy") for name in ("1", "2")]
    policy = StorePolicy(build=EnvBuild.ALLOWED, max_bytes=1)
    manager = EnvironmentManager(tmp_path / "store", reporter=LogReporter(), policy=policy)
    first = manager.prepare(files[0])
    assert first.python.exists()
    assert first.lease is not None
    first.lease.release()

    second = manager.prepare(files[1])

    assert not first.python.exists()
    assert second.python.exists()


def test_a_server_resolves_nothing_by_itself(tmp_path: Path) -> None:
    file = script(tmp_path / "m", "adder", "numpy")

    message = refusal(lambda: managed(tmp_path).prepare(file))

    assert message == (
        f"the environment of {file} has no lock, and --env-build=locked resolves no requirements: looked "
        f"for model.py.lock and pylock.toml in {file.parent}; write it with `naiad lock {file}`, or allow it with "
        "--env-build=allowed"
    )


def test_a_server_that_builds_nothing_names_the_command_that_does(tmp_path: Path) -> None:
    file = script(tmp_path / "m", "adder", "numpy")
    lock(file)

    message = refusal(lambda: managed(tmp_path, EnvBuild.NEVER).prepare(file))

    assert message == (
        f"the environment of {file} is not in the store {tmp_path / 'store'}, and --env-build=never builds "
        f"none; build it there with `naiad env prefetch {file}`"
    )


def test_where_it_is_allowed_requirements_are_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = script(tmp_path / "m", "adder", "numpy")

    ready = managed(tmp_path, EnvBuild.ALLOWED).prepare(file)

    assert imported(ready.python) == "2.0"
    assert [path.name for path in file.parent.iterdir()] == ["model.py"]  # the repository stays as it is
    monkeypatch.setattr(subprocess, "Popen", None)
    assert managed(tmp_path).prepare(file).python == ready.python


def test_a_lock_that_does_not_match_is_refused_and_resolved_again_where_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = script(tmp_path / "m", "adder==1.0", "numpy")
    path = lock(file).lock
    script(tmp_path / "m", "adder==2.0", "numpy")

    message = refusal(lambda: managed(tmp_path).prepare(file))
    with caplog.at_level(logging.WARNING):
        ready = managed(tmp_path, EnvBuild.ALLOWED).prepare(file)

    assert message == (
        f"{path} does not match {file}, which requires 'adder==2.0': it has adder 1.0; update it with `naiad lock {file}`"
    )
    assert message in caplog.text
    assert imported(ready.python) == "2.0"


def test_the_resolvers_reason_reaches_the_user(tmp_path: Path) -> None:
    file = script(tmp_path / "m", "counter", "adder>=3", "numpy")

    message = refusal(lambda: managed(tmp_path, EnvBuild.ALLOWED).prepare(file))

    assert f"named in {file}; the error of uv:\n  error: No solution found" in message
    assert "adder" in message
    assert "adder<=2.0" in message


def test_an_environment_without_numpy_is_refused_before_it_is_built(tmp_path: Path) -> None:
    file = script(tmp_path / "m", "adder")
    lock(file)

    message = refusal(lambda: managed(tmp_path).prepare(file))

    assert message == (
        f"the environment of {file} has no numpy, which every model needs; add it with `naiad add {file} numpy`"
    )


def test_a_changed_wheel_is_refused(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m" / "requirements.txt"  # uv's lock of a script has no digests of wheels in a folder
    file.parent.mkdir()
    file.write_text("adder==1.0\nnumpy\n")
    lock(file)
    write_wheel(wheels, "adder", "1.0", {"adder/__init__.py": "VERSION = 'evil'\n"})
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))  # in the other cache is what the lock names

    message = refusal(lambda: managed(tmp_path).prepare(file))

    assert message.startswith("cannot install adder")
    assert not [path for path in (tmp_path / "store").iterdir() if len(path.name) == 64]


def test_an_offline_server_uses_the_lock_and_a_folder_of_wheels(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = script(tmp_path / "m", "counter", "numpy")
    locked = lock(file)
    assert fetch_locked_wheels(locked, tmp_path / "carried") == 3
    shutil.rmtree(wheels)
    monkeypatch.delenv("PIP_FIND_LINKS")  # the other variable stays: with it, uv would be told `--no-index` twice

    ready = managed(tmp_path, offline=True, wheels=(tmp_path / "carried",)).prepare(file)

    assert imported(ready.python) == "2.0"


def test_another_version_of_python_is_chosen_by_the_block(tmp_path: Path) -> None:
    minor = makers.other_minor()
    file = script(tmp_path / "m", "adder", "numpy", python=f"=={minor}.*")
    lock(file)

    ready = managed(tmp_path).prepare(file)

    assert ".".join(map(str, ready.version[:2])) == minor


@pytest.mark.parametrize("is_offered", [True, False])
def test_a_python_that_the_machine_lacks_is_fetched_where_resolving_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_offered: bool
) -> None:
    file = script(tmp_path / "m", "adder", "numpy", python=">=3.25,<3.27")
    asked = tmp_path / "asked"
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" >>{asked}\necho no such version\nexit {0 if is_offered else 2}\n')
    uv.chmod(0o755)
    monkeypatch.setattr("naiad_building.uv_program.find_uv", lambda: uv)
    caplog.set_level(logging.INFO, logger="naiad")

    refused = refusal(lambda: managed(tmp_path).prepare(file))
    assert refused.startswith(f"cannot build the environment of {file}: no Python ")
    assert refused.endswith("; install one, for example with `uv python install 3.25`")
    assert not asked.exists()
    refusal(lambda: managed(tmp_path, EnvBuild.ALLOWED, offline=True).prepare(file))
    assert not asked.exists()

    refusal(lambda: managed(tmp_path, EnvBuild.ALLOWED).prepare(file))

    command, _, versions = asked.read_text().strip().rpartition(" ")
    assert command == "python install --no-config --no-bin"
    assert SpecifierSet(versions) == SpecifierSet(">=3.25,<3.27")
    assert "downloading Python 3.25 with uv" in caplog.text
    assert ("uv has not installed Python 3.25: no such version" in caplog.text) is not is_offered


def test_the_model_and_its_block_must_agree_on_a_version(tmp_path: Path) -> None:
    file = script(tmp_path / "m", "adder", "numpy", python=">=3.10")
    lock(file)

    message = refusal(lambda: managed(tmp_path).prepare(file, python=SpecifierSet("<3.10")))

    assert message == (
        f"cannot choose a Python for {file}: its block asks for Python >=3.10, and the model (PYTHON_VERSION, or its "
        "backend) for <3.10; change one of the two"
    )


@pytest.mark.parametrize(
    ("block", "model", "flag", "said"),
    [
        (">=3.10", "", "3.9", "its block asks for Python >=3.10, and --python for ==3.9.*"),
        (">=3.10", "==3.9.*", None, "its block asks for Python >=3.10, and PYTHON_VERSION for ==3.9.*"),
        (">=3.8", "==3.9.*", "3.10", "PYTHON_VERSION asks for Python ==3.9.*, and --python for ==3.10.*"),
    ],
)
def test_two_places_that_contradict_each_other_are_named(
    tmp_path: Path, block: str, model: str, flag: str | None, said: str
) -> None:
    file = script(tmp_path, "adder", "numpy", python=block)

    message = refusal(lambda: lock(file, python=flag, required=SpecifierSet(model), required_by="PYTHON_VERSION"))

    assert message == f"cannot choose a Python for {file}: {said}; change one of the two"


def test_a_version_that_no_machine_has_contradicts_nothing(tmp_path: Path) -> None:
    file = script(tmp_path, "adder", "numpy", python=">=3.77")

    assert "no Python ==3.78.*,>=3.77 on this machine" in refusal(lambda: lock(file, python="3.78"))


def test_requirements_of_a_file_are_their_own_lock_if_they_have_digests(tmp_path: Path, wheels: Path) -> None:
    pins = open_foreign_lock(lock_alone(tmp_path)).pins(OWN)
    file = tmp_path / "m" / "requirements.txt"
    file.parent.mkdir()
    lines = [f"{pin.name}=={pin.version} \\\n    --hash=sha256:{pin.digests[0]}" for pin in pins]
    file.write_text("# pinned\n" + "\n".join(lines) + "\n")

    assert imported(managed(tmp_path).prepare(file).python) == "2.0"


def lock_alone(tmp_path: Path) -> Path:
    return lock(script(tmp_path / "alone", "adder", "numpy")).lock


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "python_env.yaml"])
def test_files_of_projects_are_locked_and_built(tmp_path: Path, name: str) -> None:
    file = tmp_path / "m" / name
    file.parent.mkdir()
    project = '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["counter", "numpy"]\n'
    requirements = "counter\nnumpy  # arrays\n"
    python_env = f"python: {OWN}\nbuild_dependencies:\n- pip==1\n- setuptools\ndependencies:\n- -r packages.txt\n"
    (file.parent / "packages.txt").write_text(requirements)
    file.write_text({"pyproject.toml": project, "python_env.yaml": python_env}.get(name, requirements))

    refused = refusal(lambda: managed(tmp_path).prepare(file))
    locked = lock(file)

    assert "has no lock" in refused
    assert locked.lock == file.with_name("pylock.toml")
    assert imported(managed(tmp_path).prepare(file).python) == "2.0"
    assert managed(tmp_path).prepare(locked.lock).prefix == managed(tmp_path).prepare(file).prefix


def needs_other_packages_elsewhere(wheels: Path) -> None:
    """Offer `picky`, which has what it requires for the Python of the tests alone."""
    write_wheel(wheels, "picky", "1", {"picky.py": ""}, requires=[f"counter>=9; python_version > '{MINOR}'"])


def write_picky(folder: Path, kind: str) -> Path:
    """A declaration for the Python of the tests alone."""
    folder.mkdir()
    if kind == "script":
        return script(folder, "picky", "numpy", python=f"=={MINOR}.*")
    file = folder / kind
    project = (
        f'[project]\nname = "p"\nversion = "1"\nrequires-python = "~={MINOR}.0"\ndependencies = ["picky", "numpy"]\n'
    )
    python_env = f"python: {OWN}\ndependencies:\n- picky\n- numpy\n"
    file.write_text({"pyproject.toml": project, "python_env.yaml": python_env}[kind])
    return file


@pytest.mark.parametrize("kind", ["script", "pyproject.toml", "python_env.yaml"])
def test_an_environment_that_names_one_python_is_resolved_for_that_alone(
    tmp_path: Path, wheels: Path, kind: str
) -> None:
    needs_other_packages_elsewhere(wheels)
    file = write_picky(tmp_path / "m", kind)

    locked = lock(file)

    assert {pin.name for pin in locked.pins} == {"numpy", "picky"}
    assert check_lock(LockRequest(file=file, cache=tmp_path, options=InstallOptions())).is_current
    versions = open_foreign_lock(locked.lock).requires_python
    assert [minor for minor in range(8, 16) if f"3.{minor}.7" in versions] == [int(MINOR.split(".")[1])]
    assert managed(tmp_path).prepare(file).numpy_version == "0.1"


def test_a_model_that_asks_for_one_python_is_locked_for_that_alone(tmp_path: Path, wheels: Path) -> None:
    needs_other_packages_elsewhere(wheels)
    (tmp_path / "limits.txt").write_text("adder<2\n")
    file = tmp_path / "requirements.txt"
    file.write_text("-c limits.txt\npicky ; python_version > '3.0'\nnumpy\nadder\n")

    locked = lock(file, required=SpecifierSet(f"=={MINOR}"))

    assert [(pin.name, pin.version) for pin in locked.pins] == [("adder", "1.0"), ("numpy", "0.1"), ("picky", "1")]
    assert f'requires-python = "=={MINOR}.*"' in locked.lock.read_text()
    # The next lock keeps its versions, unless they do not fit.
    write_wheel(wheels, "adder", "1.5", {"adder/__init__.py": ""})
    assert lock(file, required=SpecifierSet(f"=={MINOR}")).versions["adder"] == "1.0"
    (tmp_path / "limits.txt").write_text("adder>1\n")
    assert lock(file, required=SpecifierSet(f"=={MINOR}")).versions["adder"] == "2.0"


def test_packages_that_suit_no_other_python_are_locked_for_this_one(tmp_path: Path, wheels: Path) -> None:
    needs_other_packages_elsewhere(wheels)
    file = script(tmp_path, "picky", "numpy", python=">=3.8")
    told: list[str] = []
    request = LockRequest(file=file, cache=tmp_path / "cache", options=InstallOptions(progress=told.append))

    locked = lock_declaration(request)

    assert f"the lock is for Python {MINOR} alone: nothing suits all of >=3.8" in told
    assert check_lock(request).is_current
    assert open_foreign_lock(locked.lock).requires_python == SpecifierSet(f"=={MINOR}.*")
    assert managed(tmp_path).prepare(file).numpy_version == "0.1"
    assert {pin.name for pin in lock(file, adding(file, ["adder"])).pins} == {"adder", "numpy", "picky"}


def test_a_server_resolves_for_the_python_that_it_uses_alone(tmp_path: Path, wheels: Path) -> None:
    needs_other_packages_elsewhere(wheels)
    file = script(tmp_path / "m", "picky", "numpy", python=">=3.8")

    assert managed(tmp_path, EnvBuild.ALLOWED).prepare(file).numpy_version == "0.1"


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_a_pylock_names_no_place(tmp_path: Path, wheels: Path, name: str) -> None:
    file = tmp_path / "m" / name
    file.parent.mkdir()
    project = '[project]\nname = "p"\nversion = "1"\ndependencies = ["counter", "numpy"]\n'
    file.write_text(project if name == "pyproject.toml" else "counter\nnumpy\n")

    text = lock(file).lock.read_text()

    assert "://" not in text
    assert str(tmp_path) not in text
    assert 'path = "adder-2.0-py3-none-any.whl"' in text
    # The next one keeps its versions.
    write_wheel(wheels, "adder", "2.5", {"adder/__init__.py": "VERSION = '2.5'\n"})
    assert lock(file).versions["adder"] == "2.0"
    assert lock(file, is_upgrade=True).versions["adder"] == "2.5"


@pytest.mark.parametrize(
    ("text", "python", "requirements"),
    [
        ("python: 3.11.7\ndependencies:\n- a==1\n- 'b>=2; python_version > \"3\"'\n", "==3.11.*", ["a", "b"]),
        ("# by hand\ndependencies:\n  - a\n\npython: '3.12'\n", "==3.12.*", ["a"]),
        (
            "build_dependencies:\n- pip==23.3\n- setuptools==79.0.1\n- wheel\ndependencies:\n- a\n",
            "",
            ["setuptools", "a"],
        ),
    ],
)
def test_a_file_of_mlflow_has_requirements_and_a_minor_version(
    tmp_path: Path, text: str, python: str, requirements: list[str]
) -> None:
    declaration = read_declaration(tmp_path / "python_env.yaml", text)

    assert str(declaration.requires_python) == python
    assert [one.name for one in declaration.requirements] == requirements


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "- a\n",
            "'- a' is neither 'python', 'build_dependencies' or 'dependencies' nor an item of one of these lists",
        ),
        ("dependencies: [a]\n", "'dependencies: \\[a\\]' is not a list with an item a line"),
        ("channels:\n- a\n", "'channels:' is neither"),
        ("python: newest\n", "'newest' is not a version of Python"),
    ],
)
def test_a_file_of_mlflow_that_cannot_be_read_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ExecutionEnvironmentError, match=rf"python_env\.yaml is invalid: {message}"):
        read_declaration(tmp_path / "python_env.yaml", text)


def test_a_relative_path_is_locked_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    file = Path("models/m/requirements.txt")
    file.write_text("adder\nnumpy\n")

    assert lock(file).lock == Path("models/m/pylock.toml")


def test_packages_are_added_with_numpy_and_locked(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import adder\n")

    locked = lock(file, adding(file, ["adder==1.0"]))

    assert [(pin.name, pin.version) for pin in locked.pins] == [("adder", "1.0"), ("numpy", "0.1")]
    own = ".".join(OWN.split(".")[:2])
    assert file.read_text() == (
        f'# /// script\n# requires-python = ">={own}"\n# dependencies = [\n#     "adder==1.0",\n#     "numpy",\n# ]\n# ///\n'
        "import adder\n"
    )
    assert open_foreign_lock(locked.lock).requires_python == SpecifierSet(f">={own}")


def test_the_versions_of_python_that_a_block_names_stay(tmp_path: Path) -> None:
    file = script(tmp_path, "numpy", python=">=3.9")

    lock(file, adding(file, ["adder"]))

    assert file.read_text().count("requires-python") == 1
    assert '# requires-python = ">=3.9"\n' in file.read_text()


def test_an_unavailable_package_changes_nothing(tmp_path: Path) -> None:
    file = script(tmp_path, "adder", "numpy")
    path = lock(file).lock
    before = file.read_text(), path.read_text()

    assert "subtracter" in refusal(lambda: lock(file, adding(file, ["subtracter"])))

    assert (file.read_text(), path.read_text()) == before
    assert sorted(each.name for each in tmp_path.glob("*model.py*")) == ["model.py", "model.py.lock"]


def test_a_lock_cannot_be_locked(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("adder\nnumpy\n")
    path = lock(file).lock
    with pytest.raises(ConfigError, match="is a lock itself"):
        lock(path)
