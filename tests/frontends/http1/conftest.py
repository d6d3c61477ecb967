"""Fixtures for the tests of HTTP/1.1."""

from __future__ import annotations

import pytest

from naiad.frontends.http1 import request_reader, response_queue


@pytest.fixture
def short_shares() -> None:
    """For tests of what a connection does when its share of a turn is over: shares are as short as in a server."""


@pytest.fixture(autouse=True)
def _lasting_shares(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all others do what they do in one turn, however long the machine lets them wait meanwhile."""
    if "short_shares" not in request.fixturenames:
        monkeypatch.setattr(request_reader, "SHARE_SECONDS", 60.0)
        monkeypatch.setattr(response_queue, "SHARE_SECONDS", 60.0)
