"""An engine without processes, which runs while a test that is a coroutine function does."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from engine.loading.host import Host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the marker `settings` of a test says."""
    marker = request.node.get_closest_marker("settings")
    return {} if marker is None else marker.kwargs


@pytest.fixture
def run_coroutine(host: Host, settings: dict[str, Any]) -> Callable[[Coroutine[Any, Any, Any]], object]:
    return lambda coroutine: host.run(lambda: coroutine, **settings)
