"""Finding a Python on the machine, and asking one what it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from environments import makers
from packaging.specifiers import SpecifierSet

from naiad.core.errors import ExecutionEnvironmentError, InterpreterNotFoundError
from naiad.sources.interpreters.discovery import candidate_paths, find_interpreter, iterate_installations
from naiad.sources.interpreters.probe import probe_cached, probe_interpreter


def pretender(path: Path, version: str, numpy: str | None = "1.0", implementation: str = "cpython") -> Path:
    """A script that answers our questions as an interpreter of any version would."""
    answer = {
        "version": [int(number) for number in version.split(".")],
        "implementation": implementation,
        "cache_tag": "x",
        "abi": "x",
        "prefix": str(path.parent.parent),
        "base_prefix": str(path.parent.parent),
        "bits": 64,
        "platform": "linux",
        "libpython": None,
        "site_dirs": [str(path.parent)],
        "numpy": numpy,
        "numpy_error": None if numpy else "ModuleNotFoundError: No module named 'numpy'",
        "has_bytecode": True,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!/bin/sh\necho asked >> {path}.log\necho 'hello from a sitecustomize'\necho 'naiad-probe:{json.dumps(answer)}'\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> list[Path]:
    made = [("3.9.18", "1.0"), ("3.10.13", "1.0"), ("3.12.1", None), ("3.11.7", "2.0"), ("3.13.0", None)]
    return [pretender(tmp_path / version / "bin" / "python3", version, numpy) for version, numpy in made]


def found(required: str, machine: list[Path], cache: Path, **options) -> tuple[int, ...]:
    return find_interpreter(SpecifierSet(required), cache, paths=lambda: machine, **options).version


@pytest.mark.parametrize(
    ("required", "expected"),
    [("==3.10", (3, 10, 13)), (">=3.9,<3.13", (3, 11, 7)), ("<3.10", (3, 9, 18)), ("", (3, 11, 7))],
)
def test_the_newest_with_numpy_that_will_do_is_found(required, expected, machine, tmp_path):
    assert found(required, machine, tmp_path / "cache") == expected


def test_an_interpreter_that_is_found_is_no_line_of_information(machine, tmp_path, caplog):
    """`naiad explain --prepare` shows such lines, and the start of a guest has the interpreter in its own."""
    with caplog.at_level("INFO", logger="naiad"):
        assert found("==3.10", machine, tmp_path / "cache") == (3, 10, 13)
    assert caplog.messages == []


def test_an_activated_environment_of_the_version_is_preferred(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "3.9.18"))
    assert found(">=3.9,<3.13", machine, tmp_path / "cache") == (3, 9, 18)
    assert found(">=3.10,<3.13", machine, tmp_path / "cache") == (3, 11, 7)


def test_an_activated_environment_is_a_candidate_beside_its_base(tmp_path):
    base = pretender(tmp_path / "base" / "bin" / "python3", "3.10.13", numpy=None)
    activated = tmp_path / "activated" / "bin" / "python"
    activated.parent.mkdir(parents=True)
    activated.symlink_to(base)
    environ = {"VIRTUAL_ENV": str(tmp_path / "activated"), "PATH": str(base.parent)}
    assert activated in candidate_paths(tmp_path / "cache", environ, tmp_path)


def test_numpy_is_not_needed_to_build_an_environment(machine, tmp_path):
    assert found("", machine, tmp_path / "cache", need_numpy=False) == (3, 13, 0)


def test_an_interpreter_without_numpy_is_named_with_the_remedy(machine, tmp_path):
    with pytest.raises(InterpreterNotFoundError) as caught:
        found("==3.12", machine, tmp_path / "cache")

    message = caught.value.message
    assert "no Python ==3.12 on this machine can run a model: 1 of that version lacks numpy" in message
    assert f"run `{machine[2]} -m pip install numpy`, or give the model an EXECUTION_ENV_PATH" in message
    assert "There are: 3.13.0 at " in message
    assert message.endswith(", 3.9.18")
    assert message.count(" at /") == 2, "paths of the newest and of the one to install numpy for"
    with pytest.raises(InterpreterNotFoundError, match=r"can run a model \(required by /b/stub\.toml\): 1 of that"):
        found("==3.12", machine, tmp_path / "cache", origin="/b/stub.toml")


def test_a_version_that_is_not_there_lists_those_that_are(machine, tmp_path):
    with pytest.raises(InterpreterNotFoundError, match=r"there are 3\.13\.0 at \S+, 3\.12\.1, 3\.11\.7"):
        found("==3.8", machine, tmp_path / "cache")


@pytest.mark.parametrize(
    ("need_numpy", "advice"),
    [
        (True, "; install one with numpy, or give the model an EXECUTION_ENV_PATH"),
        (False, "; install one, for example with `uv python install 3.8`"),
    ],
)
def test_the_error_of_a_build_does_not_mention_the_needs_of_a_model(machine, tmp_path, need_numpy, advice):
    with pytest.raises(InterpreterNotFoundError) as caught:
        found("==3.8", machine, tmp_path / "cache", need_numpy=need_numpy)

    assert caught.value.message.endswith(f"uv, mise, asdf and conda){advice}")


def test_another_implementation_and_a_broken_one_are_passed_over(tmp_path):
    pypy = pretender(tmp_path / "pypy" / "python3", "3.14.0", implementation="pypy")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    good = pretender(tmp_path / "good" / "python3", "3.9.1")

    assert found("", [pypy, broken, good], tmp_path / "cache") == (3, 9, 1)


def test_an_interpreter_is_probed_once_until_it_changes(tmp_path):
    python, log = pretender(tmp_path / "bin" / "python3", "3.9.1"), tmp_path / "bin" / "python3.log"
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    log.touch()  # so that writing it does not change the folder of packages

    first = probe_cached(python, tmp_path / "cache")
    again = probe_cached(python, tmp_path / "cache")
    pretender(python, "3.9.22")
    third = probe_cached(python, tmp_path / "cache")

    assert first == again
    assert third.version == (3, 9, 22)
    assert log.read_text().split() == ["asked", "asked"]


def test_a_damaged_cache_is_ignored(tmp_path):
    python = pretender(tmp_path / "bin" / "python3", "3.9.1")
    first = probe_cached(python, tmp_path / "cache")
    for file in (tmp_path / "cache").iterdir():
        file.write_text("{ spoilt")

    assert probe_cached(python, tmp_path / "cache") == first


def test_an_interpreter_that_hangs_is_abandoned(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)

    with pytest.raises(ExecutionEnvironmentError, match=r"did not finish within 0\.2 s of its start"):
        probe_interpreter(python, time_limit=0.2)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo one >&2; echo two >&2; exit 3", "does not work: exit status 3: one | two"),
        ("exit 3", "does not work: exit status 3 with no output"),
        ("kill -9 $$", "does not work: killed by signal 9"),
        ("echo 'naiad-probe:{'", "in its output"),
        ("echo 'naiad-probe:{}'", "its output is invalid"),
    ],
)
def test_the_output_of_a_failing_interpreter_is_quoted(script, expected, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)

    with pytest.raises(ExecutionEnvironmentError) as caught:
        probe_interpreter(python)

    assert expected in caught.value.message


def test_a_real_interpreter_is_described_correctly(whole, minor):
    told = probe_interpreter(whole / "bin" / "python")

    assert told.implementation == "cpython"
    assert ".".join(map(str, told.version[:2])) == minor
    assert told.prefix == told.base_prefix == whole
    assert told.numpy == "0.0.stand-in"
    assert told.has_bytecode
    assert told.libpython is None or Path(told.libpython).is_relative_to(whole)


def test_a_probe_leaves_nothing_behind_and_ignores_its_environment(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "numpy.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)

    assert probe_interpreter(whole / "bin" / "python").numpy == "0.0.stand-in"
    assert [path.name for path in tmp_path.iterdir()] == ["numpy.py"]


def test_interpreters_are_found_in_the_usual_folders(tmp_path):
    places = [
        ".pyenv/versions/3.9.1/bin/python3.9",
        ".local/share/uv/python/cpython-3.12.1-linux-x86_64-gnu/bin/python3.12",
        ".local/share/mise/installs/python/3.11.0/bin/python3.11",
        ".asdf/installs/python/3.10.0/bin/python3.10",
        "miniconda3/bin/python3.13",
        "miniconda3/envs/work/bin/python3.8",
        "opt/conda/bin/python3.7",
        "opt/python3.14/bin/python3.14",
        "opt/python/cp312/bin/python3.12",
    ]
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()

    listed = list(iterate_installations({}, tmp_path, tmp_path / "opt"))

    assert {str(path.relative_to(tmp_path)) for path in listed if path.is_relative_to(tmp_path)} == set(places)


def test_variables_that_move_the_folder_of_a_tool_are_respected(tmp_path):
    python = pretender(tmp_path / "moved" / "versions" / "3.9.1" / "bin" / "python3", "3.9.1")

    assert python in iterate_installations({"PYENV_ROOT": str(tmp_path / "moved")}, tmp_path / "home")


@pytest.mark.builds
def test_the_machines_interpreters_are_found_each_once(tmp_path):
    paths = candidate_paths(tmp_path)

    real = [path.resolve() for path in paths]
    assert len(real) == len(set(real))
    for base in makers.base_interpreters().values():
        assert any(path.is_relative_to(base.resolve()) for path in real)
