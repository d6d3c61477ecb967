"""A user without a home: a number that a container was started with, and nothing else."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest
from naiad.config.options import environment_store
from naiad.environments.interpreters import known_paths
from naiad.errors import OptionError


@pytest.fixture
def homeless(monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(platformdirs, "user_cache_path", fail)
    monkeypatch.setattr(Path, "expanduser", fail)
    monkeypatch.setattr(Path, "home", fail)


@pytest.mark.parametrize("named", ["", "~/store"])
def test_is_told_to_name_the_store(homeless, named):
    with pytest.raises(OptionError, match=r"has no home directory; name a directory that can be written with"):
        environment_store(named, {})


def test_may_name_it(homeless, tmp_path, monkeypatch):
    monkeypatch.undo()

    assert environment_store("", {"NAIAD_STORE": str(tmp_path)}) == tmp_path


def test_has_the_interpreters_that_are_nobodys_own(homeless, tmp_path):
    assert isinstance(known_paths(tmp_path, {"PATH": ""}), list)
