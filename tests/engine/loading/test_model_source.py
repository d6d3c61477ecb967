"""What a load request gets that names no model."""

from __future__ import annotations

import pytest

from naiad.core.errors import NaiadError
from naiad.engine.loading.model_source import find_sources
from naiad.models.repository.repositories import LocalRepository, Repositories


def test_a_load_of_a_folder_that_cannot_be_a_model_says_why(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "doc" / "1").mkdir(parents=True)
    with pytest.raises(NaiadError) as caught:
        find_sources("docs", {}, Repositories([LocalRepository(tmp_path)]), strict=False)
    assert caught.value.message == (
        f"failed to load 'docs', failed to poll from model repository (looked in '{tmp_path}'; '{tmp_path}/docs' is not "
        "a model: it has no version folder, configuration or model file)"
    )
