"""`naiad add` and `naiad lock` find the file that declares the packages of a model, or say which one does."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments.makers import other_minor
from environments.wheels import offer_wheels, only_wheels, script

from naiad.cli.main import main
from naiad_building.lockfiles import open_foreign_lock


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_wheels(offer_wheels(tmp_path / "wheels"), monkeypatch)
    monkeypatch.setenv("NAIAD_STORE", str(tmp_path / "store"))


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
