"""`naiad add` and `naiad lock` find the file that declares the packages of a model, or say which one does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from environments.makers import other_minor
from environments.wheels import offer_wheels, only_wheels, script

from naiad.cli.main import main
from naiad_building.base_interpreter import inspect_base
from naiad_building.cli.declared import _print_locked
from naiad_building.declared.locking import LockedDeclaration
from naiad_building.lockfiles import Pin, open_foreign_lock

OWN_MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = offer_wheels(tmp_path / "wheels")
    only_wheels(folder, monkeypatch)
    monkeypatch.setenv("NAIAD_STORE", str(tmp_path / "store"))
    return folder


def make_model(folder: Path, **parameters: str) -> Path:
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "1" / "model.py").write_text("import adder\n")
    text = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
    )
    (folder / "m" / "config.pbtxt").write_text(f'backend: "python"\n{text}')
    return folder / "m"


@pytest.mark.parametrize("named", ["requirements.txt", "$$TRITON_MODEL_DIRECTORY/requirements.txt"])
@pytest.mark.parametrize("argument", ["", "1/model.py"])
def test_packages_are_not_added_to_a_block_that_has_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str, argument: str
) -> None:
    model = make_model(tmp_path, EXECUTION_ENV_PATH=named)
    (model / "requirements.txt").write_text("numpy\n")

    assert main(["add", str(model / argument), "adder"]) == 1

    assert capsys.readouterr().err == (
        f"cannot add packages to {model / argument}: its environment is '{model}/requirements.txt', named by "
        f"EXECUTION_ENV_PATH in {model}/config.pbtxt, which wins over a script block; add them to "
        f"{model}/requirements.txt, and run `naiad lock {model}/requirements.txt`\n"
    )
    assert (model / "1" / "model.py").read_text() == "import adder\n"
    assert not list(model.rglob("*lock*"))


def test_a_package_that_is_not_a_requirement_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path)

    assert main(["add", str(model), "adder ==> 2"]) == 1

    error = capsys.readouterr().err
    assert error == "'adder ==> 2' is not a requirement; write for example 'scikit-learn==1.5.*'\n"


def test_an_environment_that_is_no_declaration_is_named_as_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path, **{"EXECUTION_ENV_PATH.1": "env://shop"})

    assert main(["add", str(model), "adder"]) == 1

    assert capsys.readouterr().err.endswith(
        f"named by EXECUTION_ENV_PATH.1 in {model}/config.pbtxt, which wins over a script block; build 'env://shop' with "
        "them, or name no environment there\n"
    )


@pytest.mark.parametrize("kind", ["backend.toml", "archive"])
def test_an_environment_of_a_shared_backend_wins_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    backend = tmp_path / "b"
    backend.mkdir()
    (backend / "model.py").touch()
    named = "env.tar.gz" if kind == "backend.toml" else "pb_exec_env_model.py.tar.gz"
    (backend / named).touch()
    if kind == "backend.toml":
        (backend / "backend.toml").write_text('environment = "env.tar.gz"\n')

    assert main(["add", str(backend), "adder"]) == 1

    assert f"its environment is '{backend}/{named}', named by " in capsys.readouterr().err


def test_packages_are_added_to_the_script_that_is_named(tmp_path: Path) -> None:
    model = make_model(tmp_path, EXECUTION_ENV_PATH="packages.py")
    file = script(model, "numpy", name="packages.py")

    assert main(["add", str(model), "adder"]) == 0

    assert "adder" in file.read_text()
    assert (model / "packages.py.lock").is_file()
    assert (model / "1" / "model.py").read_text() == "import adder\n"


def test_a_model_is_locked_for_the_python_that_its_configuration_requires(tmp_path: Path) -> None:
    minor = other_minor()
    model = make_model(tmp_path, PYTHON_VERSION=minor)

    assert main(["add", str(model), "adder"]) == 0

    assert f'requires-python = ">={minor}"' in (model / "1" / "model.py").read_text()
    assert open_foreign_lock(model / "1" / "model.py.lock").requires_python.contains(f"{minor}.9")


@pytest.mark.parametrize("place", ["1", "1/model"])
def test_a_model_without_code_is_locked_by_the_file_that_it_brings(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "models" / "m" / place
    folder.mkdir(parents=True)
    (folder / "python_env.yaml").write_text("dependencies:\n- adder\n- numpy\n")

    assert main(["lock", str(tmp_path / "models" / "m")]) == 0
    assert (folder / "pylock.toml").is_file()


def test_a_file_outside_the_model_is_locked_for_the_python_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    minor = other_minor()
    shared = tmp_path / "shared" / "requirements.txt"
    shared.parent.mkdir()
    shared.write_text("adder\nnumpy\n")
    model = make_model(tmp_path / "models", PYTHON_VERSION=minor, EXECUTION_ENV_PATH=str(shared))

    assert main(["lock", str(model)]) == 0

    lock = shared.with_name("pylock.toml")
    assert f"wrote {lock}: 2 packages for Python {minor}\n" in capsys.readouterr().out
    assert [pin.name for pin in open_foreign_lock(lock).pins(f"{minor}.9")] == ["adder", "numpy"]


def locked_before_a_release(tmp_path: Path, wheels: Path) -> tuple[Path, Path, str]:
    """A model that was locked before version 2.0 of `adder`: the model, its script, and the text of its lock."""
    newest = wheels / "adder-2.0-py3-none-any.whl"
    kept = newest.rename(tmp_path / newest.name)
    model = make_model(tmp_path)
    assert main(["add", str(model), "counter"]) == 0
    kept.rename(newest)
    file = model / "1" / "model.py"
    return model, file, file.with_name("model.py.lock").read_text()


def without_progress(out: str) -> str:
    return "".join(line for line in out.splitlines(keepends=True) if not line.lower().startswith("resolv"))


def test_a_lock_keeps_its_versions_unless_they_are_to_be_upgraded(
    tmp_path: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file, before = locked_before_a_release(tmp_path, wheels)
    lock = file.with_name("model.py.lock")

    assert main(["lock", str(model)]) == 0
    assert lock.read_text() == before
    assert main(["lock", str(model), "--upgrade"]) == 0

    assert "    adder 2.0\n" in capsys.readouterr().out
    assert 'version = "2.0"' in lock.read_text()


def test_a_lock_is_checked_and_nothing_is_written(
    tmp_path: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file, before = locked_before_a_release(tmp_path, wheels)
    lock = file.with_name("model.py.lock")

    def checked(*flags: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["lock", str(model), "--check", *flags])
        return code, without_progress(capsys.readouterr().out)

    assert checked() == (0, f"{lock} is up to date\n")

    file.write_text(file.read_text().replace('"counter"', '"adder>1"'))
    code, out = checked()
    assert code == 1
    assert out == (
        f"{lock} is not up to date: `naiad lock {model}` would write, for Python {OWN_MINOR}:\n"
        "    adder 1.0 -> 2.0\n    - counter 1.0\n"
    )
    code, out = checked("--json")
    assert code == 1
    assert json.loads(out) == {
        "lock": str(lock),
        "is_current": False,
        "changes": [
            {"name": "adder", "before": "1.0", "after": "2.0"},
            {"name": "counter", "before": "1.0", "after": ""},
        ],
    }
    assert lock.read_text() == before

    lock.unlink()
    code, out = checked()
    assert code == 1
    assert out == (
        f"{file} has no lock: `naiad lock {model}` would write, for Python {OWN_MINOR}:\n"
        "    + adder 2.0\n    + numpy 0.1\n"
    )
    assert not lock.exists()


def test_a_lock_of_the_same_versions_may_have_other_entries(
    tmp_path: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file, before = locked_before_a_release(tmp_path, wheels)
    file.write_text(file.read_text().replace(f">={OWN_MINOR}", f">={OWN_MINOR},<4"))

    assert main(["lock", str(model), "--check"]) == 1
    assert file.with_name("model.py.lock").read_text() == before

    assert capsys.readouterr().out.endswith(
        "    the same versions, with other entries: files of packages, or other platforms and Pythons\n"
    )


@pytest.mark.parametrize("other", ["--upgrade", "--download=wheels"])
def test_a_check_writes_nothing_that_another_flag_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    assert main(["lock", str(make_model(tmp_path)), "--check", other]) == 2

    assert f"--check writes nothing, so it cannot be used with {other.partition('=')[0]}" in capsys.readouterr().err


def test_a_removed_package_leaves_the_lock_with_what_only_it_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path)
    assert main(["add", str(model), "counter"]) == 0
    capsys.readouterr()

    assert main(["remove", str(model), "Counter"]) == 0

    file = model / "1" / "model.py"
    out = without_progress(capsys.readouterr().out)
    wrote = f"wrote {file}.lock: 1 packages for Python {OWN_MINOR}\n    numpy 0.1\n"
    assert out == f"removed Counter from {file}\n{wrote}"
    assert "counter" not in file.read_text() + file.with_name("model.py.lock").read_text()


def test_a_package_that_cannot_be_removed_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path)
    assert main(["add", str(model), "counter"]) == 0
    file = model / "1" / "model.py"
    before = file.read_text(), file.with_name("model.py.lock").read_text()
    capsys.readouterr()

    assert main(["remove", str(model), "subtracter"]) == 1

    assert capsys.readouterr().err == (
        f"cannot remove subtracter from {file}: the packages of its block are: counter, numpy\n"
    )
    assert (file.read_text(), file.with_name("model.py.lock").read_text()) == before


def test_packages_are_removed_where_they_have_an_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path, EXECUTION_ENV_PATH="requirements.txt")
    (model / "requirements.txt").write_text("numpy\nadder\n")

    assert main(["remove", str(model), "adder"]) == 1

    assert capsys.readouterr().err == (
        f"cannot remove packages from {model}: its environment is '{model}/requirements.txt', named by "
        f"EXECUTION_ENV_PATH in {model}/config.pbtxt, which wins over a script block; remove them from "
        f"{model}/requirements.txt, and run `naiad lock {model}/requirements.txt`\n"
    )


def test_what_an_environment_downloads_is_said_and_how_it_would_be_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def locked(*pins: Pin) -> LockedDeclaration:
        versions = {one.name: one.version for one in pins}
        base = inspect_base(Path(sys.executable))
        file = tmp_path / "model.py"
        return LockedDeclaration(file=file, lock=file, python=base.version, versions=versions, pins=pins, base=base)

    plain = Pin("numpy", "1", ("0", "1"), ("numpy-1-cp38-cp38-win32.whl", "numpy-1-py3-none-any.whl"), (7, 35_000_000))
    _print_locked(locked(plain))
    assert capsys.readouterr().out.endswith("    numpy 1\nan environment of these downloads 35 MB\n")

    cuda = Pin("nvidia-cudnn-cu13", "1", ("0",), ("nvidia_cudnn_cu13-1-py3-none-any.whl",), (5_400_000_000,))
    _print_locked(locked(plain, cuda))
    assert capsys.readouterr().out.endswith(
        "an environment of these downloads 5.4 GB\n5.4 GB of this is for GPUs of NVIDIA; for processors alone, assign torch "
        "with [tool.uv.sources] to an index of its builds for these, and run `naiad lock` again\n"
    )

    unknown = Pin("adder", "1", ("0",), ("adder-1-py3-none-any.whl",), (0,))
    _print_locked(locked(plain, unknown))
    assert capsys.readouterr().out.endswith(
        "\nan environment of these downloads at least 35 MB; no size is known of adder\n"
    )

    several = [Pin(name, "1", ("0",)) for name in ("e", "d", "c", "b")]
    _print_locked(locked(plain, unknown, *several))
    assert capsys.readouterr().out.endswith("; no size is known of adder, b, c and 2 more\n")

    _print_locked(locked(unknown))
    assert capsys.readouterr().out.endswith("    adder 1\n")

    elsewhere = Pin("tables", "1", ("0",), ("tables-1-cp38-cp38-win32.whl",), (5,))
    _print_locked(locked(unknown, elsewhere))
    minor = ".".join(map(str, sys.version_info[:2]))
    assert capsys.readouterr().out.endswith(
        f"    tables 1\nnote: the lock has no file of tables for Python {minor} on this machine; the model needs another "
        "Python here, which `naiad run` and servers look for\n"
    )


def make_recipe(folder: Path, python: str, project: str) -> Path:
    folder.mkdir()
    (folder / "env.toml").write_text(f'name = "r"\npython = "{python}"\nrequirements = "pyproject.toml"\n')
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "p"\nversion = "1"\nrequires-python = "{project}"\ndependencies = ["adder", "numpy"]\n'
    )
    return folder


def test_a_recipe_is_locked_with_a_python_that_its_declaration_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_recipe(tmp_path / "recipe", ">=3.8", f"=={OWN_MINOR}.*")  # a build takes the newest

    assert main(["lock", str(folder)]) == 0

    assert f"2 packages for Python {OWN_MINOR}\n" in capsys.readouterr().out


def test_a_recipe_and_its_declaration_that_contradict_each_other_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_recipe(tmp_path / "recipe", "<3.10", ">=3.11")

    assert main(["lock", str(folder)]) == 1

    assert capsys.readouterr().err == (
        f"cannot choose a Python for {folder / 'pyproject.toml'}: it asks for Python >=3.11, and 'python' in "
        f"{folder / 'env.toml'} for <3.10; change one of the two\n"
    )
