"""One server for the tests that only ask it; those that change one start their own."""

from __future__ import annotations

from collections.abc import Iterator

import naiad
import pytest
from serving.repositories import repository

MODELS = ("every_datatype", "identity", "repeats", "says_what_it_got", "raises_in_execute", "per_request_error_codes")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[naiad.Server]:
    folder = tmp_path_factory.mktemp("inprocess")
    with naiad.Server(
        model_repository=repository(folder / "models", MODELS), flags=[f"--env-store={folder / 'store'}"]
    ) as server:
        yield server
