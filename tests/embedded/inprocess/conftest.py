"""One server for the tests that only send requests; tests that change a server start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving.repositories import repository

import naiad

MODELS = ("every_datatype", "identity", "repeats", "says_what_it_got", "raises_in_execute", "per_request_error_codes")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by markers
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that start a server, whose guests are processes."""
    if "store" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all servers of these tests: without environments, it has only the guest's files."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[naiad.Server]:
    folder = tmp_path_factory.mktemp("inprocess")
    with naiad.Server(model_repository=repository(folder / "models", MODELS), flags=[f"--env-store={store}"]) as server:
        yield server
