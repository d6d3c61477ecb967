"""Large tensors, which are copied to a guest, read in place, returned, freed, and not cached: all of it in slices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from attacks.conftest import CODE, warm_up
from attacks.watching import attacked_server, harmless
from support.client_inputs import input_of
from support.model_files import python_config, write_files
from support.server import ServerProcess

SIZE = 200_000_000


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "2 frontends"])
def caching(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerProcess]:
    """A server with one model more, whose responses are cached."""
    root = tmp_path_factory.mktemp("caching")
    config = python_config("INPUT0 UINT8 -1", "OUTPUT0 UINT8 -1", "response_cache { enable: true }")
    write_files(root, "cached", config, CODE)
    options = ("--cache-config=local,size=500000000", f"--processes={max(int(request.param), 1)}")
    with attacked_server([repository, root], *options, work=tmp_path_factory.mktemp("server")) as started:
        warm_up(started)
        yield started


def by_grpc(server: ServerProcess, model: str, array: np.ndarray) -> np.ndarray:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        given = input_of(tritonclient.grpc, "INPUT0", array)
        return client.infer(model, [given]).as_numpy("OUTPUT0")


def by_http(server: ServerProcess, model: str, array: np.ndarray) -> np.ndarray:
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60) as client:
        given = input_of(tritonclient.http, "INPUT0", array)
        wanted = tritonclient.http.InferRequestedOutput("OUTPUT0")
        return client.infer(model, [given], outputs=[wanted]).as_numpy("OUTPUT0")


# A tensor for the cache is in all places where another one is, and in one more.
@pytest.mark.parametrize("model", [pytest.param("bytes", marks=pytest.mark.endurance), "cached"])
@pytest.mark.parametrize("infer", [by_grpc, by_http])
def test_others_are_served_while_large_tensors_come_and_go(caching: ServerProcess, infer, model: str) -> None:
    array = np.arange(SIZE, dtype=np.uint32).view(np.uint8)[:SIZE]
    with harmless(caching, 3 * SIZE * len(caching.serving()) + (64 << 20)):
        for _ in range(2):
            assert np.array_equal(infer(caching, model, array), array)
