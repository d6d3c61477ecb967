"""A user without a home: a number that a container was started with, and nothing else."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import platformdirs
import pytest
from cli.parsing import parse
from packaging.specifiers import SpecifierSet

from naiad.config.server.store_location import StoreLocation, find_store
from naiad.core.errors import OptionError
from naiad.environments.store.opening import open_store, open_store_of
from naiad.sources.interpreters.discovery import candidate_paths
from naiad_building import base_interpreter
from naiad_building.recipe import Recipe


@pytest.fixture
def homeless(monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(platformdirs, "user_cache_path", fail)
    monkeypatch.setattr(Path, "expanduser", fail)
    monkeypatch.setattr(Path, "home", fail)


def test_a_store_in_a_home_directory_is_rejected_for_a_user_without_one(homeless):
    with pytest.raises(OptionError, match=r"has no home directory; name a directory that can be written with"):
        find_store("~/store", {})


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files of the test's own, and where the store would be in it."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder / f"naiad-{os.geteuid()}"


def no_cache(monkeypatch, tmp_path):
    """A user whose cache is where no folder can be made, for root as well."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    return tmp_path / "file" / "cache" / "naiad" / "environments"


def test_a_user_without_a_home_has_a_store_among_the_temporary_files(homeless, temporary):
    place = find_store("", {})
    assert place.path == temporary / "environments"
    assert not temporary.exists()  # to read options creates nothing
    assert open_store(place.path) == open_store(place.path) == place.path
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    assert f"user {os.getuid()} has no home directory: it is {place.path} instead, which may be gone" in place.warning


def test_an_unwritable_cache_is_replaced_by_a_store_among_the_temporary_files_with_a_warning(
    temporary, tmp_path, monkeypatch
):
    cache = no_cache(monkeypatch, tmp_path)
    place = find_store("", {})
    assert find_store("", {}) == place
    assert place.warning == (
        f"the store of environments cannot be written at {cache}: it is {temporary}/environments instead, which may be "
        "gone after a restart; name a directory that can be written with --env-store or NAIAD_STORE"
    )
    assert parse(environ={}).warnings == (place.warning,)
    assert parse("--env-store=/x", environ={}).warnings == ()


def test_a_cache_in_the_closed_home_of_another_user_is_replaced_as_well(temporary, tmp_path, monkeypatch):
    """`Path.exists` raises below a folder that may not be entered, up to Python 3.13."""
    home = tmp_path / "home"
    home.mkdir()
    real_stat, may = Path.stat, os.access

    def stat_outside(self: Path, **options: bool) -> os.stat_result:
        if home in self.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real_stat(self, **options)

    monkeypatch.setattr(Path, "stat", stat_outside)
    monkeypatch.setattr(os, "access", lambda path, mode: path != home and may(path, mode))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))

    assert find_store("", {}).path == temporary / "environments"


def test_a_writable_cache_is_used_without_a_warning(temporary, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there" / "yet"))
    assert find_store("", {}) == StoreLocation(tmp_path / "not" / "there" / "yet" / "naiad" / "environments")
    assert not temporary.exists()


@pytest.mark.parametrize(
    ("make", "flaw"),
    [
        (lambda path: path.symlink_to(path.parent), "is not a directory"),
        (Path.touch, "is not a directory"),
        (lambda path: (path.mkdir(), path.chmod(0o777)), r"is open to others \(mode 777, not 700\)"),
    ],
)
def test_a_temporary_store_that_others_could_have_made_is_refused(temporary, tmp_path, monkeypatch, make, flaw):
    no_cache(monkeypatch, tmp_path)
    make(temporary)
    with pytest.raises(OptionError, match=f"the store of environments cannot be {temporary}, which {flaw}; name a dir"):
        find_store("", {})


def test_a_temporary_store_that_another_user_makes_before_it_is_opened_is_refused(temporary, tmp_path, monkeypatch):
    no_cache(monkeypatch, tmp_path)
    place = find_store("", {})
    temporary.mkdir()
    temporary.chmod(0o777)
    with pytest.raises(OptionError, match=f"cannot be {temporary}, which is open to others"):
        open_store(place.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_a_temporary_store_of_another_user_is_refused(temporary, tmp_path, monkeypatch):
    no_cache(monkeypatch, tmp_path)
    temporary.mkdir(mode=0o700)
    os.chown(temporary, 54321, 54321)
    with pytest.raises(OptionError, match=f"{temporary}, which belongs to user 54321"):
        find_store("", {})


def test_without_a_folder_for_temporary_files_the_missing_home_is_the_error(homeless, monkeypatch):
    def missing() -> str:
        raise FileNotFoundError("No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", missing)
    with pytest.raises(
        OptionError, match=r"user .* has no home directory; name a directory that can be written with --env"
    ):
        find_store("", {})


def test_without_temporary_files_the_unwritable_cache_stays_the_store(temporary, tmp_path, monkeypatch):
    cache = no_cache(monkeypatch, tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert find_store("", {}) == StoreLocation(cache)


def test_programs_without_a_log_warn_of_a_temporary_store_on_stderr(temporary, tmp_path, monkeypatch, capsys):
    no_cache(monkeypatch, tmp_path)
    assert open_store_of("", {}) == temporary / "environments"
    assert capsys.readouterr().err.startswith("warning: the store of environments cannot be written at")


def test_a_user_without_a_home_may_name_the_store(homeless, tmp_path, monkeypatch):
    monkeypatch.undo()

    assert open_store_of("", {"NAIAD_STORE": str(tmp_path)}) == tmp_path


def test_interpreters_outside_of_homes_are_found_for_a_user_without_one(homeless, tmp_path):
    assert isinstance(candidate_paths(tmp_path, {"PATH": ""}), list)


def test_a_user_without_a_home_may_build_environments(homeless, temporary, monkeypatch):
    asked = []

    def found(_versions, cache, **_options):
        asked.append(cache)
        return SimpleNamespace(python=Path("/usr/bin/python3.12"))

    monkeypatch.delenv("NAIAD_STORE", raising=False)
    monkeypatch.setattr(base_interpreter, "find_interpreter", found)
    recipe = Recipe(Path("/recipe"), "bare", SpecifierSet(">=3.8"))
    assert base_interpreter.choose_base(recipe, recipe.python, None) == Path("/usr/bin/python3.12")
    assert asked == [temporary / "environments" / "interpreters"]
