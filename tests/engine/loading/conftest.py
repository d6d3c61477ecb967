"""An engine without processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine.loading.host import Host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)
