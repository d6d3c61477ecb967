"""Environments are built whole, or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from environments.packages import offer_greeter, run_alone, small_environment, write_recipe
from support.interpreters import interpreters

from naiad.core.errors import ExecutionEnvironmentError, InterpreterNotFoundError, OptionError
from naiad.environments.elf import overwrite_search_path, read_dynamic_section
from naiad_building.base_interpreter import inspect_base
from naiad_building.build import BuiltEnvironment, build
from naiad_building.pack import pack

_ENVS = Path(__file__).parents[2] / "envs"
_STATE = """
import json, sys
maps = open("/proc/self/maps").read().splitlines()
print(json.dumps({
    "version": sys.version.split()[0], "prefix": sys.prefix, "path": sys.path,
    "mapped": sorted({line.split()[-1] for line in maps if "python" in line.split()[-1]}),
}))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltEnvironment:
    """An environment with one small package, under another Python than ours where the machine has one."""
    return small_environment(tmp_path_factory.getbasetemp())


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ExecutionEnvironmentError, match=r"cannot build in .*/taken: it exists already; remove it"):
        build(_ENVS / "numpy_only", tmp_path / "taken")
    assert (tmp_path / "taken" / "file").exists()


@pytest.mark.parametrize("version", ["three", "3.x", ">=3.9"])
def test_an_invalid_version_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(OptionError, match=f"'{version}' is not a version of Python; give one such as 3.12"):
        build(_ENVS / "numpy_only", tmp_path / "prefix", python=version)
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExecutionEnvironmentError, match=r"/nowhere/bin/python does not work: .*No such file"):
        build(_ENVS / "numpy_only", tmp_path / "prefix", python="/nowhere/bin/python")
    assert list(tmp_path.iterdir()) == []


def test_a_virtual_environment_stands_for_its_base_interpreter() -> None:
    base = inspect_base(Path(sys.executable))
    assert base.prefix == Path(sys.base_prefix).resolve()
    assert (base.stdlib / "os.py").is_file()
    assert base.version == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.builds
