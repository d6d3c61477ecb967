"""Large tensors, which are copied to a guest, read in place, returned, freed, and not cached: all of it in slices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from attacks.conftest import CODE, CONFIG, warm_up
from attacks.watching import attacked_server, watched
from support.server import ServerProcess

SIZE = 200_000_000


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "2 frontends"])
def caching(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerProcess]:
    """A server with one model more, whose responses are cached."""
    root = tmp_path_factory.mktemp("caching")
    (root / "cached" / "1").mkdir(parents=True)
    (root / "cached" / "config.pbtxt").write_text(CONFIG.format("TYPE_UINT8") + "response_cache { enable: true }")
    (root / "cached" / "1" / "model.py").write_text(CODE)
    options = ("--cache-config=local,size=500000000", f"--processes={max(int(request.param), 1)}")
    with attacked_server([repository, root], *options, work=tmp_path_factory.mktemp("server")) as started:
        warm_up(started)
        yield started


def by_grpc(server: ServerProcess, model: str, array: np.ndarray) -> np.ndarray:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        given = tritonclient.grpc.InferInput("INPUT0", list(array.shape), "UINT8")
        given.set_data_from_numpy(array)
        return client.infer(model, [given]).as_numpy("OUTPUT0")


def by_http(server: ServerProcess, model: str, array: np.ndarray) -> np.ndarray:
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60) as client:
        given = tritonclient.http.InferInput("INPUT0", list(array.shape), "UINT8")
        given.set_data_from_numpy(array)
        wanted = tritonclient.http.InferRequestedOutput("OUTPUT0")
        return client.infer(model, [given], outputs=[wanted]).as_numpy("OUTPUT0")


# A tensor for the cache is in all places where another one is, and in one more.
@pytest.mark.parametrize("model", [pytest.param("bytes", marks=pytest.mark.endurance), "cached"])
@pytest.mark.parametrize("infer", [by_grpc, by_http])
def test_others_are_served_while_large_tensors_come_and_go(caching: ServerProcess, infer, model: str) -> None:
    array = np.arange(SIZE, dtype=np.uint32).view(np.uint8)[:SIZE]
    with watched(caching) as seen:
        for _ in range(2):
            assert np.array_equal(infer(caching, model, array), array)
    seen.assert_others_served()
    # The message, and both segments of the instance: the input is in two places while it is copied. Each frontend
    # process may have got one of the two connections, and the largest sizes of all of them are added.
    seen.assert_memory(3 * SIZE * len(caching.serving()) + (64 << 20))
