from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.server import ServerProcess, free_ports

if TYPE_CHECKING:
    from openai import OpenAI

MODELS = Path(__file__).parent / "models"
KEY = "a key of the test's"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the API on a port of its own, and without keys."""
    port = free_ports(1)[0]
    options = [f"--openai-port={port}", "--openai-lora-separator=:"]
    with ServerProcess(MODELS, *options, work=tmp_path_factory.mktemp("openai")) as started:
        started.openai_port = port  # type: ignore[attr-defined]
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    import openai

    base = f"http://127.0.0.1:{server.openai_port}/v1"  # type: ignore[attr-defined]
    with openai.OpenAI(base_url=base, api_key="any", max_retries=0, timeout=60) as made:
        yield made
