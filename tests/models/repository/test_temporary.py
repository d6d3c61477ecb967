"""Temporary folders where there is no place for them."""

from __future__ import annotations

import tempfile

import pytest

from naiad.core.errors import RepositoryError
from naiad.models.repository.layout import make_temporary_directory


def test_a_read_only_system_is_an_error_that_asks_for_a_folder(monkeypatch):
    def nowhere():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)

    with pytest.raises(RepositoryError, match=r"No usable temporary directory found.*; name a folder.* by TMPDIR"):
        make_temporary_directory("naiad-")


def test_a_parent_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RepositoryError, match=f"in {tmp_path}/none: No such file.*; make that one that can be written"):
        make_temporary_directory("naiad-", f"{tmp_path}/none")
