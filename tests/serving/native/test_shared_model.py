"""All instances of a native model in one guest, by its parameter `native_shared_model`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from serving.native.test_native_backends import TWO, ask, data
from serving.native.test_native_lifecycle import guests
from support.native import add_model
from support.server import ServerProcess
from support.waiting import until

SHARED = TWO + 'parameters { key: "native_shared_model" value { string_value: "true" } }\n'


def test_instances_of_one_process_execute_side_by_side_and_share_the_model(tmp_path):
    repository = tmp_path / "models"
    add_model(repository, "meet", "meet.c", config=SHARED)
    add_model(repository, "apart", "echo.c", config=TWO)
    add_model(repository, "faults", "faults.c", config=SHARED, max_batch_size=1)
    with ServerProcess(repository, work=tmp_path) as server:
        assert len(guests(server)) == 4
        with ThreadPoolExecutor(2) as pool:
            replies = list(pool.map(lambda value: ask(server, "meet", value), range(2)))
            again = list(pool.map(lambda value: ask(server, "meet", value), range(20)))
        assert [data(reply) for reply in replies + again] == [[value] for value in [*range(2), *range(20)]]
        parameters = [reply.json()["parameters"] for reply in replies]
        assert [(each["models"], each["instances"]) for each in parameters] == [(1, 2), (1, 2)]
        assert {each["instance"] for each in parameters} == {1, 2}
        (found,) = server.get("/v2/models/meet/stats").json()["model_stats"]
        assert found["inference_stats"]["success"]["count"] == 22

        assert data(ask(server, "apart", 1)) == [1]
        assert "SIGSEGV" in ask(server, "faults", 6).error
        until(lambda: server.get("/v2/models/faults/ready").status == 200, "the restart")
        assert data(ask(server, "faults", 0)) == [0]