def test_a_version_that_the_machine_lacks_is_refused_with_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(InterpreterNotFoundError) as caught:
        build(_ENVS / "numpy_only", tmp_path / "prefix", python="3.77")
    assert re.fullmatch(
        r"cannot build 'numpy_only' of .*: no Python ==3\.77\.\* on this machine: there are 3\.\d+\.\d+\S* at /.*; install one",
        caught.value.message,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.builds
def test_a_built_environment_runs_without_the_interpreter_it_came_from(built: BuiltEnvironment) -> None:
    base = inspect_base(built.base)
    hidden = None if base.is_system else base.prefix
    state = json.loads(run_alone([str(built.python), "-I", "-c", _STATE], hidden))
    assert state["version"] == built.version == base.version
    assert state["prefix"] == str(built.prefix)
    assert [path for path in (*state["path"], *state["mapped"]) if not path.startswith(f"{built.prefix}/")] == []
    usual = "import ssl, sqlite3, ctypes, zlib, lzma, asyncio, multiprocessing, sysconfig; print(sysconfig.get_path('stdlib'))"
    assert run_alone([str(built.python), "-I", "-c", usual], hidden).startswith(str(built.prefix))


@pytest.mark.builds
def test_a_built_environment_holds_its_packages_and_files_and_no_more(built: BuiltEnvironment) -> None:
    assert built.packages == (("greeter", "1.2"),)
    assert run_alone([str(built.prefix / "bin" / "greet")]) == "hello\n"
    assert (built.prefix / "share" / "small" / "data" / "labels.txt").read_text() == "good\nbad\n"
    assert list(built.prefix.rglob("ensurepip")) == []
    assert list(built.prefix.rglob("*.a")) == []


@pytest.mark.builds
def test_everything_in_a_built_environment_is_compiled(built: BuiltEnvironment) -> None:
    modules = "import greeter, json, asyncio; print(*(m.__spec__.cached for m in (greeter, json, asyncio)), sep='\\n')"
    cached = run_alone([str(built.python), "-I", "-B", "-c", modules]).splitlines()
    assert all(Path(file).is_file() for file in cached)


@pytest.mark.builds
def test_nothing_in_a_built_environment_names_the_original(built: BuiltEnvironment) -> None:
    base = inspect_base(built.base)
    if base.is_system:
        pytest.skip("every text names /usr")
    scripts = [path for path in (built.prefix / "bin").iterdir() if not path.is_symlink()]
    settings = list(built.prefix.glob("lib/python*/_sysconfigdata*.py"))
    assert settings
    assert [file for file in (*scripts, *settings) if os.fsencode(base.prefix) in file.read_bytes()] == []


@pytest.mark.builds
def test_a_package_that_cannot_be_installed_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_greeter(tmp_path / "wheels", monkeypatch)
    recipe = write_recipe(tmp_path / "recipe", "greeter==1.2\nno-such-thing-for-naiad==7\n")
    with pytest.raises(ExecutionEnvironmentError) as caught:
        build(recipe, tmp_path / "deep" / "down" / "prefix")
    assert "cannot install no-such-thing-for-naiad==7 for 'recipe', named in" in caught.value.message
    assert "was not found" in caught.value.message
    assert not (tmp_path / "deep").exists()


@pytest.mark.builds
def test_a_build_leaves_nothing_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv leaves a lock there."""
    offer_greeter(tmp_path / "wheels", monkeypatch)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (_, oldest), *_ = interpreters()
    build(write_recipe(tmp_path / "recipe", "greeter\n"), tmp_path / "prefix", python=oldest)
    assert list(temporary.iterdir()) == []


@pytest.mark.builds
def test_a_failed_build_leaves_the_empty_folder_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_greeter(tmp_path / "wheels", monkeypatch)
    recipe = write_recipe(tmp_path / "recipe", "greeter==9\n")
    (tmp_path / "prefix").mkdir()
    with pytest.raises(ExecutionEnvironmentError, match="cannot install greeter==9"):
        build(recipe, tmp_path / "prefix")
    assert list((tmp_path / "prefix").iterdir()) == []


@pytest.mark.builds
def test_an_interpreter_that_finds_its_library_only_by_the_machines_settings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: BuiltEnvironment
) -> None:
    base = tmp_path / "base"
    shutil.copytree(built.prefix, base, symlinks=True)
    python = base / "bin" / built.python.name
    section = read_dynamic_section(python)
    if section is None or not section.search_path:
        pytest.skip("the interpreters of this machine are linked statically")
    overwrite_search_path(python, section, "")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(base / "lib"))
    with pytest.raises(
        ExecutionEnvironmentError, match=r"cannot be made relocatable: its copy in .* another interpreter"
    ):
        build(_ENVS / "numpy_only", tmp_path / "prefix", python=str(python))
    assert not (tmp_path / "prefix").exists()


@pytest.mark.endurance
def test_the_numpy_recipe_builds_under_another_python(tmp_path: Path) -> None:
    """Needs whatever index pip is configured for."""
    built = build(_ENVS / "numpy_only", tmp_path / "prefix")
    assert [name for name, _ in built.packages] == ["numpy"]
    code = "import numpy; print(numpy.__file__, int(numpy.arange(4).sum()))"
    file, total = run_alone([str(built.python), "-I", "-c", code]).split()
    assert file.startswith(str(built.prefix))
    assert total == "6"


@pytest.mark.builds
def test_the_systems_own_python_can_be_copied_where_it_is_linked_statically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's: prefix /usr, packages in dist-packages, and by default scripts in local/bin."""
    system = Path("/usr/bin/python3")
    section = read_dynamic_section(system) if system.is_file() else None
    if section is None or any(name.startswith("libpython") for name in section.needed):
        pytest.skip("no statically linked /usr/bin/python3 on this machine")
    offer_greeter(tmp_path / "wheels", monkeypatch)
    built = build(write_recipe(tmp_path / "recipe", "greeter\n"), tmp_path / "prefix", python=str(system))
    assert built.packages == (("greeter", "1.2"),)
    assert run_alone([str(built.prefix / "bin" / "greet")]) == "hello\n"
    path = json.loads(run_alone([str(built.python), "-I", "-c", _STATE]))["path"]
    assert [folder for folder in path if not folder.startswith(f"{built.prefix}/")] == []


@pytest.mark.builds
def test_a_full_disk_is_reported_in_one_line_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = "[Errno 28] No space left on device: 'a' -> 'b'"
    monkeypatch.setattr("shutil.copytree", _raise(shutil.Error([("a", "b", full), ("c", "d", full)])))
    with pytest.raises(ExecutionEnvironmentError) as caught:
        build(_ENVS / "numpy_only", tmp_path / "prefix")
    assert caught.value.message == f"cannot build 'numpy_only' in {tmp_path / 'prefix'}: {full}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.builds
def test_a_build_that_was_killed_midway_cannot_be_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs after a SIGKILL: what it leaves is what is on disk when uv has just begun."""
    prefix = tmp_path / "prefix"

    def copy_and_raise(*_: object) -> None:
        shutil.copytree(prefix, tmp_path / "left", symlinks=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("naiad_building.build.install", copy_and_raise)
    with pytest.raises(KeyboardInterrupt):
        build(_ENVS / "numpy_only", prefix)
    assert not prefix.exists()
    with pytest.raises(ExecutionEnvironmentError, match="it has no conda-meta/history"):
        pack(tmp_path / "left", tmp_path / "out.tar")


def _raise(error: Exception) -> Callable[..., None]:
    def raising(*_: object, **__: object) -> None:
        raise error

    return raising
